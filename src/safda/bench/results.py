"""What a lab's runs say: a tidy table, means and spreads, and paired differences with a t interval.

Every accuracy here is that of the last step, in percent. Target labels only describe it; nothing was chosen by them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import stdtrit

from safda.bench.benchmark import Benchmark
from safda.bench.lab import Lab
from safda.evaluation.scores import SCORES
from safda.io import Columns

#: The score by which the label-free choice is made: one that a collapse does not please.
SELECTION_SCORE = "information"
_CONFIDENCE = 0.95
_ROUNDING = 1e-9  # in points: differences of percentages that are closer than this are equal


@dataclass(frozen=True)
class Run:
    """One finished cell: its accuracy, and that of every class, in percent; and the label-free scores of its day."""

    row: str
    task: str
    seed: int
    key: str
    accuracy: float
    classes: Mapping[str, float]
    scores: Mapping[str, float]
    calibration_error: float


@dataclass(frozen=True)
class Stat:
    """A mean over seeds, its spread (standard deviation) and how many there were."""

    mean: float
    spread: float | None
    count: int


@dataclass(frozen=True)
class Difference:
    """By how much the first row is better than the second, in points, and the interval of 95%.

    Attributes:
        mean: the mean over tasks.
        interval: its lower and upper end; None where the runs show no variance to make one of.
        pairs: how many runs were compared with one another.
        fewest: in the task that has fewest.
        equal: whether both rows have the same accuracy in every pair.
    """

    mean: float
    interval: tuple[float, float] | None
    pairs: int
    fewest: int
    equal: bool


class Results:
    """All finished runs of a lab's benchmark.

    Attributes:
        benchmark: what is being filled in.
        runs: the finished runs.
        settings: ``preset`` and knobs by their path, in which they depart from the benchmark's own.
    """

    def __init__(self, benchmark: Benchmark, runs: Sequence[Run], settings: Mapping[str, Any] | None = None) -> None:
        self.benchmark, self.runs, self.settings = benchmark, tuple(runs), settings or {}
        self._by_cell: dict[tuple[str, str], dict[int, Run]] = {}
        for run in runs:
            self._by_cell.setdefault((run.row, run.task), {})[run.seed] = run

    @classmethod
    def of(cls, lab: Lab) -> Results:
        """Read every finished cell of a lab."""
        runs = []
        for cell in lab.cells():
            result = lab.store.result(cell)
            if result is not None:
                runs.append(
                    Run(
                        cell.row,
                        cell.task,
                        cell.seed,
                        cell.key,
                        100 * result[lab.benchmark.metric],
                        {name: 100 * value for name, value in result["class_accuracy"].items()},
                        result["scores"],
                        result["calibration_error"],
                    )
                )
        return cls(lab.benchmark, runs, lab.settings)

    @property
    def rows(self) -> list[str]:
        """The rows that have a run, in the benchmark's order."""
        there = {run.row for run in self.runs}
        return [name for name in self.benchmark.rows if name in there]

    @property
    def classes(self) -> list[str]:
        """The classes that have a column of their own."""
        if not self.benchmark.per_class:
            return []
        return list(dict.fromkeys(name for run in self.runs for name in run.classes))

    def of_cell(self, row: str, task: str) -> dict[int, Run]:
        """Return the runs of a row on a task, by seed."""
        return self._by_cell.get((row, task), {})

    def stat(self, row: str, task: str) -> Stat | None:
        """Mean and spread of a row on a task."""
        return stat([run.accuracy for run in self.of_cell(row, task).values()])

    def class_stat(self, row: str, name: str) -> Stat | None:
        """Mean and spread of a row on a class, over all tasks that have it."""
        return stat([run.classes[name] for run in self.runs if run.row == row and name in run.classes])

    def average(self, row: str) -> Stat | None:
        """Mean and spread over seeds of the average over all tasks; None unless some seed has them all."""
        by_task = [self.of_cell(row, task) for task in self.benchmark.tasks]
        whole = set.intersection(*(set(runs) for runs in by_task))
        return stat([statistics.fmean(runs[seed].accuracy for runs in by_task) for seed in sorted(whole)])

    def chosen(self, row: str, task: str) -> Run | None:
        """Return the run that one would choose without labels, among those that have the score."""
        runs = [run for run in self.of_cell(row, task).values() if SELECTION_SCORE in run.scores]
        return max(runs, key=lambda run: run.scores[SELECTION_SCORE], default=None)

    def oracle(self, row: str, task: str) -> Run | None:
        """Return the run that is best by target labels: nobody could have chosen it."""
        return max(self.of_cell(row, task).values(), key=lambda run: run.accuracy, default=None)

    def difference(self, first: str, second: str, tasks: Sequence[str]) -> Difference | None:
        """Compare two rows on the tasks that both have, run by run of the same seed."""
        by_task = []
        for task in tasks:
            one, other = self.of_cell(first, task), self.of_cell(second, task)
            shared = sorted(set(one) & set(other))
            if shared:
                by_task.append([one[seed].accuracy - other[seed].accuracy for seed in shared])
        return paired_interval(by_task) if by_task else None


def stat(values: Sequence[float]) -> Stat | None:
    """Mean, spread and count of some numbers; None of none.

    >>> stat([90.0, 92.0])
    Stat(mean=91.0, spread=1.4142135623730951, count=2)
    """
    if not values:
        return None
    return Stat(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def paired_interval(by_task: Sequence[Sequence[float]]) -> Difference:
    """Return the mean over tasks of the mean difference, and its t interval over seeds.

    On one task that is the interval of the paired t test. Over k tasks, whose runs are taken as independent, the
    variance is the sum of sᵢ²/nᵢ over k², with Welch and Satterthwaite's degrees of freedom.

    There is no interval where a task has one pair, which tells nothing of its variance, nor where the differences are
    equal within each task: accuracies are counts, and three equal ones do not make a fourth certain.

    >>> paired_interval([[1.0, 2.0, 3.0]])
    Difference(mean=2.0, interval=(-0.48..., 4.48...), pairs=3, fewest=3, equal=False)
    >>> paired_interval([[1.0, 1.0, 1.0], [3.0, 3.0]])
    Difference(mean=2.0, interval=None, pairs=5, fewest=2, equal=False)
    """
    tasks = [np.asarray(values, dtype=np.float64) for values in by_task]
    counts = [len(values) for values in tasks]
    mean = float(np.mean([values.mean() for values in tasks]))
    interval = None
    if min(counts) > 1:
        parts = np.array([values.var(ddof=1) if np.ptp(values) > _ROUNDING else 0.0 for values in tasks]) / counts
        if parts.any():
            freedom = parts.sum() ** 2 / (parts**2 / (np.array(counts) - 1)).sum()
            reach = float(stdtrit(freedom, (1 + _CONFIDENCE) / 2) * np.sqrt(parts.sum()) / len(tasks))
            interval = (mean - reach, mean + reach)
    equal = all(float(np.abs(values).max()) <= _ROUNDING for values in tasks)
    return Difference(mean, interval, sum(counts), min(counts), equal)


# ------------------------------------------------------------------------------------------------- as columns


def tidy(results: Results) -> Columns:
    """Return one line a run and one a published number; what does not apply is empty."""
    lines = [_published(results.benchmark, row, task) for row, task in _published_cells(results.benchmark)]
    for run in results.runs:
        lines.append(
            {
                "kind": "ours",
                "row": run.row,
                "method": results.benchmark.rows[run.row].title,
                "task": run.task,
                "seed": run.seed,
                "accuracy": run.accuracy,
                "calibration_error": run.calibration_error,
                **{f"score/{name}": run.scores.get(name) for name in SCORES},
                **{f"accuracy/{name}": run.classes.get(name) for name in results.classes},
                "key": run.key,
            }
        )
    names = dict.fromkeys(["kind", "row", "method", "task", "seed", "accuracy", "spread"])
    names.update(dict.fromkeys(name for line in lines for name in line))
    return {name: [line.get(name) for line in lines] for name in names}


def _published_cells(benchmark: Benchmark) -> list[tuple[str, str]]:
    return [(name, task) for name, row in benchmark.rows.items() for task in row.published]


def _published(benchmark: Benchmark, name: str, task: str) -> dict[str, Any]:
    row = benchmark.rows[name]
    return {
        "kind": "published",
        "row": name,
        "method": row.title,
        "task": task,
        "accuracy": row.published[task],
        "spread": row.spread.get(task),
    }


def differences(results: Results) -> Columns:
    """Compare any two rows, on each task and on all that both have; an interval that there is not is empty."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("first", "second", "task", "pairs", "difference", "low", "high")
    }
    for first, second in combinations(results.rows, 2):
        for label, tasks in (*((task, [task]) for task in results.benchmark.tasks), ("all", results.benchmark.tasks)):
            found = results.difference(second, first, tasks)  # the later row is usually the newer method
            if found:
                low, high = found.interval or (None, None)
                values = (second, first, label, found.pairs, found.mean, low, high)
                for column, value in zip(columns.values(), values, strict=True):
                    column.append(value)
    return columns
