"""Can a target that has unknown classes be told from one that is merely shifted? Statistics that might tell.

    python -m benchmarks.open_set DATA [-o RESULTS.jsonl]

DATA holds a folder for each data set, with a ``<domain>.npz`` of ``features`` and ``labels`` for each domain. On twenty
tasks, a quarter or a half of the classes is taken from the source alone (the target then has unknown ones), or from
both domains. A statistic that tells would be higher on all targets with unknown classes than on all without, whatever
the data: the table has its area under the curve over tasks. It also has how often it rises when the same target gets
unknown classes, which a user cannot see, and how well single samples of unknown classes are told from others within a
target, by how near they are to the nearest class of the source.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import adjusted_rand_score, roc_auc_score
from sklearn.preprocessing import normalize

from benchmarks.diagnosis import Samples, samples_of
from benchmarks.lines import add_line
from safda.bench.cells import limit_threads

Rows = NDArray[np.float32]

OFFICE = ("amazon", "dslr", "webcam")
TASKS = (
    *(f"office31_resnet50/{one}/{other}" for one in OFFICE for other in OFFICE if one != other),
    "office_home_resnet50/Art/Clipart",
    "office_home_resnet50/Art/Product",
    "office_home_resnet50/Clipart/Art",
    "office_home_resnet50/Product/Real_World",
    "office_home_resnet50/Real_World/Clipart",
    "office_home_resnet50/Product/Art",
    "office_caltech_surf/Caltech10/amazon",
    "office_caltech_surf/amazon/webcam",
    "office_caltech_surf/webcam/dslr",
    "office_caltech_surf/dslr/Caltech10",
    "office_caltech_surf/webcam/Caltech10",
    "office_caltech_surf/amazon/Caltech10",
    "digits_pixels/usps/mnist",
    "digits_pixels/mnist/usps",
)
TAKEN = (0.25, 0.5)  # shares of the classes
COMPONENTS, SOURCE_ROWS, TARGET_ROWS, LINKED_ROWS = 128, 4000, 3000, 1500
FOLDS = 3  # parts of the classes, each left out once


# ------------------------------------------------------------------------------------------------- statistics


@dataclass(frozen=True)
class Seen:
    """A labelled source and a target, each centred by itself, rows of length one; and a source-only answer."""

    source: Rows
    labels: NDArray[np.int64]
    target: Rows

    @property
    def means(self) -> Rows:
        """The mean of each class of the source, of length one."""
        by_class = [self.source[self.labels == k].mean(0) for k in range(self.labels.max() + 1)]
        means: Rows = normalize(np.stack(by_class))
        return means

    def probabilities(self, kept: NDArray[np.bool_]) -> Rows:
        """Answer for the target by a linear discriminant that learned a part of the source."""
        model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(self.source[kept], self.labels[kept])
        answers: Rows = model.predict_proba(self.target)
        return answers


def farness(seen: Seen) -> float:
    """How much less like the nearest class mean target samples are than source samples."""
    return -float((seen.target @ seen.means.T).max(1).mean() / (seen.source @ seen.means.T).max(1).mean())


def width(seen: Seen) -> float:
    """How much wider the predicted classes of the target are than the source's classes."""
    answers = seen.probabilities(np.ones(len(seen.labels), bool)).argmax(1)
    return spread(seen.target, answers) / spread(seen.source, seen.labels)


def spread(rows: Rows, labels: NDArray[np.int64]) -> float:
    """Mean squared distance of samples from the mean of their class.

    >>> spread(np.float32([[0, 0], [2, 0], [5, 5]]), np.array([0, 0, 1]))
    0.6666666666666666
    """
    squares = [((rows[labels == k] - rows[labels == k].mean(0)) ** 2).sum() for k in np.unique(labels)]
    return float(sum(squares)) / len(rows)


def unmatched(seen: Seen) -> float:
    """Share of the target in clusters that are not a class's nearest while that is theirs.

    As in domain consensus clustering (Li et al., CVPR 2021), with half as many clusters again as classes.
    """
    means = seen.means
    clusters = KMeans(len(means) * 3 // 2, n_init=2, random_state=0).fit(seen.target)
    likeness = normalize(clusters.cluster_centers_) @ means.T
    nearest_class, nearest_cluster = likeness.argmax(1), likeness.argmax(0)
    matched = nearest_cluster[nearest_class] == np.arange(len(likeness))
    return float(1 - matched[clusters.labels_].mean())


def clusters_found(seen: Seen) -> float:
    """Ratio of clusters in the target to clusters in the source, cut where the source's are most like its classes."""
    source, labels = seen.source[:LINKED_ROWS], seen.labels[:LINKED_ROWS]
    target = seen.target[:LINKED_ROWS]
    tree = linkage(source, "ward")
    heights = np.linspace(0.1, 1, 60) * tree[:, 2].max()
    cuts = [fcluster(tree, height, "distance") for height in heights]
    best = int(np.argmax([adjusted_rand_score(labels, cut) for cut in cuts]))
    at = heights[best] * np.sqrt(len(target) / len(source))  # Ward's heights grow with samples
    return float(fcluster(linkage(target, "ward"), at, "distance").max() / cuts[best].max())


def as_if_left_out(seen: Seen) -> float:
    """Share of the target that is no surer than half of those samples are whose class was left out of the source."""
    full = seen.probabilities(np.ones(len(seen.labels), bool))
    shares = []
    for fold in np.array_split(np.random.default_rng(0).permutation(seen.labels.max() + 1), FOLDS):
        without = seen.probabilities(~np.isin(seen.labels, fold)).max(1)
        left_out = np.isin(full.argmax(1), fold)
        if left_out.any():
            shares.append((full.max(1) < np.median(without[left_out])).mean())
    return float(np.mean(shares))


def unevenness(seen: Seen) -> float:
    """How far the shares of the answers are from even, by entropy."""
    shares = seen.probabilities(np.ones(len(seen.labels), bool)).mean(0)
    return 1 + float((shares * np.log(shares)).sum() / np.log(len(shares)))


STATISTICS: dict[str, Callable[[Seen], float]] = {
    "distance from the nearest class": farness,
    "width of predicted classes": width,
    "clusters that no class matches": unmatched,
    "number of clusters": clusters_found,
    "as unsure as of classes left out": as_if_left_out,
    "unevenness of answers": unevenness,
}


# ------------------------------------------------------------------------------------------------------- tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path, help="a file for lines of JSON, one a case")
    options = parser.parse_args()
    lines = []
    with limit_threads(1):
        for line in (line for task in TASKS for line in cases(options.data, task)):
            lines.append(line)
            print(line["task"], line["taken"], line["open"], flush=True)
            if options.out:
                add_line(options.out, line)
    print(f"\n{table(lines)}\n\n{by_sample(lines)}")


def cases(data: Path, task: str) -> Iterator[dict[str, Any]]:
    """Yield a task as it is, and with classes taken from both domains or from the source alone."""
    folder, one, other = task.split("/")
    source = some(samples_of(data / folder / f"{one}.npz"), SOURCE_ROWS)
    target = some(samples_of(data / folder / f"{other}.npz"), TARGET_ROWS)
    classes = np.random.default_rng(7).permutation(source[1].max() + 1)
    for share in (0.0, *TAKEN):
        kept = classes[round(share * len(classes)) :]
        known = np.isin(target[1], kept)
        for is_open in (False, True) if share else (False,):
            seen = prepared(without(source, kept), target[0] if is_open else target[0][known])
            line = {"task": task, "taken": share, "open": is_open}
            if is_open:
                line["auc"] = float(roc_auc_score(known, (seen.target @ seen.means.T).max(1)))
            yield line | {name: statistic(seen) for name, statistic in STATISTICS.items()}


def some(samples: Samples, count: int) -> Samples:
    """Return so many samples, at random, or all."""
    rows = np.random.default_rng(1).permutation(len(samples[1]))[:count]
    return samples[0][rows], samples[1][rows]


def without(samples: Samples, kept: NDArray[np.int64]) -> Samples:
    """Return the samples of some classes, numbered anew."""
    number = {int(k): new for new, k in enumerate(sorted(kept))}
    rows = np.isin(samples[1], kept)
    return samples[0][rows], np.array([number[int(k)] for k in samples[1][rows]])


def prepared(source: Samples, target: Rows) -> Seen:
    """Make rows of length one, centre each domain by itself, and keep principal components of both."""
    both = [normalize(rows) for rows in (source[0], target)]
    both = [rows - rows.mean(0) for rows in both]
    count = min(COMPONENTS, both[0].shape[1], *(len(rows) - 1 for rows in both))
    components = PCA(count, random_state=0).fit(np.concatenate(both))
    rows = [normalize(components.transform(each)) for each in both]
    return Seen(rows[0], source[1], rows[1])


# ------------------------------------------------------------------------------------------------------ tables


def table(lines: list[dict[str, Any]]) -> str:
    """Tell how well each statistic tells targets with unknown classes from those without, over tasks and within."""
    heading = " | ".join(f"{share:.0%} unknown: over tasks | rises" for share in TAKEN)
    rows = [f"| statistic | {heading} |", "|---|" + "---:|" * (2 * len(TAKEN))]
    closed = [line for line in lines if not line["open"]]
    for name in STATISTICS:
        cells = []
        for share in TAKEN:
            some_open = [line for line in lines if line["open"] and line["taken"] == share]
            twins = {line["task"]: line for line in closed if line["taken"] == share}
            truth = [1] * len(some_open) + [0] * len(closed)
            area = roc_auc_score(truth, [line[name] for line in [*some_open, *closed]])
            rises = sum(line[name] > twins[line["task"]][name] for line in some_open)
            cells += [f"{area:.2f}", f"{rises} of {len(some_open)}"]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def by_sample(lines: list[dict[str, Any]]) -> str:
    """Tell how well samples of unknown classes are told from others within a target, by data set."""
    areas: dict[str, list[float]] = {}
    for line in (line for line in lines if line["open"]):
        areas.setdefault(line["task"].split("/")[0], []).append(line["auc"])
    return "\n".join(
        f"{name}: {np.mean(each):.2f} ({min(each):.2f} to {max(each):.2f})" for name, each in areas.items()
    )


if __name__ == "__main__":
    main()
