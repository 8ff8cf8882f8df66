"""Figures for papers, of what a report shows: both domains before and after, curves, shares of the classes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from safda.io import disk_errors, write_bytes
from safda.report.charts import smoothed
from safda.report.data import RunReport
from safda.report.projection import Points
from safda.report.sections import curve_names, curve_title, group_of, series_of
from safda.text import printable

_SOURCE, _TARGET, _BEFORE = "#c8281e", "#1f5fa8", "0.45"  # red and blue, as in the paper
_OF_RUNS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a7500", "#404040")  # Okabe & Ito
_DASHES = ("-", "--", ":", "-.")
_WIDTH = 7.2  # inches: two columns of a page
_DPI = 300
_MOST_CLASSES = 40  # whose shares can still be read; of more, those that changed most
_PER_ROW = 3  # curves

#: The height of a figure in inches, and what draws it.
Part = tuple[float, Callable[[Any], None]]


def write_figures(runs: Mapping[str, RunReport], path: Path) -> None:
    """Write the figures of one run or of several: ``.pdf`` with a page for each, ``.png`` with all below each other.

    Args:
        runs: what to call each run → what is known of it.
        path: the file; its ending decides.
    """
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    content = io.BytesIO()
    parts = _parts(runs)
    with _style():
        if path.suffix == ".pdf":
            with PdfPages(content, metadata={"CreationDate": None}) as pages:
                for height, draw in parts:
                    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
                    draw(figure)
                    pages.savefig(figure)
        else:
            heights = [height for height, _ in parts]
            figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
            places = figure.subfigures(len(parts), 1, squeeze=False, height_ratios=heights)[:, 0]
            for place, (_, draw) in zip(places, parts, strict=True):
                draw(place)
            figure.savefig(content, format="png", dpi=_DPI)
    with disk_errors(path):
        write_bytes(path, content.getvalue())


@contextmanager
def _style() -> Iterator[None]:
    """Draw as in a paper."""
    from matplotlib import rc_context

    style: Any = {"pdf.fonttype": 42, "font.size": 8, "text.parse_math": False}
    style |= {"axes.spines.top": False, "axes.spines.right": False}
    with rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # of a script that its font does not have: boxes tell it
        yield


def _parts(runs: Mapping[str, RunReport]) -> list[Part]:
    """Return what there is to draw, from top to bottom."""
    titles = {name: _short(f"{name}: {run.title}" if len(runs) > 1 else run.title, 90) for name, run in runs.items()}
    curves = [name for name in curve_names(runs.values()) if group_of(name) in ("Losses", "Mixing weight η")]
    parts: list[Part] = [(3.5, partial(_domains, run, titles[name])) for name, run in runs.items() if run.projection]
    if curves:
        parts.append((1.6 * -(-len(curves) // _PER_ROW) + 0.3, partial(_curves, runs, curves)))
    for name, run in runs.items():
        parts.append((1.0 + 0.16 * min(len(run.classes), _MOST_CLASSES), partial(_shares, run, titles[name])))
    return parts


def _short(text: str, most: int) -> str:
    """Return a text that leaves room for the figure."""
    shown = printable(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _domains(run: RunReport, title: str, place: Any) -> None:
    """Draw both domains, the source red and the target blue."""
    assert run.projection is not None
    views, sources = run.projection.views, len(run.projection.labels)
    place.suptitle(title)
    for axis, (caption, points) in zip(np.atleast_1d(place.subplots(1, len(views))), views.items(), strict=True):
        axis.scatter(*points[:sources].T, c=_SOURCE, marker="x", s=9, linewidths=0.7, alpha=0.8, label="source")
        axis.scatter(*points[sources:].T, c=_TARGET, marker="o", s=7, linewidths=0, alpha=0.8, label="target")
        _frame(axis, caption)
        axis.legend(loc="upper right", framealpha=0.9, handletextpad=0.2)


def _frame(axis: Any, title: str) -> None:
    """Put a frame and a title around points between 0 and 1."""
    axis.set(xticks=[], yticks=[], title=title, aspect="equal", xlim=(-0.04, 1.04), ylim=(-0.04, 1.04))
    axis.spines[:].set_visible(True)


def write_domain_figure(panels: Sequence[Sequence[tuple[str, Points, Points]]], path: Path) -> None:
    """Write the paper's t-SNE figure as ``.png``: a grid of panels, in each the source in red and the target in blue.

    Args:
        panels: by row and column: the title, and n×2 points between 0 and 1 of the source and of the target.
        path: the file.
    """
    from matplotlib.figure import Figure

    content, columns = io.BytesIO(), len(panels[0])
    with _style():
        figure = Figure(figsize=(_WIDTH, _WIDTH / columns * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), columns, squeeze=False)
        for axis, (title, *domains) in zip(axes.flat, chain.from_iterable(panels), strict=True):
            for points, colour in zip(domains, (_SOURCE, _TARGET), strict=True):
                axis.scatter(*points.T, c=colour, s=3, linewidths=0, alpha=0.7)
            _frame(axis, _short(title, 60))
        figure.savefig(content, format="png", dpi=_DPI / 2)
    write_bytes(path, content.getvalue())


def _curves(runs: Mapping[str, RunReport], names: Sequence[str], place: Any) -> None:
    """Draw losses and η, each run in its colour and dashes: thin as logged, thick its running mean."""
    rows = -(-len(names) // _PER_ROW)
    axes = place.subplots(rows, _PER_ROW, squeeze=False).flatten()
    for axis, name in zip(axes, names, strict=False):
        for k, (label, run) in enumerate(runs.items()):
            steps, values = series_of(run, name)
            if not steps:
                continue
            colour, dashes = _OF_RUNS[k % len(_OF_RUNS)], _DASHES[k % len(_DASHES)]
            axis.plot(steps, values, color=colour, linewidth=0.5, alpha=0.4)
            mean = smoothed(np.array(values, dtype=float))
            axis.plot(steps, mean, dashes, color=colour, linewidth=1.3, label=_short(label, 24))
        axis.set_title("η, mean of a batch" if group_of(name) != "Losses" else curve_title(name))
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    if len(runs) > 1:
        axes[0].legend(framealpha=0.9)
    place.supxlabel("training steps", fontsize=8)


def _shares(run: RunReport, title: str, place: Any) -> None:
    """Draw each class's share of the source, of source-only's answers and of the predictions."""
    classes = run.summary["classes"]
    changed = sorted(classes, key=lambda name: -abs(classes[name]["predicted"] - classes[name]["source"]))
    shown = [name for name in classes if name in {*changed[:_MOST_CLASSES]}][::-1]
    axis = place.subplots()
    marks = {
        "source": ("source", "D", _SOURCE, _SOURCE),
        "source_only": ("source only, of the target", "s", "none", _BEFORE),
        "predicted": ("adapted, of the target", "o", _TARGET, _TARGET),
    }
    for key, (label, marker, face, edge) in marks.items():
        if all(key in classes[name] for name in shown):
            values = [100 * classes[name][key] for name in shown]
            axis.scatter(values, range(len(shown)), s=14, marker=marker, facecolors=face, edgecolors=edge, label=label)
    axis.set_yticks(range(len(shown)), [_short(name, 32) for name in shown])
    axis.grid(axis="y", linewidth=0.3)
    axis.set_axisbelow(True)
    axis.set_xlim(left=0)
    axis.set_ylim(-0.7, len(shown) - 0.3)
    axis.set_xlabel("share of all samples (%)")
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, handletextpad=0.2)
    some = f", the {len(shown)} of {len(classes)} classes that changed most" if len(shown) < len(classes) else ""
    place.suptitle(f"{title}{some}")
