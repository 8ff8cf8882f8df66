"""Several runs on the same target, sample by sample: where they agree, and by how much they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from safda.report.data import RunReport

LEVEL = 0.95  #: of all intervals


@dataclass(frozen=True)
class RunDifference:
    """By how much a run is above another.

    Attributes:
        value: the mean difference over the same samples.
        low, high: its interval, at :data:`LEVEL`.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Pair:
    """Two runs, each sample beside itself.

    Attributes:
        first, second: their numbers in the report.
        same_target: whether they speak of the same samples; if not, the next two are None.
        agreement: share of samples that both give the same class.
        confidence: how much surer the second is.
        accuracy: how much more often the second is right: an oracle's number; None where no labels were given.
    """

    first: int
    second: int
    same_target: bool
    agreement: float | None
    confidence: RunDifference | None
    accuracy: RunDifference | None


def compare(runs: Sequence[RunReport]) -> list[Pair]:
    """Compare every two of several runs."""
    pairs = [(i, k) for k in range(len(runs)) for i in range(k)]
    return [_pair(i, k, runs[i], runs[k]) for i, k in pairs]


def _pair(i: int, k: int, one: RunReport, other: RunReport) -> Pair:
    both = one.samples, other.samples
    same = one.data["target"]["digest"] == other.data["target"]["digest"]
    agreement = confidence = accuracy = None
    if same and both[0] is not None and both[1] is not None:
        names = [np.array(run.classes)[seen.predicted] for run, seen in zip((one, other), both, strict=True) if seen]
        agreement = float((names[0] == names[1]).mean())
        confidence = mean_difference(both[1].confidence - both[0].confidence)
    if one.oracle is not None and other.oracle is not None:
        accuracy = accuracy_difference(one.oracle.right, other.oracle.right)
    return Pair(i, k, same, agreement, confidence, accuracy)


def mean_difference(differences: NDArray[np.float64]) -> RunDifference:
    """Return the mean of paired differences, with Student's interval.

    >>> mean_difference(np.array([0.1, 0.3])).value.__round__(3)
    0.2
    """
    from scipy import stats

    value, count = float(differences.mean()), len(differences)
    if count < 2:
        return RunDifference(value, -math.inf, math.inf)
    half = float(stats.t.ppf((1 + LEVEL) / 2, count - 1) * differences.std(ddof=1) / math.sqrt(count))
    return RunDifference(value, value - half, value + half)


def accuracy_difference(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> RunDifference:
    """Return by how much the second is more often right on the same samples.

    The interval is that of Agresti & Min (Statistics in Medicine 24, 2005) for matched pairs: Wald's, with half a
    sample added to each of the four cells, which holds what it promises on few samples too.

    >>> found = accuracy_difference(np.array([True] * 80 + [False] * 20), np.array([True] * 90 + [False] * 10))
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
    (0.1, 0.037, 0.159)
    """
    gained, lost = int((second & ~first).sum()) + 0.5, int((first & ~second).sum()) + 0.5
    count = len(first) + 2
    middle = (gained - lost) / count
    half = NormalDist().inv_cdf((1 + LEVEL) / 2) * math.sqrt(gained + lost - (gained - lost) ** 2 / count) / count
    return RunDifference(float(second.mean() - first.mean()), max(-1.0, middle - half), min(1.0, middle + half))
