"""How many steps MDD needs on frozen features, and which reading of the paper's ramps: the preset's operating point.

    python -m benchmarks.operating_point --data office31_resnet50/ -o LAB [--seeds 1] [--jobs 2]

MDD in the preset ``paper-frozen``, over 500 to 10,000 steps on three tasks of Office-31, with λ_D

* as printed, 0.1 · tanh(10 t/T), where T is the run's own length, as the preset has it;
* as printed, where T is 100,000, the paper's, however long the run is;
* as in the released code, 0.1 · tanh(t/1000).

The learning rate falls as (1 + 0.0002 t)^−0.75 in each. Target labels describe the curve. The lab is one of
``safda bench``: stop it whenever you like, the same command goes on. Prints a table, and draws
LAB/operating-point/curve.png.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console

from safda.bench.benchmark import Benchmark, from_dict
from safda.bench.engines import Engine
from safda.bench.lab import open_lab
from safda.bench.results import Results
from safda.bench.run import fill

STEPS = (500, 1000, 2000, 3000, 5000, 7000, 10_000)
READINGS: dict[str, dict[str, Any]] = {
    "own": {"title": "as printed, T the run's", "preset": "paper-frozen"},
    "printed": {"title": "as printed, T = 100,000", "preset": "paper-frozen", "change": {"ramp_steps": 100_000}},
    "released": {"title": "as released", "preset": "released-frozen"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="a folder with amazon.npz, dslr.npz and webcam.npz")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="LAB")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    benchmark = operating_points()
    lab = open_lab(options.out, benchmark, options.data, benchmark.runnable(), {}, options.seeds)
    for line in fill(lab, lab.cells(), Engine(jobs=options.jobs, cpu=True), Console()):
        print(f"failed: {line}")
    results = Results.of(lab)
    print(table(results))
    draw(results, lab.tables / "curve.png")


def operating_points() -> Benchmark:
    """Return the benchmark: a row for every reading of the ramps and number of steps."""
    rows = {
        f"{steps}@{reading}": {"change": {"methods": ["mdd"], "steps": steps}}
        for reading in READINGS
        for steps in STEPS
    }
    definition = {
        "title": "Accuracy (%) of MDD by steps, Office-31, frozen ResNet-50 features",
        "domains": {"A": "amazon.npz", "D": "dslr.npz", "W": "webcam.npz"},
        "tasks": ["A→W", "A→D", "W→A"],
        "variants": READINGS,
        "rows": rows,
    }
    return from_dict("operating-point", definition)


def curves(results: Results, reading: str) -> dict[str, list[float]]:
    """Return the accuracy at each number of steps, of each task and of their mean; nan where there is no run."""
    found = {}
    for task in results.benchmark.tasks:
        cells = [results.stat(f"{steps}@{reading}", task) for steps in STEPS]
        found[task] = [cell.mean if cell else math.nan for cell in cells]
    return {**found, "mean": [statistics.fmean(values) for values in zip(*found.values(), strict=True)]}


def table(results: Results) -> str:
    """Write the curves as Markdown."""
    lines = [f"| λ_D | task | {' | '.join(f'{steps:,}' for steps in STEPS)} |", "|---|---" + "|---:" * len(STEPS) + "|"]
    for reading, about in READINGS.items():
        for task, values in curves(results, reading).items():
            cells = ["–" if math.isnan(value) else f"{value:.1f}" for value in values]
            lines.append(f"| {about['title']} | {task} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(results: Results, path: Path) -> None:
    """Draw the mean over tasks, one line a reading."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axis = figure.subplots()
    for reading, about in READINGS.items():
        axis.plot(STEPS, curves(results, reading)["mean"], "o-", label=about["title"])
    axis.set(xlabel="steps", ylabel=f"accuracy (%), mean of {', '.join(results.benchmark.tasks)}", title="MDD")
    axis.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
