"""How good a run is, from a few labels: which samples to label, and what their labels say of all others.

The samples are a stratified random sample without replacement. Those whose answer adaptation has changed are drawn
most often, since they alone tell whether it helped; then those of which the classifier is less sure. Within a stratum
each sample is as probable as any other, so strata that are weighed by their sizes give an unbiased estimate, whatever
the classifier's confidence is worth. docs/labels.md has what the design and the intervals were chosen by.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from safda.data.labels import LabelList, class_numbers, read_labels, sample_rows
from safda.errors import SafdaError, SafdaWarning
from safda.evaluation.answers import Answers, read_answers
from safda.text import csv_cell
from safda.training.checkpoint import RunFolder

LEVELS = (0.9, 0.95)  #: of the intervals
LEAST = 10  #: labels: fewer say next to nothing

CHANGED = "changed"  #: the stratum of samples to which source only gives another answer
SURE, LESS_SURE = "sure", "less sure"
_RATES = {SURE: 1.0, LESS_SURE: 1.5, CHANGED: 2.0}  # how often samples are drawn, beside each other
_LESS_SURE_SHARE = 3  # one in so many of the others
_LEAST_IN_STRATUM = 2  # one has no variance


# ----------------------------------------------------------------------------------------------------- the design


@dataclass(frozen=True)
class Drawn:
    """A random sample of a domain.

    Attributes:
        rows: the samples, in the order in which to label them: whoever stops early has some of every stratum.
        strata: the stratum of each.
        sizes: how many samples there are in its stratum, drawn or not.
        probabilities: how probable it was that this sample is drawn.
    """

    rows: NDArray[np.int64]
    strata: tuple[str, ...]
    sizes: tuple[int, ...]
    probabilities: tuple[float, ...]


def draw(
    confidence: NDArray[np.floating[Any]],
    changed: NDArray[np.bool_] | None,
    n: int,
    seed: int = 0,
    among: NDArray[np.bool_] | None = None,
) -> Drawn:
    """Draw samples to label. With the same seed, more of them are these and others.

    Args:
        confidence: of each sample, how sure the classifier is.
        changed: whether source only answers otherwise; None where there is no such classifier.
        n: how many to draw; all, if there are not so many.
        seed: decides every draw.
        among: which samples may be drawn; None: all.

    >>> drawn = draw(np.linspace(0.1, 0.9, 90), np.arange(90) < 30, n=20)
    >>> {name: drawn.strata.count(name) for name in sorted(set(drawn.strata))}
    {'changed': 9, 'less sure': 5, 'sure': 6}
    >>> round(sum(1 / p for p in drawn.probabilities))    # each stands for so many
    90
    """
    names = _strata(confidence, changed)
    among = np.ones(len(names), bool) if among is None else among
    order = np.random.default_rng(seed).random(len(names))
    members = {name: np.flatnonzero((names == name) & among) for name in _RATES}
    members = {name: rows[np.argsort(order[rows])] for name, rows in members.items() if len(rows)}
    counts = _allocation({name: len(rows) for name, rows in members.items()}, n)
    drawn = [
        ((rank + order[row]) / counts[name], row, name)
        for name, rows in members.items()
        for rank, row in enumerate(rows[: counts[name]])
    ]
    strata = tuple(name for _, _, name in sorted(drawn))
    return Drawn(
        np.array([row for _, row, _ in sorted(drawn)], dtype=np.int64),
        strata,
        tuple(len(members[name]) for name in strata),
        tuple(counts[name] / len(members[name]) for name in strata),
    )


def _strata(confidence: NDArray[np.floating[Any]], changed: NDArray[np.bool_] | None) -> NDArray[np.str_]:
    """Return the name of each sample's stratum; it does not depend on how many are drawn."""
    names = np.full(len(confidence), SURE, dtype="<U9")
    same = np.arange(len(names)) if changed is None else np.flatnonzero(~changed)
    least_sure_first = same[np.argsort(confidence[same], kind="stable")]
    names[least_sure_first[: len(same) // _LESS_SURE_SHARE]] = LESS_SURE
    if changed is not None:
        names[changed] = CHANGED
    return names


def _allocation(sizes: Mapping[str, int], n: int) -> dict[str, int]:
    """Share samples out among strata, by size and rate: one by one, so that none loses any when there are more."""
    counts = {name: min(size, _LEAST_IN_STRATUM) for name, size in sizes.items()}
    for _ in range(min(n, sum(sizes.values())) - sum(counts.values())):
        open_ = [name for name, size in sizes.items() if counts[name] < size]
        counts[max(open_, key=lambda name: sizes[name] * _RATES[name] / (counts[name] + 0.5))] += 1
    return counts


# -------------------------------------------------------------------------------------------------- the estimates


@dataclass(frozen=True)
class Estimate:
    """What is known of a share, or of the difference of two.

    Attributes:
        value: unbiased.
        interval_90, interval_95: between which it probably is.
    """

    value: float
    interval_90: tuple[float, float]
    interval_95: tuple[float, float]

    def __str__(self) -> str:
        low, high = self.interval_90
        return f"{self.value:.1%} (90%: {low:.1%} to {high:.1%})"


def estimate_share(sizes: Sequence[int], outcomes: Sequence[NDArray[np.bool_]]) -> Estimate:
    """Estimate which share of all samples is so, from some of each stratum.

    The interval is Wilson's for as many samples of a simple random sample as would have the same variance, with
    Student's t. The variance takes each stratum's share as if one more sample of all strata had been half so: where all
    that were drawn are alike, it would be zero otherwise.

    Args:
        sizes: how many samples each stratum has.
        outcomes: of those that were drawn from it, whether it is so.

    >>> str(estimate_share([100, 300], [np.array([True, False, False, True]), np.ones(16, bool)]))
    '87.5% (90%: 70.2% to 95.4%)'
    """
    weights, counts = np.array(sizes) / sum(sizes), np.array([len(each) for each in outcomes])
    right = np.array([each.sum() for each in outcomes])
    value = min(1.0, float((weights * right / counts).sum()))
    smoothed = (right + weights / 2) / (counts + weights)
    variance = _variance(weights, counts, sizes, smoothed * (1 - smoothed), np.maximum(counts - 1, 1))
    if not variance:  # everyone was asked
        return Estimate(value, (value, value), (value, value))
    overall = float((weights * smoothed).sum())
    alike = overall * (1 - overall) / variance
    freedom = max(int(counts.sum()) - len(counts), 1)
    return Estimate(value, *(_wilson(value, alike, stats.t.ppf((1 + level) / 2, freedom)) for level in LEVELS))


def _wilson(share: float, count: float, t: float) -> tuple[float, float]:
    """Return Wilson's interval; it holds the share itself, which rounding could leave just outside."""
    centre, scale = share + t * t / (2 * count), 1 + t * t / count
    half = t * np.sqrt(share * (1 - share) / count + t * t / (4 * count * count))
    low, high = float((centre - half) / scale), float((centre + half) / scale)
    return max(0.0, min(low, share)), min(1.0, max(high, share))


def estimate_difference(sizes: Sequence[int], gains: Sequence[NDArray[np.int64]], population: int) -> Estimate:
    """Estimate by how much one share is larger than another of the same samples.

    The interval is Bonett and Price's (2012) for paired shares: Wald's, once a gain and a loss are added.

    Args:
        sizes: how many samples each stratum has; those in which there can be no difference are left out.
        gains: of those that were drawn from it, 1 if it is so in the first case alone, −1 in the second alone, else 0.
        population: how many samples there are in all.

    >>> str(estimate_difference([100], [np.array([1, 1, 1, 0, 1, -1, 1, 0])], population=400))
    '12.5% (90%: 0.0% to 20.0%)'
    """
    if not sizes:
        return Estimate(0.0, (0.0, 0.0), (0.0, 0.0))
    weights, counts = np.array(sizes) / population, np.array([len(each) for each in gains])
    ups, downs = (np.array([(each == sign).sum() for each in gains]) for sign in (1, -1))
    value = float((weights * (ups - downs) / counts).sum())
    added = weights / weights.sum()
    up, down = ((each + added) / (counts + 2 * added) for each in (ups, downs))
    variance = _variance(weights, counts, sizes, up + down - (up - down) ** 2, counts + 2 * added)
    if not variance:
        return Estimate(value, (value, value), (value, value))
    centre, deviation = float((weights * (up - down)).sum()), float(np.sqrt(variance))
    intervals = []
    for level in LEVELS:
        half = float(stats.norm.ppf((1 + level) / 2)) * deviation
        intervals.append((min(value, max(-1.0, centre - half)), max(value, min(1.0, centre + half))))
    return Estimate(value, *intervals)


def _variance(
    weights: NDArray[np.float64],
    counts: NDArray[np.int64],
    sizes: Sequence[int],
    spread: NDArray[np.float64],
    divisors: NDArray[np.float64] | NDArray[np.int64],
) -> float:
    """Variance of a stratified mean, drawn without replacement: a stratum that was drawn whole has none."""
    return float((weights**2 * (1 - counts / np.array(sizes)) * spread / divisors).sum())


# -------------------------------------------------------------------------------------------------------- the run


def label_list(path: str | Path, n: int, seed: int = 0) -> dict[str, list[Any]]:
    """Return the samples of a run's target that are worth a label, as columns of ``labels.csv``.

    Args:
        path: the run folder.
        n: how many; all, if there are not so many.
        seed: decides every draw.
    """
    answers = read_answers(RunFolder.open(path))
    free = ~answers.learned
    if n < min(LEAST, int(free.sum())):
        raise SafdaError(f"--n {n}: so few labels say next to nothing; draw {LEAST} or more")
    if not free.any():
        raise SafdaError(f"{path}: has learned the label of every sample; there is none left to ask for")
    drawn = draw(answers.confidence, answers.changed, n, seed, free)
    known = {name: [cells[row] for row in drawn.rows] for name, cells in answers.columns.items()}
    return {
        **known,
        "stratum": list(drawn.strata),
        "stratum_size": list(drawn.sizes),
        "probability": list(drawn.probabilities),
        "label": [""] * len(drawn.rows),
    }


def keep_labels(columns: Mapping[str, list[Any]], file: str | Path) -> dict[str, list[Any]]:
    """Return a new list with the labels that a person has already filled in; none may get lost."""
    given = read_labels(file).given
    lost = [each for each in given if each not in columns["id"]]
    if lost:
        raise SafdaError(f"{file}: holds labels, and {len(lost)} of them would be lost; choose another name")
    return {**columns, "label": [given.get(each, "") for each in columns["id"]]}


def evaluate_labels(path: str | Path, file: str | Path) -> dict[str, Any]:
    """Estimate how good a run is on its target, from a list of labels.

    Args:
        path: the run folder.
        file: the list: from ``safda label`` of this run, or of another one of the same target.

    Returns:
        plain values: ``accuracy`` and, where there is a source-only classifier to compare with, ``source_only`` and
        ``difference``, as :class:`Estimate` has them; how many ``labels`` and ``samples`` there are; what the run said
        of itself without labels, if anything (``label_free``); and all of it in ``words``.
    """
    run = RunFolder.open(path)
    answers, labels = read_answers(run), read_labels(file)
    rows, truth = _labelled_rows(answers, labels, run.data["classes"])
    strata = _strata_of(labels, len(answers.ids))
    is_own = _is_own(answers, labels)
    _require_whole(labels, strata, answers, is_own)
    sizes, right = _by_stratum(strata, answers.predicted[rows] == truth)
    result: dict[str, Any] = {
        "labels": len(rows),
        "without_label": len(labels.ids) - len(rows),
        "samples": sum(sizes),
        "accuracy": estimate_share(sizes, right),
    }
    if answers.source_only is not None:
        _, before = _by_stratum(strata, answers.source_only[rows] == truth)
        gains = [one.astype(np.int64) - other for one, other in zip(right, before, strict=True)]
        differs = [name == CHANGED or not is_own for name in strata]
        result["source_only"] = estimate_share(sizes, before)
        result["difference"] = estimate_difference(_only(sizes, differs), _only(gains, differs), sum(sizes))
    result["label_free"] = _label_free(run.summary)
    result["words"] = _words(result)
    return {key: asdict(each) if isinstance(each, Estimate) else each for key, each in result.items()}


def _labelled_rows(
    answers: Answers, labels: LabelList, classes: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which samples have a label, and its class number; −1 where it is of none of the classes."""
    given = labels.given
    if not given:
        raise SafdaError(f"{labels.name}: holds no label yet; fill in the column 'label'")
    rows = np.array(sample_rows([csv_cell(each) for each in labels.ids], answers.ids, labels.name))
    rows = rows[[bool(label) for label in labels.labels]]
    learned = int(answers.learned[rows].sum())
    if learned:
        raise SafdaError(
            f"{labels.name}: the run has learned {learned} of its {len(rows)} labels, so what it says of those proves "
            "nothing; 'safda label' draws others"
        )
    return rows, np.array(class_numbers(list(given.values()), classes, labels.name))


def _strata_of(labels: LabelList, samples: int) -> dict[str, tuple[int, NDArray[np.int64]]]:
    """Return each stratum's size, and which of the labels are of it."""
    if not {"stratum", "stratum_size"} <= labels.columns.keys():
        told = (
            "has no columns 'stratum' and 'stratum_size', so its samples are taken to be drawn with equal probability"
        )
        warnings.warn(
            f"{labels.name}: {told}; if they were chosen, the estimate is of no worth", SafdaWarning, stacklevel=3
        )
        return {"": (samples, np.arange(len(labels.given)))}
    sizes: dict[str, int] = {}
    for name, cell in zip(labels.columns["stratum"], labels.columns["stratum_size"], strict=True):
        size = int(cell) if cell.strip().isdecimal() and len(cell) <= len(str(samples)) else 0
        if sizes.setdefault(name, size) != size or not 0 < size <= samples:
            raise SafdaError(f"{labels.name}: stratum {name!r} has no size, or several; draw the list again")
    names = [name for name, label in zip(labels.columns["stratum"], labels.labels, strict=True) if label]
    for name, size in sizes.items():
        if not 0 < names.count(name) <= size:
            many = "no sample" if name not in names else "more samples than there are"
            raise SafdaError(
                f"{labels.name}: {many} of the stratum {name!r} ({size} samples) has a label; label some more"
            )
    return {name: (size, np.flatnonzero(np.array(names) == name)) for name, size in sizes.items()}


def _require_whole(
    labels: LabelList, strata: Mapping[str, tuple[int, NDArray[np.int64]]], answers: Answers, is_own: bool
) -> None:
    """Refuse a list of too few labels, and one of which a whole stratum is gone: it would speak of the rest alone."""
    given, free = len(labels.given), int((~answers.learned).sum())
    if given < min(LEAST, free):
        raise SafdaError(f"{labels.name}: {given} labels say next to nothing; fill in {min(LEAST, free)} or more")
    told = sum(size for size, _ in strata.values())
    if is_own and "" not in strata and told != free:
        raise SafdaError(
            f"{labels.name}: its strata are of {told} samples, and there are {free}: lines of some stratum are gone; "
            "put them back, without a label if need be"
        )


def _by_stratum(
    strata: Mapping[str, tuple[int, NDArray[np.int64]]], outcomes: NDArray[np.bool_]
) -> tuple[list[int], list[NDArray[np.bool_]]]:
    return [size for size, _ in strata.values()], [outcomes[rows] for _, rows in strata.values()]


def _only(values: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    return [value for value, is_wanted in zip(values, wanted, strict=True) if is_wanted]


def _is_own(answers: Answers, labels: LabelList) -> bool:
    """Return whether a list was drawn from these very answers: then one stratum alone holds all that have changed."""
    rows = sample_rows([csv_cell(each) for each in labels.ids], answers.ids, labels.name)
    names = [name for name in ("class", "confidence", "source_only") if name in answers.columns]
    return all(labels.columns.get(name) == [answers.columns[name][row] for row in rows] for name in names)


def _words(result: Mapping[str, Any]) -> str:
    count = f"from {result['labels']} labels"
    if result["without_label"]:
        count += f" ({result['without_label']} of the list have none, and are taken to be missing by chance)"
    parts = [f"{result['accuracy']} of {result['samples']} samples are right, estimated {count}"]
    if "difference" in result:
        low, high = result["difference"].interval_90
        unsure = "may have helped or done harm" if low < high else "changed nothing on the whole"
        helped = "helped" if low > 0 else "did harm" if high < 0 else unsure
        points = [f"{100 * each:+.1f}" for each in (result["difference"].value, low, high)]
        parts.append(f"source only {result['source_only']}")
        parts.append(f"adapting {helped}: {points[0]} points (90%: {points[1]} to {points[2]})")
    if result["label_free"]:
        low, high = result["accuracy"].interval_95
        guess = result["label_free"]["accuracy"]
        held = "too low" if guess < low else "too high" if guess > high else "in keeping with these labels"
        parts.append(f"without labels it was estimated at {guess:.1%}, which is {held}")
    return "; ".join(parts)


def _label_free(summary: Mapping[str, Any] | None) -> dict[str, float] | None:
    """Return what a run said of its accuracy without labels, and between which bounds, where it did."""
    told = (summary or {}).get("estimate")
    if not isinstance(told, Mapping) or not isinstance(told.get("accuracy"), float):
        return None
    return {name: told[name] for name in ("accuracy", "low", "high") if isinstance(told.get(name), float)}
