"""The laboratory's commands: fill a benchmark in, and judge the paper's claims by it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from safda.bench import render
from safda.bench.benchmark import load_benchmark
from safda.bench.claims import page
from safda.bench.engines import Engine, run_cells
from safda.bench.exchange import read_cells, take_cells, write_cells
from safda.bench.lab import Cell, Lab, labs_in, open_lab
from safda.bench.results import Results, differences, tidy
from safda.bench.view import GridView
from safda.classifier import Adapted
from safda.data import load_domain
from safda.errors import SafdaWarning
from safda.io import write_table, write_text
from safda.report.paper import write_domain_figure
from safda.report.projection import Points, project_embedding
from safda.text import printable
from safda.view import plain

_MOST_POINTS = 1500  # of each domain in a figure: t-SNE of so many takes some ten seconds


def bench(
    name: str,
    folder: Path,
    *,
    data: Path | None,
    rows: Sequence[str] | None,
    seeds: int,
    settings: Mapping[str, Any],
    engine: Engine,
    oracle: bool,
    console: Console,
    cells: Path | None = None,
) -> int:
    """Fill a benchmark in and print its table; return the exit code: 1 if a cell failed.

    Args:
        name: a benchmark's name, or a TOML file.
        folder: the lab.
        data: where the domains are; a TOML file's are by default beside it.
        rows: those to run; None is all that can be run.
        seeds: runs of each row and task.
        settings: ``preset`` and knobs by their path, for all rows.
        engine: where to run.
        oracle: also tell the best runs by target labels.
        console: where to show and print.
        cells: finished cells of another lab, its ``cells.jsonl``, which are not run again.
    """
    benchmark = load_benchmark(name)
    chosen = benchmark.runnable(rows)
    if data is None and name.endswith(".toml"):
        data = Path(name).parent
    known = read_cells(cells) if cells else []
    lab = open_lab(folder, benchmark, data, chosen, settings, max([seeds, *(line["seed"] + 1 for line in known)]))
    take_cells(lab, known)
    failures = fill(lab, lab.cells(chosen, seeds), engine, console, oracle)
    for line in (lab.tables / "table.md").read_text(encoding="utf-8").split("\n"):
        console.print(plain(line), soft_wrap=True)
    console.print(plain(f"tables and runs: {folder}"), soft_wrap=True)
    for line in failures:
        print(f"safda: failed: {printable(line)}", file=sys.stderr)
    return 1 if failures else 0


def fill(lab: Lab, cells: Sequence[Cell], engine: Engine, console: Console, oracle: bool = False) -> list[str]:
    """Run the cells that are not finished and write the tables; return a line for each cell that failed."""
    view = GridView(lab, cells)
    with view.live(console):
        run_cells(cells, lab.folder, engine)
    write_tables(lab, oracle)
    failures = ((cell, lab.store.failure(cell)) for cell in cells)
    return [f"{cell.row}, {cell.task}, seed {cell.seed}: {why}" for cell, why in failures if why]


def write_tables(lab: Lab, oracle: bool = False) -> None:
    """Write everything that the finished runs say: tidy, Markdown, LaTeX, differences, and the figure."""
    results = Results.of(lab)
    columns = tidy(results)
    write_cells(lab)
    write_table(lab.tables / "results.csv", columns)
    write_table(lab.tables / "differences.csv", differences(results))
    write_text(lab.tables / "table.md", render.report(results, oracle))
    write_text(lab.tables / "table.tex", render.latex(results))
    if find_spec("pyarrow"):  # an extra
        write_table(lab.tables / "results.parquet", columns)
    if lab.benchmark.figure:
        _draw_figure(lab)


def judge_claims(folder: Path) -> str:
    """Judge the paper's claims by all that a lab holds, write ``claims.md`` and return its text."""
    text = page([Results.of(lab) for lab in labs_in(folder)])
    write_text(folder / "claims.md", text)
    return text


def _draw_figure(lab: Lab) -> None:
    """Draw both domains as the rows of the figure see them, a line for each task that both have finished at seed 0."""
    rows = lab.benchmark.figure
    finished = [cell for cell in lab.cells(seeds=1) if cell.row in rows and lab.store.result(cell)]
    first = {(cell.row, cell.task): cell for cell in finished if lab.store.has_run(cell)}
    if len(first) < len(finished):
        why = (
            "some of its cells are results of another lab, without their runs; another -o, without --cells, draws them"
        )
        warnings.warn(f"{lab.tables / 'figure.png'}: {why}", SafdaWarning, stacklevel=2)
    done = [task for task in lab.benchmark.tasks if all((row, task) in first for row in rows)]
    if done:
        panels = [[_panel(lab, first[row, task]) for row in rows] for task in done]
        write_domain_figure(panels, lab.tables / "figure.png")


def _panel(lab: Lab, cell: Cell) -> tuple[str, Points, Points]:
    source, target = load_domain(cell.source), load_domain(cell.target)
    points = project_embedding(Adapted.load(lab.store.path(cell)), source, target, _MOST_POINTS)
    return f"{lab.benchmark.rows[cell.row].title}: {cell.task}", *points
