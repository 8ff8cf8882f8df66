"""What SAF adds to each method, from the runs of a lab of ``office31-methods`` or ``digits-methods``.

    safda bench office31-methods --data DIR -o LAB
    python -m benchmarks.with_saf LAB

A table for each of the lab's benchmarks: every method's mean accuracy alone, what SAF adds to it (the mean of
differences paired by task and seed, with Student's interval of 95%) in each variant that the benchmark has, what it
adds in the paper, what a step costs beside source-only training, and how many runs there are of each.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from pathlib import Path

from safda.bench.benchmark import Benchmark
from safda.bench.lab import labs_in
from safda.bench.results import Difference, Results
from safda.methods import METHODS

SAF = "+saf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("lab", type=Path)
    for lab in labs_in(parser.parse_args().lab):
        print(f"{lab.benchmark.title}\n\n{table(Results.of(lab))}\n")


def table(results: Results) -> str:
    """Write a line for every method that is there alone, best first."""
    benchmark = results.benchmark
    variants = ["", *(name for name in benchmark.variants if name)]
    several = len(variants) > 1
    titles = [f"SAF adds, {benchmark.variants[name].title}" if several else "SAF adds" for name in variants]
    heading = ["method", "alone", *titles, "published alone", "published with SAF", "cost of a step", "runs"]
    lines = ["| " + " | ".join(heading) + " |", "|---|" + "---:|" * (len(heading) - 1)]
    alone = [name for name in results.rows if SAF not in name]
    for name in sorted(alone, key=lambda name: -mean(results, name)):
        gains = [gain(results, name, f"{name}{SAF}{'@' * bool(variant)}{variant}") for variant in variants]
        published = [published_mean(benchmark, name), published_mean(benchmark, f"{name}{SAF}")]
        counts = [runs(results, each) for each in rows_of(results, name)]
        number = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        step = f"{cost((benchmark.rows[name].change or {}).get('methods', ())):.1f}×"
        cells = [benchmark.rows[name].title, f"{mean(results, name):.1f}", *gains, *published, step, number]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rows_of(results: Results, name: str) -> list[str]:
    """Return a method's row and its rows with SAF, those that have runs."""
    return [row for row in results.rows if row == name or row.partition("@")[0] == f"{name}{SAF}"]


def runs(results: Results, row: str) -> int:
    """Count a row's runs in the task that has fewest."""
    return min(len(results.of_cell(row, task)) for task in results.benchmark.rows[row].tasks)


def mean(results: Results, row: str) -> float:
    """Return the mean over tasks of the means over seeds, of all the runs that are there."""
    by_task = (results.of_cell(row, task).values() for task in results.benchmark.rows[row].tasks)
    return statistics.mean(statistics.mean(run.accuracy for run in some) for some in by_task if some)


def gain(results: Results, name: str, with_saf: str) -> str:
    """Tell what SAF adds, and mark what is beyond its interval."""
    if with_saf not in results.rows:
        return "–"
    return told(results.difference(with_saf, name, results.benchmark.rows[name].tasks))


def told(found: Difference | None) -> str:
    """Write a difference with its interval, bold where that leaves out zero.

    >>> told(Difference(2.04, (1.0, 3.1), 18, 3, False)), told(Difference(-0.3, None, 6, 1, False))
    ('**+2.0** [+1.0, +3.1]', '−0.3')
    """
    if found is None:
        return "–"
    value = f"{found.mean:+.1f}"
    if found.interval:
        low, high = found.interval
        value = f"**{value}**" if low > 0 or high < 0 else value
        value += f" [{low:+.1f}, {high:+.1f}]"
    return value.replace("-", "−")


def published_mean(benchmark: Benchmark, name: str) -> str:
    """Return the paper's average, or nothing."""
    row = benchmark.rows.get(name)
    return f"{row.average:.1f}" if row and row.average is not None else ""


def cost(methods: Iterable[str]) -> float:
    """Return what a step of several methods takes beside source-only training's: what each adds to it adds up."""
    return 1.0 + sum((METHODS[name].cost or 1.0) - 1.0 for name in methods)


if __name__ == "__main__":
    main()
