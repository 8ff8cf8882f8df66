"""What else a user would take, on the same arrays: logistic regression, skada's shallow adapters, label spreading.

    python -m benchmarks.shallow --data DATA -o RESULTS.jsonl [--sets surf digits] [--methods coral jdot]
    python -m benchmarks.shallow --data CASES --benchmark CASES/hard.toml -o RESULTS.jsonl
    python -m benchmarks.shallow --benchmark digits-methods -o RESULTS.jsonl

Every task of a benchmark (``suite`` unless another is named), every method, one line of JSON each; runs that are there
are not made again, so a benchmark that was stopped goes on. Then a table: mean accuracy per data set, in brackets the
worst task's difference to logistic regression.

Each method has its library's defaults and one thread; nothing is tuned, and target labels are looked at once, to score.
Departures: in label propagation, exact transport may go on for as long as POT lets it by default, since skada's limit
of 200 iterations leaves it undone; subspace alignment keeps no more components than the smaller domain has samples,
where its default is an error; and where one core would take too long, there are principal components in place of
features, or a part of the source, which the run's line and the table's notes tell. skada's pipelines end in an SVM by
default; which serves better depends on the data, so each also ends in a logistic regression, and there is an SVM
without adaptation.

Features are standardised in two ways, a table each: as users of scikit-learn do (fitted on the source) and as users of
skada can (each domain by its own mean and spread), which is an adaptation in itself.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from skada import CORAL, JDOTClassifier, OTLabelProp, OTMapping, SubspaceAlignment
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading
from sklearn.svm import SVC
from torch import Tensor

from benchmarks.data_sets import data_sets, domains_of
from benchmarks.lines import Line, add_line, read_lines
from safda import text
from safda.bench.benchmark import Benchmark, load_benchmark
from safda.bench.cells import limit_threads
from safda.data import load_domain
from safda.errors import SafdaError

Features = NDArray[np.float32]
Labels = NDArray[np.int64]

METRICS = {"accuracy": accuracy_score, "mean_class_accuracy": balanced_accuracy_score}
SCALINGS = {"source": "fitted on the source", "each": "each domain by its own mean and spread"}
BASELINE = "logistic"
HARM = 1.0  #: points below the baseline that count as harm
MOST_PRODUCTS, COMPONENTS = 1e10, 256  #: source samples × target samples × width, above which features are reduced
MOST_PAIRS, ROWS = 8e6, 2000  #: source samples × target samples, above which the source is thinned
UNFINISHED = re.compile("converge|numItermax|Maximum number of iterations")
SOURCE_DOMAIN, TARGET_DOMAIN = 1, -2  #: skada's signs for where a sample comes from


@dataclass(frozen=True)
class Pair:
    """A labelled source and the features of a target: all that a method gets to see."""

    source: Features
    labels: Labels
    target: Features

    def standardised(self, scaling: str) -> Pair:
        """Standardise both by the source's mean and spread, or each by its own."""
        scaler = StandardScaler().fit(self.source)
        of_target = scaler if scaling == "source" else StandardScaler().fit(self.target)
        return replace(self, source=scaler.transform(self.source), target=of_target.transform(self.target))

    def components(self, count: int) -> Pair:
        """Project both on the source's first principal components."""
        pca = PCA(count, random_state=0).fit(self.source)
        return replace(self, source=pca.transform(self.source), target=pca.transform(self.target))

    def part_of_source(self, rows: int) -> Pair:
        """Keep so many samples of the source, evenly spaced, of every class in proportion."""
        by_class = np.argsort(self.labels, kind="stable")
        kept = by_class[np.linspace(0, len(by_class) - 1, rows).round().astype(int)]
        return replace(self, source=self.source[kept], labels=self.labels[kept])


@dataclass(frozen=True)
class Method:
    """One line of the table.

    Attributes:
        title: what the table calls it.
        predict: from a pair to class numbers of the target.
        reduced: whether features get principal components where the product of samples and width is large.
        thinned: whether a part of the source has to do where there are many pairs of samples.
    """

    title: str
    predict: Callable[[Pair], Labels]
    reduced: bool = True
    thinned: bool = False

    def within_reach(self, pair: Pair) -> Pair:
        """Make a pair as small as this method needs it."""
        pairs, width = len(pair.source) * len(pair.target), pair.source.shape[1]
        if self.reduced and pairs * width > MOST_PRODUCTS and width > COMPONENTS:
            pair = pair.components(COMPONENTS)
        if self.thinned and pairs > MOST_PAIRS and len(pair.source) > ROWS:
            pair = pair.part_of_source(ROWS)
        return pair


def label_spreading(pair: Pair) -> Labels:
    """Spread the source's labels over a graph of neighbours that has both domains."""
    unknown = np.full(len(pair.target), -1)
    model = LabelSpreading(kernel="knn")
    model.fit(np.concatenate([pair.source, pair.target]), np.concatenate([pair.labels, unknown]))
    labels: Labels = model.transduction_[len(pair.source) :]
    return labels


def adapted(estimator: Any, pair: Pair) -> Labels:
    """Fit one of skada's estimators as skada packs domains, the target's labels masked, and predict the target."""
    sizes = [len(pair.source), len(pair.target)]
    masked = np.concatenate([pair.labels, np.full(len(pair.target), -1)])
    domain = np.repeat([SOURCE_DOMAIN, TARGET_DOMAIN], sizes)
    estimator.fit(np.concatenate([pair.source, pair.target]), masked, sample_domain=domain)
    labels: Labels = estimator.predict(pair.target, sample_domain=domain[len(pair.source) :])
    return labels


def without_adaptation(estimator: Any) -> Callable[[Pair], Labels]:
    """Learn from the source alone."""
    return lambda pair: estimator.fit(pair.source, pair.labels).predict(pair.target)


def subspace_alignment(base: Any, pair: Pair) -> Any:
    """Keep all components, as is the default, or as many as both domains can have."""
    components = min(len(pair.source), len(pair.target), pair.source.shape[1])
    return SubspaceAlignment(base, n_components=components, random_state=0)


def pipeline(build: Callable[[Any, Pair], Any], base: Any = None) -> Callable[[Pair], Labels]:
    """Adapt by one of skada's pipelines, with its default classifier or another at the end."""
    return lambda pair: adapted(build(base, pair), pair)


#: Name → title, and what builds skada's pipeline, given the classifier at its end.
PIPELINES: dict[str, tuple[str, Callable[[Any, Pair], Any]]] = {
    "coral": ("CORAL", lambda base, pair: CORAL(base)),
    "subspace": ("subspace alignment", subspace_alignment),
    "ot-mapping": ("OT mapping", lambda base, pair: OTMapping(base)),
    "ot-labels": ("OT label propagation", lambda base, pair: OTLabelProp(base, n_iter_max=1_000_000)),
}
METHODS = {
    BASELINE: Method("logistic regression", without_adaptation(LogisticRegression()), reduced=False),
    "svm": Method("SVM", without_adaptation(SVC())),
    **{name: Method(f"{title}, SVM", pipeline(build)) for name, (title, build) in PIPELINES.items()},
    **{
        f"{name}-logistic": Method(f"{title}, logistic regression", pipeline(build, LogisticRegression()))
        for name, (title, build) in PIPELINES.items()
    },
    "jdot": Method("JDOT, logistic regression", lambda pair: adapted(JDOTClassifier(), pair), thinned=True),
    "spreading": Method("label spreading", label_spreading, reduced=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=Path(), help="a folder with the benchmark's files, if it has any")
    parser.add_argument("-o", "--out", type=Path, required=True, help="a file for lines of JSON; runs in it are kept")
    parser.add_argument("--benchmark", default="suite", help="a benchmark's name or .toml file (default: suite)")
    parser.add_argument("--sets", nargs="+", help="data sets, by what their domains' names begin with (default: all)")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--scalings", nargs="+", choices=list(SCALINGS), default=list(SCALINGS))
    options = parser.parse_args()
    try:
        benchmark = load_benchmark(options.benchmark)
        sets = data_sets(benchmark, options.sets)
        with limit_threads(1):
            lines = fill(options.out, benchmark, sets, options.data, options.methods, options.scalings)
    except SafdaError as error:
        raise SystemExit(f"error: {error}") from None
    for scaling in options.scalings:
        print(f"\nStandardised: {SCALINGS[scaling]}\n")
        print(table([line for line in lines if line["scaling"] == scaling], sets))


# ------------------------------------------------------------------------------------------------------ runs


def fill(
    out: Path,
    benchmark: Benchmark,
    sets: Mapping[str, Sequence[str]],
    data: Path,
    methods: Sequence[str],
    scalings: Sequence[str],
) -> list[Line]:
    """Make the runs that are not there yet, and return all of this benchmark's."""
    lines = [line for line in read_lines(out) if line["benchmark"] == benchmark.name]
    there = {(line["task"], line["method"], line["scaling"]) for line in lines}
    for scaling, task in ((scaling, task) for scaling in scalings for tasks in sets.values() for task in tasks):
        missing = [method for method in methods if (task, method, scaling) not in there]
        for result in run_task(benchmark, task, data, missing, scaling) if missing else ():
            lines.append({"benchmark": benchmark.name, "task": task, "scaling": scaling, **result})
            add_line(out, lines[-1])
            print(text.printable(f"{task}, {scaling}: {result}"), file=sys.stderr, flush=True)
    return lines


def run_task(benchmark: Benchmark, task: str, data: Path, methods: Iterable[str], scaling: str) -> Iterator[Line]:
    """Run methods on one task, and score each."""
    pair, truth = load_pair(*domains_of(benchmark, task, data))
    pair = pair.standardised(scaling)
    for method in methods:
        used = METHODS[method].within_reach(pair)
        began = time.process_time()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            score = score_or_failure(METHODS[method], used, truth, benchmark.metric)
        yield {
            "method": method,
            **score,
            "source_rows": len(used.source),
            "source_rows_all": len(pair.source),
            "width": used.source.shape[1],
            "width_all": pair.source.shape[1],
            "unfinished": any(UNFINISHED.search(str(each.message)) for each in said),
            "cpu_seconds": round(time.process_time() - began, 1),
        }


def score_or_failure(method: Method, pair: Pair, truth: Labels, metric: str) -> Line:
    """Return a method's score, in percent, or what its library raised instead of an answer."""
    try:
        predicted = method.predict(pair)
    except Exception as error:  # that a method fails is a result, and others go on
        return {"failed": f"{type(error).__name__}: {error}"}
    return {metric: round(100 * float(METRICS[metric](truth, predicted)), 3)}


def load_pair(source: str | Path, target: str | Path) -> tuple[Pair, Labels]:
    """Read what methods may see and, apart from it, the target's true classes, numbered as the source's are."""
    labelled, scored = (load_domain(path) for path in (source, target))
    numbers, classes = labelled.labelled("a source")
    truth, their_classes = scored.labelled("a score")
    number = {name: k for k, name in enumerate(classes)}
    renumbered = np.array([number.get(name, len(classes) + k) for k, name in enumerate(their_classes)])
    return Pair(_rows(labelled), numbers.numpy(), _rows(scored)), renumbered[truth.numpy()]


def _rows(domain: Any) -> Features:
    if not isinstance(domain.inputs, Tensor):
        raise SafdaError(f"{domain.name}: has pictures, and these methods need arrays of features")
    rows: Features = domain.inputs.flatten(1).numpy().astype(np.float32)
    return rows


# ----------------------------------------------------------------------------------------------------- table


def table(lines: Iterable[Line], sets: Mapping[str, Sequence[str]]) -> str:
    """Write a table in Markdown: per data set the mean and, in brackets, the worst difference to the baseline.

    A cell is empty until all its runs are there, and where one failed. The last column counts the tasks that end more
    than a point below the baseline; what failed, was made smaller or left unfinished is told below.
    """
    lines = list(lines)
    scores = {(line["method"], line["task"]): _score(line) for line in lines if "failed" not in line}
    heading = ["method", *(f"{name} ({len(tasks)})" for name, tasks in sets.items()), "harmed"]
    rows = [heading, ["---", *["---:"] * (len(heading) - 1)]]
    for method, about in METHODS.items():
        cells = [cell(scores, method, tasks) for tasks in sets.values()]
        gains = differences(scores, method, [task for tasks in sets.values() for task in tasks])
        harmed = f"{sum(gain < -HARM for gain in gains)} of {len(gains)}"
        rows.append([about.title, *cells, "" if method == BASELINE else harmed])
    notes = [note(METHODS[method].title, [line for line in lines if line["method"] == method]) for method in METHODS]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", *filter(None, notes)])


def cell(scores: Mapping[tuple[str, str], float], method: str, tasks: Sequence[str]) -> str:
    """Mean over a data set and worst difference to the baseline."""
    gains = differences(scores, method, tasks)
    if len(gains) < len(tasks):
        return "–"
    mean = f"{statistics.mean(scores[method, task] for task in tasks):.1f}"
    return mean if method == BASELINE else f"{mean} ({min(gains):+.1f})".replace("-", "−")


def differences(scores: Mapping[tuple[str, str], float], method: str, tasks: Iterable[str]) -> list[float]:
    """Gain over the baseline on each task where both are there."""
    pairs = [(scores.get((method, task)), scores.get((BASELINE, task))) for task in tasks]
    return [ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None]


def note(title: str, lines: Sequence[Line]) -> str:
    """Tell on how many tasks a method failed, saw less than there was, or stopped before it was done."""
    counts = {
        "failed": sum("failed" in line for line in lines),
        "with principal components of the features": sum(line["width"] < line["width_all"] for line in lines),
        "with a part of the source": sum(line["source_rows"] < line["source_rows_all"] for line in lines),
        "stopped at a limit of iterations": sum(line["unfinished"] for line in lines),
    }
    told = [f"{what} on {count} of {len(lines)} tasks" for what, count in counts.items() if count]
    return f"- {title}: {', '.join(told)}." if told else ""


def _score(line: Line) -> float:
    return float(next(line[metric] for metric in METRICS if metric in line))


if __name__ == "__main__":
    main()
