"""What fifty labels are worth: to know how good a run is, and to learn from.

    python -m benchmarks.labels DATA -o RESULTS [--tasks SET/SOURCE/TARGET …] [--n 50] [--steps 500] [--seeds 1]

DATA holds a folder for each data set, with a ``<domain>.npz`` of ``features`` and ``labels`` for each domain. RESULTS
is a folder; runs that are in it are not made again. A run is adapted as usual; of its target, ``safda label`` draws a
list, which the true labels fill in; and the same recipe is run once more with these labels.

The first table has the standard error of the accuracy, and of what adapting gained, from so many labels, beside that of
a simple random sample: exact, from the truth. The second has the accuracy on samples that are not in the list, so
both runs are judged on what neither has learned. The last one has how often intervals hold the truth, over many lists.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import safda
from safda.data import load_domain
from safda.evaluation.answers import Answers, read_answers
from safda.evaluation.survey import draw, estimate_share, label_list
from safda.training.checkpoint import RunFolder

TASKS = (
    "office31_resnet50/dslr/amazon",
    "office_caltech_surf/amazon/Caltech10",
    "amazon_reviews/books/kitchen",
)
Numbers = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--n", type=int, default=50)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    designs, learned, covered = [], [], []
    for task in options.tasks:
        name, source, target = task.split("/")
        ends = options.data / name / f"{source}.npz", options.data / name / f"{target}.npz"
        for seed in range(options.seeds):
            run = options.out / f"{name}-{source}-{target}-{seed}"
            adapt(*ends, run, options.steps, seed, None)
            answers, truth = read_answers(RunFolder.open(run)), true_labels(ends[1], run)
            columns = label_list(run, options.n)
            rows = [answers.ids.index(each) for each in columns["id"]]
            labels = {answers.ids[row]: RunFolder.open(run).data["classes"][truth[row]] for row in rows}
            again = run.with_name(f"{run.name}-labels")
            adapt(*ends, again, options.steps, seed, labels)
            rest = np.setdiff1d(np.arange(len(truth)), rows)
            before, after = (
                accuracy(read_answers(RunFolder.open(each)).predicted[rest], truth[rest]) for each in (run, again)
            )
            learned.append((task, seed, before, after))
            if seed == 0:
                designs.append((task, *design_errors(answers, truth, options.n)))
                covered.append((task, *coverage(answers, truth, options.n)))
    show(("task", "simple: accuracy", "gain", "stratified: accuracy", "gain"), designs, ".2f")
    show(("task", "seed", "without labels", "with labels"), learned, ".1f")
    show(("task", "truth", "mean estimate", "90%", "95%"), covered, ".1f")


def adapt(source: Path, target: Path, out: Path, steps: int, seed: int, labels: dict[str, str] | None) -> None:
    if not (out / "summary.json").exists():
        safda.fit(source, target, out=out, steps=steps, seed=seed, cpu=True, target_labels=labels)


def true_labels(target: Path, run: Path) -> NDArray[np.int64]:
    """Return the target's labels, in the numbers of the run's classes."""
    labels, names = load_domain(target).labelled("the truth")
    classes = RunFolder.open(run).data["classes"]
    return np.array([classes.index(names[each]) for each in labels.tolist()])


def accuracy(predicted: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    return 100 * float((predicted == truth).mean())


def design_errors(answers: Answers, truth: NDArray[np.int64], n: int) -> tuple[float, ...]:
    """Return standard errors in points: of the accuracy and the gain, in a simple random sample and in ours."""
    assert answers.source_only is not None
    right = (answers.predicted == truth).astype(np.float64)
    gain = right - (answers.source_only == truth)
    everyone = draw(answers.confidence, answers.changed, len(truth))
    names = np.empty(len(truth), dtype=object)
    names[everyone.rows] = everyone.strata
    drawn = draw(answers.confidence, answers.changed, n)
    simple = [standard_error([values], [n]) for values in (right, gain)]
    strata = sorted(set(drawn.strata))
    counts = [drawn.strata.count(name) for name in strata]
    ours = [standard_error([values[names == name] for name in strata], counts) for values in (right, gain)]
    return (*simple, *ours)


def standard_error(strata: list[Numbers], counts: list[int]) -> float:
    """Return the standard error of a stratified mean, in points, of samples drawn without replacement."""
    total = sum(map(len, strata))
    parts = [
        (len(values) / total) ** 2 * (1 - count / len(values)) * values.var(ddof=1) / count
        for values, count in zip(strata, counts, strict=True)
    ]
    return 100 * float(np.sqrt(sum(parts)))


def coverage(answers: Answers, truth: NDArray[np.int64], n: int, lists: int = 2000) -> tuple[float, ...]:
    """Return the accuracy, the mean of its estimates, and how often each interval holds it, in percent."""
    right = answers.predicted == truth
    values, hits = [], np.zeros(2)
    for seed in range(lists):
        drawn = draw(answers.confidence, answers.changed, n, seed)
        names, sizes = np.array(drawn.strata), dict(zip(drawn.strata, drawn.sizes, strict=True))
        found = estimate_share(list(sizes.values()), [right[drawn.rows[names == name]] for name in sizes])
        values.append(found.value)
        hits += [low <= right.mean() <= high for low, high in (found.interval_90, found.interval_95)]
    return (100 * float(right.mean()), 100 * float(np.mean(values)), *(100 * hits / lists).tolist())


def show(heading: tuple[str, ...], rows: list[tuple[Any, ...]], form: str) -> None:
    print(f"| {' | '.join(heading)} |\n|{'---|' * len(heading)}")
    for row in rows:
        print(f"| {' | '.join(format(cell, form) if isinstance(cell, float) else str(cell) for cell in row)} |")
    print()


if __name__ == "__main__":
    main()
