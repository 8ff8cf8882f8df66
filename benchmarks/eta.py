"""Is there an η that earns its place? Learned ones beside a random one, η = 1, and oracles for scale.

    python -m benchmarks.eta --data DATA -o RUNS.jsonl [--sets surf] [--tasks A->B] [--rows beta oracle] [--seeds 5]
    python -m benchmarks.hard_cases --data DATA/office31_resnet50 -o CASES
    python -m benchmarks.eta --data CASES --benchmark CASES/hard.toml -o RUNS.jsonl

Every task of a benchmark, every η, every seed: one line of JSON each. Runs that are there are not made again, so a
study that was stopped goes on, and two may fill one file at a time with different ``--sets``. Then tables of all runs
that are there: mean accuracy on each data set, and paired differences to η ~ Beta and to η = 1 with their t intervals
over seeds.

All runs have the recipe of ``--no-choice``, with the principal components that the default's candidates have, and one
thread. ``etas.py`` says what each η is. Oracles look at target labels in training.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import safda
from benchmarks.data_sets import data_sets, domains_of
from benchmarks.etas import BETA, LookAheadSAF, OracleSAF, ReliabilitySAF, stand_ins
from benchmarks.lines import Line, add_line, read_lines
from safda.bench.benchmark import Benchmark, load_benchmark
from safda.bench.cells import limit_threads
from safda.bench.results import paired_interval
from safda.data import Domain, load_domain
from safda.errors import SafdaError
from safda.knobs import to_plain
from safda.methods.base import Method
from safda.methods.saf_method import SAFMethod
from safda.recipe import preset

KEY = ("set", "task", "row", "seed", "steps")  #: what tells one run from another
SETS = ("office31", "office-home", "surf", "digits")
COMPONENTS = 256  # principal components of features: half the time
SIGNAL = 2.0  # standard deviations between what an erring oracle is told of right and wrong labels: an AUROC of 0.92


# ----------------------------------------------------------------------------------------------------- rows


Make = Callable[[dict[str, Any], Domain, Domain], SAFMethod]  #: from SAF's knobs, stand-ins and the labelled target


@dataclass(frozen=True)
class Row:
    """One η.

    Attributes:
        title: what the tables call it.
        changes: knobs by path, in the recipe that all share.
        make: makes SAF, where the package has no such η.
        holds_out: whether a part of the source is held out for stand-ins.
    """

    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    make: Make | None = None
    holds_out: bool = False


BASELINES = ("beta", "one")
ROWS: dict[str, Row] = {
    "beta": Row(f"Beta({BETA}, {BETA})"),
    "one": Row("η = 1", {"saf.eta.source": "constant", "saf.eta.constant": 1.0}),
    "learned": Row("learned, as in the paper", {"saf.eta.source": "learned"}),
    "held-out": Row("Beta, without the samples that are held out below", holds_out=True),
    "reliability": Row(
        "reliability, η = σ(r₁ − r₂)",
        make=lambda knobs, there, _: ReliabilitySAF(there, literal=True, **knobs),
        holds_out=True,
    ),
    "tilted": Row(
        "reliability, Beta tilted by it", make=lambda knobs, there, _: ReliabilitySAF(there, **knobs), holds_out=True
    ),
    "beyond": Row(
        "… beyond the graph's sureness",
        make=lambda knobs, there, _: ReliabilitySAF(there, beyond=True, **knobs),
        holds_out=True,
    ),
    "look-ahead": Row("look-ahead", make=lambda knobs, *_: LookAheadSAF(**knobs)),
    "oracle": Row("oracle", make=lambda knobs, _, target: OracleSAF(_truth(target), **knobs)),
    "erring-oracle": Row(
        "oracle that errs at random", make=lambda knobs, _, target: OracleSAF(_truth(target), SIGNAL, **knobs)
    ),
    "told": Row(
        "reliability learned from target labels, Beta tilted by it",
        make=lambda knobs, _, target: ReliabilitySAF(target, **knobs),
    ),
    "told-beyond": Row(
        "… beyond the graph's sureness", make=lambda knobs, _, target: ReliabilitySAF(target, beyond=True, **knobs)
    ),
}


def _truth(target: Domain) -> Tensor:
    return target.labelled("an oracle")[0]


def fit(row: Row, source: Domain, target: Domain, seed: int, changes: Mapping[str, Any] | None = None) -> Line:
    """Train once, in memory; give the accuracy at the last step, η at the end and what it took.

    Args:
        row: which η.
        source: a labelled domain.
        target: a labelled domain, its classes numbered as the source's; what trains does not see them but by an oracle.
        seed: of the run.
        changes: further knobs by path.
    """
    recipe = preset("default").single()
    recipe = recipe.override({"network.components": COMPONENTS, "seed": seed, **row.changes, **(changes or {})})
    left, there = stand_ins(source, target) if row.holds_out else (source, source)
    methods: list[str | Method] | None = ["mdd", row.make(to_plain(recipe["saf"]), there, target)] if row.make else None
    last: dict[str, float] = {}

    def callback(step: int, metrics: Mapping[str, float] | None) -> None:
        last.update(metrics or {})

    began = time.process_time()
    adapted = safda.fit(left, target, recipe=recipe, methods=methods, callback=callback, cpu=True)
    return {
        "accuracy": round(100 * adapted.evaluate(target).accuracy, 3),
        "eta": [round(last[f"saf/eta_{each}"], 3) for each in ("mean", "std")],
        "cpu_seconds": round(time.process_time() - began, 1),
    }


# ---------------------------------------------------------------------------------------------------- study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="a folder with the benchmark's files")
    parser.add_argument("-o", "--out", type=Path, required=True, help="a file for lines of JSON; runs in it are kept")
    parser.add_argument("--benchmark", default="suite", help="a benchmark's name or .toml file (default: suite)")
    parser.add_argument("--sets", nargs="+", help=f"data sets (default: of the suite {', '.join(SETS)})")
    parser.add_argument("--tasks", nargs="+", metavar="S->T", help="tasks of the benchmark (default: all of these)")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    try:
        benchmark = load_benchmark(options.benchmark)
        by_default = SETS if benchmark.name == "suite" and not options.tasks else None
        sets = data_sets(benchmark, options.sets or by_default, options.tasks)
        with limit_threads(1):
            fill(options.out, benchmark, sets, options.data, options.rows, range(options.seeds), options.steps)
    except SafdaError as error:
        raise SystemExit(f"error: {error}") from None
    lines = [line for line in read_lines(options.out) if line["steps"] == options.steps]
    for baseline in BASELINES:
        print(f"\nBeside {ROWS[baseline].title}:\n\n{table(lines, baseline)}")


def fill(
    out: Path,
    benchmark: Benchmark,
    sets: Mapping[str, Sequence[str]],
    data: Path,
    rows: Sequence[str],
    seeds: Iterable[int],
    steps: int,
) -> None:
    """Make the runs that are not there yet: all of one seed before any of the next."""
    there = {tuple(line[each] for each in KEY) for line in read_lines(out)}
    every = [(name, task, row, seed, steps) for seed in seeds for name in sets for task in sets[name] for row in rows]
    for key in every:
        if key not in there:
            _, task, row, seed, _ = key
            source, target = load_pair(*domains_of(benchmark, task, data))
            line = {**dict(zip(KEY, key, strict=True)), **fit(ROWS[row], source, target, seed, {"steps": steps})}
            add_line(out, line)
            print(line, file=sys.stderr, flush=True)


def load_pair(source: str | Path, target: str | Path) -> tuple[Domain, Domain]:
    """Read both domains, the target's classes numbered as the source's."""
    here, there = load_domain(source), load_domain(target)
    assert isinstance(here, Domain)
    assert isinstance(there, Domain)
    _, classes = here.labelled("a source")
    labels, names = there.labelled("a score")
    number = torch.tensor([classes.index(name) for name in names])
    return here, replace(there, labels=number[labels], classes=classes)


def table(lines: Sequence[Line], baseline: str) -> str:
    """Write a table in Markdown: the baseline's mean accuracy, and of others the paired difference and its interval."""
    sets = list(dict.fromkeys(line["set"] for line in lines))
    baselines = {(line["task"], line["seed"]): line for line in lines if line["row"] == baseline}
    rows = [f"| η | {' | '.join(sets)} | pairs | time |", "|---|" + "---:|" * (len(sets) + 2)]
    for name, row in ROWS.items():
        ours = [line for line in lines if line["row"] == name and (line["task"], line["seed"]) in baselines]
        pairs = [(line, baselines[line["task"], line["seed"]]) for line in ours]
        if pairs:
            cells = [cell([pair for pair in pairs if pair[0]["set"] == each], name == baseline) for each in sets]
            longer = np.median([mine["cpu_seconds"] / theirs["cpu_seconds"] for mine, theirs in pairs])
            rows.append(f"| {row.title} | {' | '.join(cells)} | {len(pairs)} | {longer:.2f} |")
    return "\n".join(rows)


def cell(pairs: Sequence[tuple[Line, Line]], is_baseline: bool) -> str:
    """Tell the mean accuracy of the baseline, or the mean difference to it with its interval over seeds."""
    tasks: dict[str, list[float]] = {}
    for ours, theirs in pairs:
        worth = ours["accuracy"] - (0 if is_baseline else theirs["accuracy"])
        tasks.setdefault(ours["task"], []).append(worth)
    if not tasks:
        return ""
    if is_baseline:
        return f"{np.mean([np.mean(each) for each in tasks.values()]):.1f}"
    found = paired_interval(list(tasks.values()))
    interval = " [{:+.1f}, {:+.1f}]".format(*found.interval) if found.interval else ""
    return f"{found.mean:+.1f}{interval}"


if __name__ == "__main__":
    main()
