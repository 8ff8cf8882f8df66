"""What the laboratory adds to its runs: the same cells through it and without it, in turns.

    python -m benchmarks.harness [--rounds 5] [--steps 300]

Without it, a run is what ``safda fit`` and ``safda evaluate`` do: train into a folder, then score. With it come the
store, its locks, the label-free scores, the results and the tables. The figures that count are ratios: of time on
the clock, and of this process's own time on the processor, which others on the machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console

from safda.api import start
from safda.bench.benchmark import Benchmark, from_dict, load_benchmark
from safda.bench.cells import limit_threads
from safda.bench.engines import Engine
from safda.bench.lab import open_lab
from safda.bench.run import fill
from safda.data import load_domain

ROWS = ("source", "mdd", "mdd+saf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    whole = load_benchmark("digits").definition
    benchmark = from_dict("digits", {**whole, "rows": {name: {} for name in ROWS}})
    with_lab(benchmark, 2)  # a warm-up: the domains are drawn and cached
    pairs = [(with_lab(benchmark, options.steps), without(benchmark, options.steps)) for _ in range(options.rounds)]
    for name, which in (("on the clock", 0), ("on the processor", 1)):
        ratios = [inside[which] / outside[which] for inside, outside in pairs]
        print(f"with over without, {name}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    print(json.dumps({"rounds": options.rounds, "steps": options.steps, "seconds": pairs}))


def seconds() -> tuple[float, float]:
    """Time on the clock and on the processor."""
    return time.perf_counter(), time.process_time()


def with_lab(benchmark: Benchmark, steps: int) -> tuple[float, float]:
    """Seconds for the grid, from an empty lab to its tables."""
    with tempfile.TemporaryDirectory() as folder:
        begun = seconds()
        lab = open_lab(Path(folder), benchmark, None, benchmark.runnable(), {"steps": steps}, 1)
        fill(lab, lab.cells(), Engine(cpu=True), Console(quiet=True))
        return _since(begun)


def without(benchmark: Benchmark, steps: int) -> tuple[float, float]:
    """Seconds for the same runs, one after another, each scored."""
    with tempfile.TemporaryDirectory() as folder, limit_threads(1):
        begun = seconds()
        for row in benchmark.runnable():
            source, target = load_domain("digits-rendered"), load_domain("digits-handwritten")
            recipe = benchmark.recipe(row, {"steps": steps}, seed=0)
            adapted = start(source, target, recipe, Path(folder) / row.name, None, True, ())
            adapted.evaluate(target)
        return _since(begun)


def _since(begun: tuple[float, float]) -> tuple[float, float]:
    clock, processor = seconds()
    return clock - begun[0], processor - begun[1]


if __name__ == "__main__":
    main()
