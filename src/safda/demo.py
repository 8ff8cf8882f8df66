"""The demonstration: what adaptation does for digits, in a table and a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from safda.bench.benchmark import load_benchmark
from safda.bench.engines import Engine
from safda.bench.lab import Lab, open_lab
from safda.bench.results import Results
from safda.bench.run import fill
from safda.bench.view import format_stat
from safda.classifier import Adapted
from safda.data import load_domain
from safda.errors import SafdaError
from safda.report.figures import adaptation_figure
from safda.view import plain

_METHODS = ("source", "mdd", "mdd+saf", "letter")
_MORE = ("dann", "dann+saf", "cdan", "cdan+saf")


def demo(folder: Path, seeds: int, all_methods: bool, console: Console) -> int:
    """Train each method with each seed, print the table and draw the picture; return the exit code.

    "MDD+SAF" is the preset ``digits``; "to the letter" is the same without its two departures from the paper.
    It is a small part of the benchmark ``digits``, so a demonstration that was stopped goes on where it was.
    """
    benchmark = load_benchmark("digits")
    rows = benchmark.runnable((*_METHODS, *(_MORE if all_methods else ())))
    lab = open_lab(folder, benchmark, None, rows, {}, seeds)
    try:
        # One thread a run: as fast for so small a network, and the same numbers whatever the number of cores.
        failures = fill(lab, lab.cells(rows, seeds), Engine(jobs=os.cpu_count(), threads=1), console)
    except KeyboardInterrupt:
        console.print(plain(f"stopped; the same command goes on in {folder}"), soft_wrap=True)
        return 130
    if failures:
        raise SafdaError(failures[0])
    console.print(_table(Results.of(lab), [row.name for row in rows]))
    console.print(plain(f"picture: {_draw_figure(lab)}"), soft_wrap=True)
    return 0


def _table(results: Results, rows: Sequence[str]) -> Table:
    (task,) = results.benchmark.tasks
    table = Table(title="digits-rendered → digits-handwritten, accuracy at the last step", show_edge=False)
    table.add_column("method")
    table.add_column("mean ± spread (%)", justify="right")
    table.add_column("each seed (%)", justify="right")
    for row in rows:
        each = "  ".join(f"{run.accuracy:.1f}" for run in results.of_cell(row, task).values())
        table.add_row(results.benchmark.rows[row].title, format_stat(results.stat(row, task)), each)
    return table


def _draw_figure(lab: Lab) -> Path:
    first = {cell.row: lab.store.path(cell) for cell in lab.cells(seeds=1)}
    before, after = (Adapted.load(first[row]) for row in ("source", "mdd+saf"))
    path = lab.folder / "demo.png"
    adaptation_figure(before, after, load_domain("digits-rendered"), load_domain("digits-handwritten"), path)
    return path
