"""Is the choice right? What a lab's runs with candidates say of it, data set by data set.

    safda bench suite --data DATA -o LAB            # and: safda bench CASES/hard.toml --data CASES -o LAB
    python -m benchmarks.choice LAB -o EVIDENCE     # EVIDENCE: a .jsonl file; what is in it is not computed again
    python -m benchmarks.choice -o docs/cells/default.jsonl     # the tables of docs/default.md and default-evidence.md

For every finished run of the row ``default`` the candidates are loaded, and judged by today's rule: a lab need not be
filled again when the rule changes. Target labels only describe what was taken, and name the oracle's best candidate.
Weights of the rule are also chosen anew with each data set left out in turn, and tried on that one.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lines import Line, add_line, read_lines
from safda.bench.lab import Cell, Lab, labs_in
from safda.bench.results import Results
from safda.classifier import Adapted
from safda.data import Domain, load_domain
from safda.evaluation.choice import RULE, SOURCE_ONLY, Evidence, Rule, decide, look_at
from safda.evaluation.verdict import neighbour_structure, summarise
from safda.methods.propagation import best_features, both_graphs
from safda.presets import CANDIDATES as CANDIDATES_TRIED
from safda.training.checkpoint import CANDIDATES

ROW = "default"
COUNTS = (0.0, 0.1, 0.2, 0.25, 0.3, 0.5)
#: What neighbours, information and agreement may count beside source labels, which part of a score is that of what a
#: candidate began with, by how many deviations a score must be above source only's, and above another candidate's.
RULES = [
    Rule(*numbers)
    for numbers in itertools.product(
        (0.0, 0.5, 1.0, 2.0), COUNTS, COUNTS, (0.5,), (0.0, 1.0, 2.0, 3.0), (0.0, 0.25, 1.0)
    )
]
HARM = 1.0  # points below source only
Taken = Callable[[Line], str]  #: what a rule takes in a run
Accuracies = dict[tuple[str, str], dict[int, float]]
BEGUN_WITH = {name: candidate.begins_with for name, candidate in CANDIDATES_TRIED.items()}
MEMBERS = {name for name, candidate in CANDIDATES_TRIED.items() if candidate.is_member}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("labs", type=Path, nargs="*", metavar="LAB")
    parser.add_argument("-o", "--out", type=Path, required=True, help="a .jsonl file of evidence; the same one goes on")
    options = parser.parse_args()
    lines = read_lines(options.out)
    known = {line["key"] for line in lines}
    labs = [lab for folder in options.labs for lab in labs_in(folder)]
    single = accuracies(labs, "mdd+saf")
    for lab in labs:
        for cell in lab.cells():
            if cell.row == ROW and cell.key not in known and lab.store.has_run(cell) and lab.store.result(cell):
                known.add(cell.key)  # two benchmarks of a lab may share it
                lines.append(evidence_of(lab, cell, single))
                add_line(options.out, lines[-1])
    print(by_data_set(lines), end="\n\n")
    print(by_candidate(lines), end="\n\n")
    best = rules_of_the_others(lines)
    print(by_rule(lines, best), end="\n\n")
    print(by_set_left_out(lines, best), end="\n\n")
    print(by_verdict(lines), end="\n\n")
    print(by_harm(lines))


def evidence_of(lab: Lab, cell: Cell, single: Accuracies) -> Line:
    """Judge one run's candidates by today's rule, and note what the single recipe has, where it was run too."""
    path, result = lab.store.path(cell), lab.store.result(cell)
    assert result is not None
    source, target = load_domain(cell.source), load_domain(cell.target).unlabelled()
    assert isinstance(source, Domain)
    assert isinstance(target, Domain)
    models = {folder.name: Adapted.load(folder) for folder in sorted((path / CANDIDATES).iterdir())}
    predictions = {name: model.predict(target) for name, model in models.items()}
    graphs = both_graphs(source, target, cell.recipe["pseudo_labels"].propagation)
    scaling, purity = best_features(source)
    to_take = {name: each for name, each in predictions.items() if name in tried(cell, purity)}
    seen = look_at(to_take, graphs)
    choice = decide(seen, BEGUN_WITH)
    before = predictions[SOURCE_ONLY]
    structure = neighbour_structure(models[SOURCE_ONLY], target, scaling)
    summary = summarise(predictions[choice.name], before, source.labelled("a choice")[0], structure, choice.to_dict())
    name, task = set_and_task(lab, cell.task)
    return {
        "key": cell.key,
        "set": name,
        "task": task,
        "seed": cell.seed,
        "samples": seen.samples,
        "seconds": result["seconds"],
        "accuracy": {name: 100 * value for name, value in result["candidates"].items()},
        "single": single.get((name, task), {}).get(cell.seed),
        "evidence": seen.in_graphs,
        "alike": seen.alike,
        "purity": purity,
        "chosen": choice.name,
        "verdict": summary["verdict"],
        "kappa": summary["agreement"]["kappa"],
        "structure": structure,
    }


def tried(cell: Cell, purity: float) -> set[str]:
    """Return which candidates of a run can be taken today: a lab may be of a time when others were tried."""
    return {SOURCE_ONLY, *cell.recipe.candidates(purity)} - MEMBERS


def set_and_task(lab: Lab, task: str) -> tuple[str, str]:
    """Return the names of a data set and of a task of it, in short."""
    ends = [end.rpartition("/") for end in task.split("→")]
    return (ends[0][0], " → ".join(end[2] for end in ends)) if ends[0][0] else (lab.benchmark.name, ends[0][2])


def accuracies(labs: list[Lab], row: str) -> Accuracies:
    """Return the accuracies of another row, by data set and task, and then by seed."""
    found: Accuracies = {}
    for lab in labs:
        results = Results.of(lab)
        for task in lab.benchmark.tasks:
            runs = results.of_cell(row, task)
            if runs:
                found[set_and_task(lab, task)] = {seed: run.accuracy for seed, run in runs.items()}
    return found


# --------------------------------------------------------------------------------------------------------- tables


def by_data_set(lines: list[Line]) -> str:
    """Tell, for each task and data set, what source only, single recipes, the choice and the oracle's best come to."""
    tasks: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        tasks.setdefault((line["set"], line["task"]), []).append(line)
    columns = "source only | `mdd` alone | single recipe | **the default** | oracle's best"
    beside = f"{columns} | each seed | worst, beside source only"
    rows = [f"| data | task | seeds | {columns} | taken |", "|---|---|" + "---:|" * 6 + "---|"]
    summaries = [f"| data | tasks | {beside} |", "|---|" + "---:|" * 7 + "---|"]
    for name in dict.fromkeys(each for each, _ in tasks):
        numbers = []
        for key in (key for key in tasks if key[0] == name):
            of_task = tasks[key]
            number = [
                float(np.mean([line["accuracy"][SOURCE_ONLY] for line in of_task])),
                float(np.mean([line["accuracy"]["mdd"] for line in of_task])),
                float(np.mean([line["single"] for line in of_task if line["single"] is not None] or [np.nan])),
                float(np.mean([line["accuracy"][line["chosen"]] for line in of_task])),
                float(np.mean([line["accuracy"][_oracle(line)] for line in of_task])),
            ]
            numbers.append((key[1], number))
            taken = ", ".join(dict.fromkeys(line["chosen"] for line in of_task))
            rows.append(f"| {name} | {key[1]} | {len(of_task)} | {_cells(number)} | {taken} |")
        mean = np.mean([number for _, number in numbers], axis=0).tolist()
        worst, task = min((number[3] - number[0], task) for task, number in numbers)
        spread = _spread([line for line in lines if line["set"] == name])
        summaries.append(f"| {name} | {len(numbers)} | {_cells(mean)} | {spread} | {worst:+.1f}, {task} |")
    return "\n".join([*rows, "", *summaries])


def _spread(lines: list[Line]) -> str:
    """Return what the default's mean over tasks is with each seed that all tasks have been run with."""
    tasks = {line["task"] for line in lines}
    of_seeds = ([line for line in lines if line["seed"] == seed] for seed in sorted({line["seed"] for line in lines}))
    whole = [of_seed for of_seed in of_seeds if {line["task"] for line in of_seed} == tasks]
    return ", ".join(f"{np.mean([line['accuracy'][line['chosen']] for line in each]):.1f}" for each in whole)


def _cells(numbers: list[float]) -> str:
    return " | ".join("" if np.isnan(number) else f"{number:.1f}" for number in numbers)


def by_candidate(lines: list[Line]) -> str:
    """Tell what each candidate alone comes to, data set by data set, and how far below source only it falls."""
    sets = list(dict.fromkeys(line["set"] for line in lines))
    names = [SOURCE_ONLY, *CANDIDATES_TRIED]
    rows = [f"| candidate | {' | '.join(sets)} | worst, beside source only |", "|---|" + "---:|" * len(sets) + "---|"]
    for name in names:
        own = [line for line in lines if name in line["accuracy"]]
        if not own:  # suits none of these data
            continue
        of_sets = [[line["accuracy"][name] for line in own if line["set"] == each] or [np.nan] for each in sets]
        gains = _gains(own, lambda line, name=name: name)  # type: ignore[misc]
        worst = own[int(gains.argmin())]
        numbers = _cells([float(np.mean(each)) for each in of_sets])
        rows.append(f"| `{name}` | {numbers} | {gains.min():+.1f}, {worst['set']}, {worst['task']} |")
    return "\n".join(rows)


def by_rule(lines: list[Line], best: dict[str, Rule]) -> str:
    """Compare rules: what each gains over source only, how often and how much it harms, and its regret."""
    first = Rule(neighbours=0.5, information=0.0, agreement=0.0, begun=0.0, deviations=0.0, tie=0.0)
    told = first._replace(information=0.25)
    agreed = told._replace(agreement=0.3)
    begun = agreed._replace(begun=0.5)
    clear = begun._replace(deviations=2.0)
    rules: dict[str, Taken] = {
        "always MDD": lambda line: "mdd",
        "always SAF on MDD's names, or on those of several": _saf,
        "highest information": _highest_of("information"),
        "highest agreement with source labels": _highest_of("source_labels"),
        "source labels + neighbours / 2": _by(first, graphs=1),
        "… + 0.25 information": _by(told, graphs=1),
        "… + 0.3 agreement": _by(agreed, graphs=1),
        "… half of it of what it began with": _by(begun, graphs=1),
        "… and by two deviations above source only": _by(clear, graphs=1),
        "… and in the graph that speaks for it, aligned or not": _by(clear),
        "**… and of those that cannot be told apart who began with most**": lambda line: str(line["chosen"]),
        "the same, by three deviations": _by(RULE._replace(deviations=3.0)),
        "the same, told apart by a whole deviation": _by(RULE._replace(tie=1.0)),
        "the same, numbers chosen on the other data sets": lambda line: _by(best[line["set"]])(line),
        "oracle's best candidate": _oracle,
    }
    rows = ["| rule | over source only | runs harmed by over a point | worst | regret |", "|---|---:|---:|---:|---:|"]
    with_single = [line for line in lines if line["single"] is not None]
    if with_single:
        gains = np.array([line["single"] - line["accuracy"][SOURCE_ONLY] for line in with_single])
        rows.append(f"| always the single recipe | {_told(with_single, gains)} | |")
    for name, rule in rules.items():
        regret = _mean_of_sets(lines, _regrets(lines, rule))
        rows.append(f"| {name} | {_told(lines, _gains(lines, rule))} | {regret:.1f} |")
    return "\n".join(rows)


def _told(lines: list[Line], gains: Any) -> str:
    harmed = int((gains < -HARM).sum())
    return f"{_mean_of_sets(lines, gains):+.1f} | {harmed} of {len(gains)} | {gains.min():+.1f}"


def _highest_of(what: str) -> Taken:
    """Return a rule that takes the highest of one piece of evidence, in the aligned graph."""
    return lambda line: max(line["evidence"][0], key=lambda name: float(line["evidence"][0][name][what]))


def _oracle(line: Line) -> str:
    """Take what target labels would, of those that can be taken."""
    return max((str(name) for name in line["evidence"][0]), key=line["accuracy"].__getitem__)


def _saf(line: Line) -> str:
    """Take SAF with each domain's own norm, in that of its two forms that the neighbours ask for."""
    return next(name for name in ("saf", "saf-ensemble") if name in line["evidence"][0])


def _by(rule: Rule, graphs: int = 2) -> Taken:
    """Return the choice by other numbers, in the aligned graph alone or in both."""
    return lambda line: decide(_evidence(line, graphs), BEGUN_WITH, rule).name


def _evidence(line: Line, graphs: int = 2) -> Evidence:
    return Evidence(line["samples"], line["alike"], line["evidence"][:graphs])


def _gains(lines: list[Line], rule: Taken) -> Any:
    return np.array([_gain(line, rule(line)) for line in lines])


def _gain(line: Line, name: str) -> float:
    return float(line["accuracy"][name] - line["accuracy"][SOURCE_ONLY])


def _regrets(lines: list[Line], rule: Taken) -> Any:
    return np.array([line["accuracy"][_oracle(line)] - line["accuracy"][rule(line)] for line in lines])


def _mean_of_sets(lines: list[Line], values: Any) -> float:
    """Return the mean over data sets of their means: a set with many tasks counts no more than another."""
    sets = np.array([line["set"] for line in lines])
    return float(np.mean([values[sets == name].mean() for name in np.unique(sets)]))


def rules_of_the_others(lines: list[Line]) -> dict[str, Rule]:
    """Choose the numbers for each data set on all others: by mean gain, less half of what the worst run loses."""
    sets = np.array([line["set"] for line in lines])
    seen = [_evidence(line) for line in lines]
    taken = [[decide(each, BEGUN_WITH, rule).name for each in seen] for rule in RULES]
    gains = np.array([[_gain(line, name) for line, name in zip(lines, of_rule, strict=True)] for of_rule in taken])
    best = {}
    for left_out in dict.fromkeys(sets.tolist()):
        names = [name for name in np.unique(sets) if name != left_out] or [left_out]
        means = np.mean([gains[:, sets == name].mean(1) for name in names], axis=0)
        worst = gains[:, np.isin(sets, names)].min(1)
        best[left_out] = RULES[int(np.argmax(means + 0.5 * np.minimum(0.0, worst)))]
    return best


def by_set_left_out(lines: list[Line], best: dict[str, Rule]) -> str:
    """Tell which numbers the other data sets choose for each, and what it gains by them and by today's."""
    columns = "neighbours | information | agreement | deviations | tie | over source only | by today's rule | worst"
    rows = [f"| left out | {columns} |", "|---|" + "---:|" * 8]
    for name, rule in best.items():
        own = [line for line in lines if line["set"] == name]
        gains, todays = _gains(own, _by(rule)), _gains(own, _by(RULE))
        numbers = f"{rule.neighbours} | {rule.information} | {rule.agreement} | {rule.deviations:g} | {rule.tie:g}"
        rows.append(f"| {name} | {numbers} | {gains.mean():+.1f} | {todays.mean():+.1f} | {gains.min():+.1f} |")
    return "\n".join(rows)


def by_verdict(lines: list[Line]) -> str:
    """Count the verdicts where what was taken harmed by more than a point, and where it did not."""
    verdicts = ("trust", "doubt", "do not trust")
    gains = _gains(lines, lambda line: str(line["chosen"]))
    rows = [f"| | {' | '.join(verdicts)} |", "|---|---:|---:|---:|"]
    for name, harmed in (("harmed by over a point", True), ("not harmed", False)):
        of_kind = [line["verdict"] for line, gain in zip(lines, gains, strict=True) if (gain < -HARM) == harmed]
        rows.append(f"| {name} | {' | '.join(str(of_kind.count(each)) for each in verdicts)} |")
    return "\n".join(rows)


def by_harm(lines: list[Line]) -> str:
    """List the runs that end more than a point below source only: by today's rule, or by the aligned graph alone."""
    rules: dict[str, Taken] = {
        "the aligned graph alone": _by(RULE, graphs=1),
        "**today's rule**": lambda line: str(line["chosen"]),
    }
    rows = ["| data | task | seed | by | taken | beside source only |", "|---|---|---:|---|---|---:|"]
    for name, rule in rules.items():
        for line, gain in zip(lines, _gains(lines, rule), strict=True):
            if gain < -HARM:
                where = f"{line['set']} | {line['task']} | {line['seed']}"
                rows.append(f"| {where} | {name} | {rule(line)} | {gain:+.1f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
