"""What a person sees while training runs: a live view in a terminal, silence anywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table


class TrainingView:
    """A progress bar with time left, each loss, η's mean and spread, and the adversary's health.

    Use it as a context manager, and as the ``watch`` of training.
    """

    def __init__(self, title: str, steps: int, console: Console) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task(title, total=steps)
        self._metrics: Mapping[str, float] = {}
        self._first: int | None = None
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=8, transient=True)
        self._shown = console.is_terminal

    def __enter__(self) -> TrainingView:
        if self._shown:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._live.stop()

    def __call__(self, step: int, metrics: Mapping[str, float] | None) -> None:
        """Take note of one step."""
        if self._first is None:  # a resumed run's time left must not count steps made before
            self._first = step
            self._progress.reset(self._task, completed=step - 1)
        self._progress.update(self._task, completed=step)
        if metrics is not None:
            self._metrics = metrics

    def _render(self) -> Group:
        return Group(self._progress, metrics_table(self._metrics))


def metrics_table(metrics: Mapping[str, float]) -> Table:
    """Lay one line of metrics out for reading."""
    table = Table.grid(padding=(0, 3))
    for heading, prefix in (("losses", "loss"), ("mixing weight η", "eta/"), ("adversary", "adversary/")):
        shown = {name.split("/")[-1]: value for name, value in metrics.items() if name.startswith(prefix)}
        if shown:
            table.add_row(
                f"[dim]{heading}[/]", "  ".join(f"{n.replace('_', ' ')} [bold]{v:.3f}[/]" for n, v in shown.items())
            )
    return table


def evaluation_table(result: Mapping[str, Any]) -> Table:
    """Lay an evaluation out for reading."""
    table = Table(title=f"{result['samples']} samples", title_justify="left", show_edge=False)
    table.add_column("class")
    table.add_column("accuracy", justify="right")
    table.add_column("most often taken for")
    for row, name in enumerate(result["classes"]):
        if name in result["class_accuracy"]:
            wrong = [(count, k) for k, count in enumerate(result["confusion"][row]) if k != row and count]
            taken = ", ".join(f"{result['classes'][k]} ({count})" for count, k in sorted(wrong, reverse=True)[:3])
            table.add_row(name, f"{result['class_accuracy'][name]:.1%}", taken)
    table.add_section()
    for label, key in (
        ("all samples", "accuracy"),
        ("mean over classes", "mean_class_accuracy"),
        ("mean confidence", "mean_confidence"),
        ("calibration error", "calibration_error"),
    ):
        table.add_row(label, f"{result[key]:.1%}", "")
    return table
