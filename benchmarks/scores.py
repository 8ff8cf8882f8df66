"""Which score without labels is to be trusted, and how good is the estimate of accuracy? By the runs of labs.

    python -m benchmarks.scores LAB… -o RESULTS.jsonl

A LAB is a folder of ``safda bench`` on features, such as ``safda bench suite --data DATA -o LAB`` makes. Every finished
run in it counts, and every candidate of a run that was a choice; what is known of one is a line of RESULTS, and is not
computed again. Target labels only tell, at the end, what was right. The runs of one task and one seed are what a user
would choose from. A data set is the folder that its domains are in.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.choice import BEGUN_WITH, tried
from benchmarks.lines import add_line, read_lines
from safda.bench.lab import Cell, labs_in
from safda.classifier import Adapted, Predictions
from safda.data import Domain, load_domain
from safda.evaluation.choice import SOURCE_ONLY, choose
from safda.evaluation.estimate import (
    LEVEL,
    WEIGHTS,
    Weights,
    agreement_with_source_labels,
    average_thresholded_confidence,
    beyond_chance,
    difference_of_confidences,
    estimate,
    likely_accuracy,
)
from safda.evaluation.scores import COSTS, SCORES, Outputs, scores
from safda.evaluation.scores.agreement import GRAPH
from safda.methods.propagation import best_features, both_graphs
from safda.training.checkpoint import CANDIDATES

Array = NDArray[np.float64]

NAMES = ["graph"]  # what the estimate is made of
_FEWEST_RUNS = 3  # of a task and a seed: with two, a rank correlation is 1 or −1


@dataclass(frozen=True)
class Run:
    """A classifier, what is known of it without target labels, and its accuracy.

    Attributes:
        key: of its cell in the lab, and its name there.
        data: the data set.
        task: source and target.
        name: its recipe: the row and, of a candidate, its name.
        seed: of the run.
        taken: whether it is what a user would have got: the only one, or the one of several that was chosen.
        accuracy: the oracle's, from 0 to 1.
        scores: name → value.
        seen: what an estimate of accuracy may be made of: name → share.
        samples, classes: of the target; all there are.
    """

    key: str
    data: str
    task: str
    name: str
    seed: int
    taken: bool
    accuracy: float
    scores: dict[str, float]
    seen: dict[str, float]
    samples: int
    classes: int


# ------------------------------------------------------------------------------------------------ from labs to lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("labs", type=Path, nargs="+", metavar="LAB")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="RESULTS")
    options = parser.parse_args()
    known = {run.key for run in read(options.out)}
    for run in look_at(options.labs, known):
        add_line(options.out, asdict(run))
    print(report(read(options.out)))


def read(file: Path) -> list[Run]:
    """Read the lines of a file, if there is one."""
    return [Run(**line) for line in read_lines(file)]


def look_at(labs: Iterable[Path], known: set[str]) -> Iterator[Run]:
    """Look at every run that is not known yet."""
    by_task: dict[tuple[str, str], dict[tuple[Cell, str], Path]] = defaultdict(dict)
    for lab in (lab for path in labs for lab in labs_in(path)):
        for cell in lab.cells():
            if lab.store.has_run(cell) and lab.store.result(cell):
                own = lab.store.path(cell)
                candidates = {folder.name: folder for folder in sorted((own / CANDIDATES).glob("*"))}
                for name, folder in (candidates or {"": own}).items():  # what was taken is one of them
                    by_task[cell.source, cell.target][cell, name] = folder
    for models in by_task.values():
        if any(_key(cell, name) not in known for cell, name in models):
            yield from _look_at_task(models, known)


def _key(cell: Cell, candidate: str) -> str:
    return f"{cell.key}/{candidate}"


def _look_at_task(models: dict[tuple[Cell, str], Path], known: set[str]) -> Iterator[Run]:
    """Look at the runs of one task: at all of them, since each is compared with those of other seeds."""
    first = next(iter(models))[0]
    source, labelled = load_domain(first.source), load_domain(first.target)
    target = labelled.unlabelled()
    assert isinstance(source, Domain)
    assert isinstance(target, Domain)
    graphs = both_graphs(source, target, GRAPH)  # held, so that all runs find them made
    _, purity = best_features(source)
    answers: dict[Cell, dict[str, Predictions]] = defaultdict(dict)  # cell → candidate, or "" → what it says
    for (cell, name), folder in models.items():
        if not name or name in tried(cell, purity):
            answers[cell][name] = Adapted.load(folder).predict(target)
    for cell, beside in answers.items():
        taken = choose(beside, graphs, BEGUN_WITH).name if SOURCE_ONLY in beside else ""
        for name, predictions in beside.items():
            if _key(cell, name) in known:
                continue
            adapted = Adapted.load(models[cell, name])
            other_seeds = [said[name] for other, said in answers.items() if other is not cell and other.row == cell.row]
            outputs = Outputs.of(adapted, source, predictions, target, partial(list, other_seeds))
            yield Run(
                _key(cell, name),
                Path(cell.source).parent.name,
                f"{Path(cell.source).stem} → {Path(cell.target).stem}",
                f"{cell.row}/{name}" if name else cell.row,
                cell.seed,
                name == taken,
                adapted.compare(predictions, labelled).accuracy,
                _rounded(scores(outputs, COSTS)),
                _rounded(_seen(outputs, source, target, beside)),
                len(predictions.ids),
                len(adapted.classes),
            )


def _seen(outputs: Outputs, source: Domain, target: Domain, beside: dict[str, Predictions]) -> dict[str, float]:
    """Return all that an estimate of accuracy could be made of; ``beside``: all candidates of the run."""
    answers = outputs.target.logits.argmax(1)
    on_source, labels = outputs.predict_source() if outputs.predict_source else (None, None)
    assert on_source is not None
    assert labels is not None
    right = on_source.logits.argmax(1) == labels.numpy()
    confidences = on_source.confidence, right, outputs.target.confidence
    same = {name: float((answers == each.logits.argmax(1)).mean()) for name, each in beside.items()}
    others = [share for name, share in same.items() if beside[name] is not outputs.target]
    return {
        "confidence": float(outputs.target.confidence.mean()),
        "atc": average_thresholded_confidence(*confidences),
        "doc": difference_of_confidences(*confidences),
        "graph": agreement_with_source_labels(outputs.target, source, target),
        **({"source_only": same[SOURCE_ONLY]} if SOURCE_ONLY in same else {}),
        **({"others": float(np.mean(others))} if others else {}),
    }


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in values.items()}


# ------------------------------------------------------------------------------------------------- from lines to tables


def report(runs: Sequence[Run]) -> str:
    """Return all tables."""
    return "\n\n".join([_scores_table(runs), _left_out_table(runs), _methods_table(runs), _estimate_table(runs)])


Group = list[Run]


def groups(runs: Iterable[Run]) -> dict[str, list[Group]]:
    """Return for each data set the groups of runs that a user would choose from."""
    by_choice: dict[tuple[str, str, int], Group] = defaultdict(list)
    for run in runs:
        by_choice[run.data, run.task, run.seed].append(run)
    found: dict[str, list[Group]] = defaultdict(list)
    for (data, *_), group in sorted(by_choice.items()):
        if len(group) >= _FEWEST_RUNS:
            found[data].append(group)
    return found


def regret(group: Group, score: str) -> float:
    """Return how many points the run that a score takes is below the best one; the score's worst, if several are equal.

    >>> pairs = ((0.8, 1.0), (0.9, 0.5), (0.7, 1.0))
    >>> runs = [Run("", "", "", "", 0, True, accuracy, {"s": value}, {}, 9, 2) for accuracy, value in pairs]
    >>> round(regret(runs, "s"), 6)
    20.0
    """
    highest = max(run.scores[score] for run in group)
    taken = min(run.accuracy for run in group if run.scores[score] == highest)
    return 100 * (max(run.accuracy for run in group) - taken)


def correlation(group: Group, score: str) -> float:
    """Return the rank correlation of a score with the accuracy; 0 where one of them is the same for all.

    >>> runs = [Run("", "", "", "", 0, True, accuracy, {"s": -accuracy}, {}, 9, 2) for accuracy in (0.7, 0.8, 0.9)]
    >>> round(correlation(runs, "s"), 6)
    -1.0
    """
    values = [[run.scores[score] for run in group], [run.accuracy for run in group]]
    if any(np.ptp(each) == 0 for each in values):
        return 0.0
    return float(spearmanr(*values).statistic)


def _means(runs: Sequence[Run], measure: Callable[[Group, str], float]) -> dict[str, dict[str, float]]:
    """Return for each score its mean over the groups of each data set, where all runs have it."""
    found: dict[str, dict[str, float]] = {}
    for name in SCORES:
        of_data = {
            data: [measure(group, name) for group in some if all(name in run.scores for run in group)]
            for data, some in groups(runs).items()
        }
        found[name] = {data: float(np.mean(values)) for data, values in of_data.items() if values}
    return {name: means for name, means in found.items() if means}


def _scores_table(runs: Sequence[Run]) -> str:
    """Return a line for each score: rank correlation and regret, on average over data sets and of each."""
    ranks, regrets, sets = _means(runs, correlation), _means(runs, regret), list(groups(runs))
    chance = {
        data: float(np.mean([100 * (max(accuracies) - np.mean(accuracies)) for accuracies in _accuracies(some)]))
        for data, some in groups(runs).items()
    }
    lines = [
        f"| score | rank correlation | regret | {' | '.join(sets)} |",
        "|---|" + "---:|" * (2 + len(sets)),
    ]
    by_regret = sorted(regrets, key=lambda name: np.mean(list(regrets[name].values())))
    for name in by_regret:
        cells = [_number(regrets[name].get(data)) for data in sets]
        mean_rank, mean_regret = (np.mean(list(means[name].values())) for means in (ranks, regrets))
        lines.append(f"| `{name}` | {mean_rank:.2f} | {mean_regret:.1f} | {' | '.join(cells)} |")
    taken = {
        data: float(np.mean([_regret_of_taken(group) for group in some if any(run.taken for run in group)] or [np.nan]))
        for data, some in groups(runs).items()
    }
    cells = [_number(taken[data]) for data in sets]
    lines.append(f"| **the default's choice** | | {np.mean(list(taken.values())):.1f} | {' | '.join(cells)} |")
    cells = [_number(chance[data]) for data in sets]
    lines.append(f"| one at random | 0 | {np.mean(list(chance.values())):.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _regret_of_taken(group: Group) -> float:
    return 100 * (max(run.accuracy for run in group) - next(run.accuracy for run in group if run.taken))


def _accuracies(some: Iterable[Group]) -> list[list[float]]:
    return [[run.accuracy for run in group] for group in some]


def _left_out_table(runs: Sequence[Run]) -> str:
    """Return a line for each data set: the score that the others would have chosen, and its regret there."""
    regrets = {name: means for name, means in _means(runs, regret).items() if set(means) == set(groups(runs))}
    lines = ["| left out | by the others | its regret there | least possible |", "|---|---|---:|---:|"]
    for data in groups(runs):
        best = min(regrets, key=lambda name: np.mean([value for each, value in regrets[name].items() if each != data]))
        least = min(regrets, key=lambda name: regrets[name][data])
        lines.append(f"| {data} | `{best}` | {regrets[best][data]:.1f} | {regrets[least][data]:.1f} (`{least}`) |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


# ------------------------------------------------------------------------------------------------------- the estimate

#: What may stand for the accuracy → its name among what was seen of a run.
METHODS = {
    "mean confidence": ["confidence"],
    "average thresholded confidence": ["atc"],
    "difference of confidences": ["doc"],
    "agreement with source only": ["source_only"],
    "agreement with other candidates": ["others"],
    "**agreement with source labels**": NAMES,
    "… and ATC": [*NAMES, "atc"],
    "… and with other candidates": [*NAMES, "others"],
}


def _methods_table(runs: Sequence[Run]) -> str:
    """Return a line for each way to estimate: its mean absolute error as it is, and calibrated on other data sets."""
    sets = list(dict.fromkeys(run.data for run in runs))
    head = " | ".join(sets)
    lines = [f"| by | as it is | calibrated | {head} |", "|---|" + "---:|" * (2 + len(sets))]
    for title, names in METHODS.items():
        some = [run for run in runs if all(name in run.seen for name in names)]
        raw = _mean_errors(some, [run.seen[names[0]] for run in some]) if len(names) == 1 else {}
        errors = _mean_errors(some, left_out(some, names))
        cells = " | ".join(_number(errors.get(data)) for data in sets)
        mean = _number(float(np.mean(list(raw.values()))) if raw else None)
        lines.append(f"| {title} | {mean} | {np.mean(list(errors.values())):.1f} | {cells} |")
    return "\n".join(lines)


def _mean_errors(runs: Sequence[Run], estimates: Sequence[float] | Array) -> dict[str, float]:
    """Return the mean absolute error on each data set, in points."""
    found = defaultdict(list)
    for run, value in zip(runs, estimates, strict=True):
        found[run.data].append(100 * abs(value - run.accuracy))
    return {data: float(np.mean(values)) for data, values in found.items()}


def left_out(runs: Sequence[Run], names: Sequence[str]) -> Array:
    """Estimate the accuracy of each run by a line that was fitted to the runs of all other data sets."""
    estimates = np.zeros(len(runs))
    for data in {run.data for run in runs}:
        line = fit([run for run in runs if run.data != data], names)
        for row, run in enumerate(runs):
            if run.data == data:
                estimates[row] = _on_line(run, names, line)
    return estimates


def fit(runs: Sequence[Run], names: Sequence[str]) -> Array:
    """Return a constant and a weight for each of what was seen, beyond chance; by least squares, data sets alike.

    >>> pairs = ((0.6, 0.5), (0.8, 0.75), (0.9, 0.875))
    >>> runs = [Run("", "", "", "", 0, True, accuracy, {}, {"a": seen}, 9, 2) for accuracy, seen in pairs]
    >>> fit(runs, ["a"]).round(6).tolist()
    [0.2, 0.8]
    """
    rows = np.array([_beyond(run, names) for run in runs])
    goal = np.array([beyond_chance(run.accuracy, run.classes) for run in runs])
    weight = np.sqrt(1 / _sizes(runs))
    line: Array = np.linalg.lstsq(rows * weight[:, None], goal * weight, rcond=None)[0]
    return line


def _sizes(runs: Sequence[Run]) -> Array:
    """Return for each run how many its data set has."""
    return np.array([float(sum(other.data == run.data for other in runs)) for run in runs])


def _beyond(run: Run, names: Sequence[str]) -> list[float]:
    return [1.0, *(beyond_chance(run.seen[name], run.classes) for name in names)]


def _on_line(run: Run, names: Sequence[str], line: Array) -> float:
    return likely_accuracy(float(np.dot(_beyond(run, names), line)), run.classes)


def weights_of(runs: Sequence[Run]) -> Weights:
    """Return the weights of the estimate, fitted to runs; its reach is that of errors on data sets left out."""
    errors = np.abs(left_out(runs, NAMES) - [run.accuracy for run in runs])
    order = np.argsort(errors)
    shares = np.cumsum((1 / _sizes(runs))[order]) / len({run.data for run in runs})
    reach = errors[order][min(int(np.searchsorted(shares, LEVEL)), len(runs) - 1)]
    constant, agreement = fit(runs, NAMES).round(3).tolist()
    return Weights(constant, agreement, round(float(reach), 3))


def _estimate_table(runs: Sequence[Run]) -> str:
    """Return how far the estimate is off, how often its interval holds the truth, each data set left out in turn."""
    columns = "runs | mean error | in the interval | taken: mean error | in the interval | half width"
    lines = [f"| left out | {columns} |", "|---|" + "---:|" * 6]
    everything: dict[str, list[float]] = defaultdict(list)
    for data in dict.fromkeys(run.data for run in runs):
        weights = weights_of([run for run in runs if run.data != data])
        own = [run for run in runs if run.data == data]
        found = [estimate(run.seen[NAMES[0]], run.classes, run.samples, weights) for run in own]
        error = [100 * abs(each.accuracy - run.accuracy) for each, run in zip(found, own, strict=True)]
        inside = [each.low <= run.accuracy <= each.high for each, run in zip(found, own, strict=True)]
        taken = [row for row, run in enumerate(own) if run.taken]
        values = {
            "error": float(np.mean(error)),
            "inside": float(np.mean(inside)),
            "taken error": float(np.mean([error[row] for row in taken])),
            "taken inside": float(np.mean([inside[row] for row in taken])),
            "width": float(np.mean([50 * (each.high - each.low) for each in found])),
        }
        for name, value in values.items():
            everything[name].append(value)
        lines.append(f"| {data} | {len(own)} | {_estimate_cells(values)} |")
    means = {name: float(np.mean(values)) for name, values in everything.items()}
    lines.append(f"| **on average** | {len(runs)} | {_estimate_cells(means)} |")
    return "\n".join([*lines, "", f"Fitted to all of them: `{weights_of(runs)}`; in use: `{WEIGHTS}`."])


def _estimate_cells(values: dict[str, float]) -> str:
    return (
        f"{values['error']:.1f} | {values['inside']:.0%} | {values['taken error']:.1f} | {values['taken inside']:.0%} "
        f"| {values['width']:.1f}"
    )


if __name__ == "__main__":
    main()
