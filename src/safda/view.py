"""What a person sees while training runs: a live view in a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from safda.text import printable


def plain(text: object) -> Text:
    """Return a text that others wrote for rich to print as it is: no brackets are read, no control character obeyed."""
    return Text(printable(text))


class LogLines:
    """Lines on standard error that tell how far something is, where no terminal can show it: one every half minute."""

    EVERY = 30.0  #: seconds

    def __init__(self, quiet: bool = False) -> None:
        self._quiet, self._last = quiet, time.monotonic()

    def tell(self, what: str, done: float, of: float) -> None:
        """Say how far it is, if it was not said a short while ago."""
        if not self._quiet and time.monotonic() - self._last >= self.EVERY:
            self._last = time.monotonic()
            with suppress(OSError):
                print(f"safda: {printable(what)}: {done:,.0f} of {of:,.0f}", file=sys.stderr, flush=True)


class TrainingView:
    """A progress bar with time left, each loss, and what each method tells of itself.

    Use it as a context manager, and as the ``callback`` of training.
    """

    def __init__(self, title: str, steps: int, console: Console) -> None:
        self._progress = Progress(
            _title_column(),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task(printable(title), total=steps, unit="steps")
        self._stage_task = self._progress.add_task("", unit="", visible=False)
        self._metrics: Mapping[str, float] = {}
        self._first: int | None = None
        self._stage = ""
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=8, transient=True)
        self._is_terminal = console.is_terminal
        self._lines = LogLines(quiet=console.is_terminal or console.quiet)
        self._title, self._steps = title, steps

    def __enter__(self) -> TrainingView:
        if self._is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_terminal:
            with suppress(OSError):  # a terminal that was closed: the run is saved, whoever saw it
                self._live.stop()

    def __call__(self, step: int, metrics: Mapping[str, float] | None) -> None:
        """Take note of one step."""
        if self._first is None:  # a resumed run's time left must not count steps made before
            self._first = step
            self._progress.reset(self._task, completed=step - 1)
        self._progress.update(self._task, completed=step)
        self._lines.tell(f"{self._title}, steps", step, self._steps)
        if metrics is not None:
            self._metrics = metrics

    def progress(self, done: int, of: int, what: str) -> None:
        """Take note of what is made ready before the first step, or is done after the last."""
        if what != self._stage:  # its time left must not be reckoned from another thing's pace
            self._stage = what
            self._progress.reset(self._stage_task, description=printable(what))
        self._progress.update(self._stage_task, completed=done, total=of, visible=done < of)
        self._lines.tell(what, done, of)

    def _render(self) -> Group:
        return Group(self._progress, metrics_table(self._metrics))


def _title_column() -> TextColumn:
    return TextColumn("{task.description}", style="bold", markup=False)


class ProgressView:
    """A progress bar in a terminal, for work before training: use it as a context manager, and call what it gives."""

    def __init__(self, title: str, console: Console) -> None:
        columns = (_title_column(), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._is_terminal = console.is_terminal  # elsewhere some versions of rich would leave an empty line
        self._task = self._progress.add_task(printable(title), total=None, visible=False)
        self._lines, self._title = LogLines(quiet=console.is_terminal or console.quiet), title

    def __enter__(self) -> Callable[[int, int], None]:
        if self._is_terminal:
            self._progress.start()
        return self._tell

    def _tell(self, done: int, of: int) -> None:
        self._progress.update(self._task, completed=done, total=of, visible=True)
        self._lines.tell(self._title, done, of)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_terminal:
            self._progress.stop()


def metrics_table(metrics: Mapping[str, float]) -> Table:
    """Return one line of metrics as a table."""
    table = Table.grid(padding=(0, 3))
    for heading, names in _by_first_word(metrics).items():
        shown = Text("  ").join(
            plain(name.split("/")[-1].replace("_", " ")).append(f" {metrics[name]:.3f}", style="bold") for name in names
        )
        table.add_row(Text(printable(heading), style="dim"), shown)
    return table


def _by_first_word(metrics: Mapping[str, float]) -> dict[str, list[str]]:
    """Group the names of metrics: losses, and what each method has logged."""
    groups: dict[str, list[str]] = {}
    for name in metrics:
        if "/" in name or name == "loss":
            groups.setdefault(name.split("/")[0], []).append(name)
    return groups


def evaluation_table(result: Mapping[str, Any]) -> Table:
    """Return an evaluation as a table."""
    table = Table(title=f"{result['samples']} samples", title_justify="left", show_edge=False)
    table.add_column("class")
    table.add_column("accuracy", justify="right")
    table.add_column("most often taken for")
    for row, name in enumerate(result["classes"]):
        if name in result["class_accuracy"]:
            wrong = [(count, k) for k, count in enumerate(result["confusion"][row]) if k != row and count]
            taken = ", ".join(f"{result['classes'][k]} ({count})" for count, k in sorted(wrong, reverse=True)[:3])
            table.add_row(plain(name), f"{result['class_accuracy'][name]:.1%}", plain(taken))
        else:
            table.add_row(plain(name), "none there", "")
    table.add_section()
    for label, key in (
        ("all samples", "accuracy"),
        ("mean over classes", "mean_class_accuracy"),
        ("mean confidence", "mean_confidence"),
        ("calibration error", "calibration_error"),
    ):
        table.add_row(label, f"{result[key]:.1%}", "")
    return table


def survey_table(result: Mapping[str, Any]) -> Table:
    """Return what a few labels tell of a run as a table."""
    table = Table(
        title=f"{result['labels']} labels of {result['samples']} samples", title_justify="left", show_edge=False
    )
    for heading in ("", "estimate", "90% interval", "95% interval"):
        table.add_column(heading, justify="left" if not heading else "right")
    rows = {"accuracy": "accuracy", "source_only": "source only", "difference": "adapting gained"}
    for key, label in rows.items():
        if key in result:
            shown = "{:+.1%}" if key == "difference" else "{:.1%}"
            intervals = (result[key][f"interval_{level}"] for level in (90, 95))
            cells = (f"{shown.format(low)} to {shown.format(high)}" for low, high in intervals)
            table.add_row(label, shown.format(result[key]["value"]), *cells)
    if result["label_free"]:
        table.add_row("accuracy, estimated without labels", f"{result['label_free']['accuracy']:.1%}", "", "")
    return table


def predictions_table(ids: Sequence[str], ranked: Sequence[Sequence[tuple[str, float]]]) -> Table:
    """Return predictions as a table: each sample's classes below each other, the most probable first."""
    table = Table(show_edge=False)
    table.add_column("sample", overflow="fold")
    table.add_column("class", no_wrap=True)
    table.add_column("confidence", justify="right", no_wrap=True)
    for each, classes in zip(ids, ranked, strict=True):
        for rank, (name, probability) in enumerate(classes):
            style = "dim" if rank else None
            table.add_row("" if rank else plain(each), plain(name), f"{probability:.1%}", style=style)
    return table


def methods_table(methods: Sequence[Mapping[str, str]]) -> Table:
    """Return what methods tell of themselves as a table."""
    table = Table(show_edge=False)
    for key in methods[0]:
        table.add_column({"saf": "with SAF"}.get(key, key), no_wrap=key == "method")
    for each in methods:
        table.add_row(*map(plain, each.values()))
    return table


def preflight_table(result: Mapping[str, Any]) -> Table:
    """Return what two domains hold as a table."""
    table = Table(show_edge=False)
    for heading in ("", "source", "target"):
        table.add_column(heading)
    both = [result["source"], result["target"]]
    table.add_row("where", *(plain(domain["name"]) for domain in both))
    table.add_row("samples", *(str(domain["samples"]) for domain in both))
    if any(domain["features"] is None for domain in both):
        table.add_row("skipped", *(str(sum(map(len, domain["skipped"].values()))) for domain in both))
        table.add_row("put right in reading", *(_counts(domain["traits"]) for domain in both))
    if any(domain["features"] for domain in both):
        _add_features(table, [domain["features"] for domain in both], result["scales"])
    table.add_row("copies", *(str(sum(len(ids) - 1 for ids in domain["duplicates"])) for domain in both))
    table.add_row("classes", *(str(len(domain["classes"]) or "no labels") for domain in both))
    table.add_section()
    for name in dict.fromkeys(name for domain in both for name in domain["classes"]):
        table.add_row(plain(name), *(str(domain["classes"].get(name, "")) for domain in both))
    return table


def _add_features(table: Table, both: Sequence[Mapping[str, Any] | None], scales: Mapping[str, Any] | None) -> None:
    """Add what the numbers of arrays look like; a domain of pictures leaves its cells empty."""
    shown: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "dimensions": lambda of: "×".join(map(str, of["shape"])),
        "mean length of a row": lambda of: f"{of['length']:.4g}",
        "standard deviation": lambda of: f"{of['std']:.4g}",
        "zeros": lambda of: f"{of['zeros']:.1%}",
        "rows of zeros": lambda of: str(len(of["zero_rows"])),
        "constant columns": lambda of: _count_with_examples(of["constant"]),
    }
    for heading, cell in shown.items():
        table.add_row(heading, *(cell(of) if of else "" for of in both))
    if scales:
        if scales["constant_in_both"]:
            table.add_row("… in both domains", *2 * [_count_with_examples(scales["constant_in_both"])])
        table.add_row("columns far apart", "", _count_with_examples(scales["apart"]))
        ratios = (("length", "length"), ("deviation", "std"), ("median column", "column"))
        times = ", ".join(f"{name} {scales[key]:.2f}" for name, key in ratios if scales[key] is not None)
        table.add_row("times the source's", "", times)


def _count_with_examples(columns: Sequence[int], most: int = 5) -> str:
    examples = ", ".join(map(str, columns[:most])) + (", …" if len(columns) > most else "")
    return f"{len(columns)} ({examples})" if columns else "0"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing"


def summary_table(summary: Mapping[str, Any], most: int = 12) -> Table:
    """Return a run's summary as a table; of many classes, those whose shares changed most."""
    before = summary["source_only"]
    table = Table(title=f"{summary['samples']} target samples", title_justify="left", show_edge=False)
    table.add_column("", no_wrap=True)
    for heading in ("adapted", *(["source only"] if before else []), "in the source"):
        table.add_column(heading, justify="right")

    def line(label: str, *values: str) -> None:
        table.add_row(plain(label), *values)

    both = [summary["adapted"], *([before] if before else [])]
    line("mean confidence", *(f"{each['confidence']:.2f}" for each in both))
    for name in summary["adapted"]["scores"]:
        line(f"score: {name}", *(f"{each['scores'][name]:.2f}" if name in each["scores"] else "" for each in both))
    if before:
        line("the same answer", f"{summary['agreement']['share']:.0%}")
    line("classes never predicted", str(len(summary["never_predicted"])))
    choice = summary.get("choice") or {"chosen": "", "evidence": {}}
    for name, seen in choice["evidence"].items():
        line(f"candidate {name}{', taken' if name == choice['chosen'] else ''}", f"{seen['score']:.2f}")
    table.add_section()
    shares = summary["classes"]
    changed = sorted(shares, key=lambda name: -abs(shares[name]["predicted"] - shares[name]["source"]))
    for name in [name for name in shares if name in changed[:most]]:
        columns = ("predicted", "source_only", "source") if before else ("predicted", "source")
        line(name, *(f"{shares[name][column]:.1%}" for column in columns))
    if len(shares) > most:
        line(f"… and {len(shares) - most} more classes")
    return table


def finding_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return what a person must know of a run's diagnosis, a line each: all but mere notes."""
    findings = [each for each in summary.get("diagnosis") or () if each["severity"] != "note"]
    return [f"{each['severity']}: {each['title']} ({each['evidence']}); {each['advice']}" for each in findings]
