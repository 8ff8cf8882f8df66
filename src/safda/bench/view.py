"""What a person sees while a grid runs: the table filling in, and the time left; in a log, a line now and then."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from safda.bench.lab import Cell, Lab
from safda.bench.results import Stat, stat
from safda.training.checkpoint import RunFolder
from safda.view import LogLines, plain


class GridView:
    """The table of a grid as far as it is done. It looks at the store, so it sees what any machine has finished."""

    def __init__(self, lab: Lab, cells: Sequence[Cell]) -> None:
        self._lab, self._cells = lab, cells
        self._accuracy: dict[str, float] = {}
        self._failed: set[str] = set()
        self._refresh()
        self._progress = Progress(
            TextColumn("[bold]{task.fields[done]} of {task.fields[cells]} cells"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("[red]{task.fields[failed]}"),
        )
        todo = [cell for cell in cells if cell.key not in self._accuracy]
        self._start = sum(self._fraction_done(cell) for cell in todo)  # work done before says nothing of the speed
        total = len(todo) - self._start
        self._task = self._progress.add_task("", total=total, done=0, cells=len(cells), failed="")
        self._todo = todo

    @contextmanager
    def live(self, console: Console) -> Iterator[None]:
        """Show the table while something runs."""
        if not console.is_terminal:
            with self._logged():
                yield
            return
        with Live(get_renderable=self.render, console=console, refresh_per_second=1, transient=True):
            yield

    @contextmanager
    def _logged(self) -> Iterator[None]:
        """Tell now and then how many cells there are; by a thread, since cells may be made elsewhere."""
        ended, lines = threading.Event(), LogLines()

        def watch() -> None:
            while not ended.wait(LogLines.EVERY):
                self._refresh()
                lines.tell(f"{self._lab.benchmark.name}, cells", self._done(), len(self._cells))

        watching = threading.Thread(target=watch, name="safda-log", daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            watching.join()

    def render(self) -> Group:
        """Look at the store and draw."""
        self._refresh()
        done = self._done()
        failed = f"{len(self._failed)} failed" if self._failed else ""
        completed = sum(self._fraction_done(cell) for cell in self._todo) - self._start
        self._progress.update(self._task, completed=completed, done=done, failed=failed)
        return Group(self._table(), self._progress)

    def _done(self) -> int:
        return sum(cell.key in self._accuracy for cell in self._cells)  # two rows may share a run

    def _refresh(self) -> None:
        for cell in self._cells:
            if cell.key not in self._accuracy:
                result = self._lab.store.result(cell)
                if result is not None:
                    self._accuracy[cell.key] = 100 * result[self._lab.benchmark.metric]
                elif self._lab.store.failure(cell) is not None:
                    self._failed.add(cell.key)

    def _fraction_done(self, cell: Cell) -> float:
        """How much of a cell is done, from 0 to 1."""
        if cell.key in self._accuracy or cell.key in self._failed:
            return 1.0
        metrics = self._lab.store.path(cell) / "metrics.jsonl"
        if not metrics.is_file():
            return 0.0
        lines = RunFolder(metrics.parent).metrics()
        return lines[-1]["step"] / cell.recipe.steps if lines else 0.0

    def _table(self) -> Table:
        tasks = [task for task in self._lab.benchmark.tasks if any(cell.task == task for cell in self._cells)]
        table = Table(title=plain(self._lab.benchmark.title), title_justify="left", show_edge=False)
        table.add_column("method")
        for task in tasks:
            table.add_column(plain(task), justify="right")
        for row in dict.fromkeys(cell.row for cell in self._cells):
            cells = [[cell for cell in self._cells if (cell.row, cell.task) == (row, task)] for task in tasks]
            table.add_row(plain(self._lab.benchmark.rows[row].title), *map(self._cell_text, cells))
        return table

    def _cell_text(self, cells: Sequence[Cell]) -> str:
        done = [self._accuracy[cell.key] for cell in cells if cell.key in self._accuracy]
        text = format_stat(stat(done))
        if any(cell.key in self._failed for cell in cells):
            text += " [red]failed[/]"
        return text if len(done) == len(cells) else f"{text} [dim]{len(done)}/{len(cells)}[/]"


def format_stat(value: Stat | None) -> str:
    """Write mean and spread; nothing for nothing."""
    if value is None:
        return ""
    return f"{value.mean:.1f}" + (f" ± {value.spread:.1f}" if value.spread is not None else "")
