"""How many steps MDD needs on frozen features, and which reading of the paper's ramps: the preset's operating point.

    python -m benchmarks.operating_point --data office31_resnet50/ -o CURVES.jsonl [--readings own printed] [--seeds 1]

MDD in the preset ``paper-frozen``, over 500 to 10,000 steps on three tasks of Office-31, with λ_D

* as printed, 0.1 · tanh(10 t/T), where T is the run's own length, as the preset has it;
* as printed, where T is 100,000, the paper's, however long the run is;
* as in the released code, 0.1 · tanh(t/1000).

The learning rate falls as (1 + 0.0002 t)^−0.75 in each. In the second and the third nothing knows how long the run will
be, so one of 10,000 steps is looked at on its way; in the first each length is a run. Target labels describe the curve.

One line of JSON a run; those that are there are not made again, so a study that was stopped goes on, and two may fill
one file at a time with different ``--readings``. Prints a table, and draws CURVES.png beside the file.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.lines import Line, add_line, read_lines
from safda.bench.cells import limit_threads
from safda.classifier import Adapted
from safda.data import Domain, load_domain
from safda.errors import SafdaError
from safda.model import AdaptationModel
from safda.recipe import Recipe, preset
from safda.training.loop import make_accelerator, train
from safda.turns import borrowed_generator

STEPS = (500, 1000, 2000, 3000, 5000, 7000, 10_000)
TASKS = {"A→W": ("amazon", "webcam"), "A→D": ("amazon", "dslr"), "W→A": ("webcam", "amazon")}


@dataclass(frozen=True)
class Reading:
    """How one may read the paper's ramp of λ_D.

    Attributes:
        title: what the table calls it.
        preset: the preset that has it.
        change: knobs by path, in that preset.
        depends_on_length: whether a step differs by how many are still to come.
    """

    title: str
    preset: str
    change: Mapping[str, Any] = field(default_factory=dict)
    depends_on_length: bool = False

    @property
    def runs(self) -> list[tuple[int, ...]]:
        """The steps that each run is looked at, the last of them its length."""
        return [(steps,) for steps in STEPS] if self.depends_on_length else [STEPS]

    def recipe(self, steps: int, seed: int) -> Recipe:
        """Return the recipe of one run."""
        return preset(self.preset).override({**self.change, "methods": ["mdd"], "steps": steps, "seed": seed})


READINGS = {
    "own": Reading("as printed, T the run's", "paper-frozen", depends_on_length=True),
    "printed": Reading("as printed, T = 100,000", "paper-frozen", {"ramp_steps": 100_000}),
    "released": Reading("as released", "released-frozen"),
}


def curve(recipe: Recipe, source: Domain, target: Domain, at: Collection[int]) -> dict[int, float]:
    """Train once, in memory; return the accuracy (%) on the target after each of these numbers of steps.

    Args:
        recipe: whose ``steps`` is the length of the run.
        source: a labelled domain of features.
        target: a labelled one; training does not see its labels.
        at: when to look.
    """
    _, classes = source.labelled("a training source")
    with borrowed_generator(recipe.seed):
        model = AdaptationModel(recipe, source.blank(), len(classes))
    adapted, found = Adapted(model, classes, {}), {}

    def look(step: int, metrics: Mapping[str, float] | None) -> None:
        if step in at:
            model.eval()
            found[step] = 100 * adapted.compare(adapted.answer(target), target).accuracy
            model.train()

    train(model, source, target.unlabelled(), accelerator=make_accelerator(recipe, cpu=True), callback=look)
    return found


# ---------------------------------------------------------------------------------------------------- study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="a folder with amazon.npz, dslr.npz and webcam.npz")
    parser.add_argument("-o", "--out", type=Path, required=True, help="a file for lines of JSON; runs in it are kept")
    parser.add_argument("--readings", nargs="+", choices=list(READINGS), default=list(READINGS))
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    try:
        with limit_threads(1):
            fill(options.out, options.data, options.readings, options.seeds)
    except SafdaError as error:
        raise SystemExit(f"error: {error}") from None
    lines = read_lines(options.out)
    print(table(lines))
    draw(lines, options.out.with_suffix(".png"))


def fill(out: Path, data: Path, readings: Sequence[str], seeds: int) -> None:
    """Make the runs that are not there yet."""
    there = {(line["reading"], line["task"], line["seed"], line["steps"]) for line in read_lines(out)}
    every = [
        (name, task, seed, at)
        for seed in range(seeds)
        for name in readings
        for task in TASKS
        for at in READINGS[name].runs
    ]
    for name, task, seed, at in every:
        if (name, task, seed, at[-1]) not in there:
            source, target = (load_domain(data / f"{domain}.npz") for domain in TASKS[task])
            assert isinstance(source, Domain)
            assert isinstance(target, Domain)
            found = curve(READINGS[name].recipe(at[-1], seed), source, target, at)
            line = {"reading": name, "task": task, "seed": seed, "steps": at[-1], "accuracy": found}
            add_line(out, line)
            print(line, file=sys.stderr, flush=True)


def means(lines: Sequence[Line], reading: str) -> dict[str, dict[int, float]]:
    """Return the mean over seeds of each task after each number of steps, and of tasks where all are there."""
    found = {}
    for task in TASKS:
        of_task = [line["accuracy"] for line in lines if (line["reading"], line["task"]) == (reading, task)]
        values = {steps: [float(run[str(steps)]) for run in of_task if str(steps) in run] for steps in STEPS}
        found[task] = {steps: statistics.fmean(runs) for steps, runs in values.items() if runs}
    complete = [steps for steps in STEPS if all(steps in of_task for of_task in found.values())]
    return {**found, "mean": {steps: statistics.fmean(found[task][steps] for task in TASKS) for steps in complete}}


def _there(lines: Sequence[Line]) -> dict[str, Reading]:
    names = {line["reading"] for line in lines}
    return {name: reading for name, reading in READINGS.items() if name in names}


def table(lines: Sequence[Line]) -> str:
    """Write the curves as Markdown."""
    rows = [f"| λ_D | task | {' | '.join(f'{steps:,}' for steps in STEPS)} |", "|---|---" + "|---:" * len(STEPS) + "|"]
    for name, reading in _there(lines).items():
        for task, values in means(lines, name).items():
            cells = [f"{values[steps]:.1f}" if steps in values else "–" for steps in STEPS]
            rows.append(f"| {reading.title} | {task} | {' | '.join(cells)} |")
    return "\n".join(rows)


def draw(lines: Sequence[Line], path: Path) -> None:
    """Draw the mean over tasks, one line a reading."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axis = figure.subplots()
    for name, reading in _there(lines).items():
        values = means(lines, name)["mean"]
        axis.plot(list(values), list(values.values()), "o-", label=reading.title)
    axis.set(xlabel="steps", ylabel=f"accuracy (%), mean of {', '.join(TASKS)}", title="MDD")
    axis.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
