"""Charts as plain numbers in the units of a drawing: where lines, bars and marks go. The page's template draws them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safda.evaluation.oracle import CONFIDENCE_BINS, confidence_bins

#: Width and height of a chart, and what is left for its axes: left, right, top and bottom.
WIDTH, HEIGHT = 360, 200
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 26

BINS = 20  #: of a histogram of confidence

_FEW = 12  # values need no mean to see where they go
_SMOOTHED = 0.06  # share of a curve's points that are averaged to see where it goes


@dataclass(frozen=True)
class Axis:
    """One axis: how values become places, and where it is labelled.

    Attributes:
        low, high: the values at its ends.
        start, stop: their places.
        step: between two labels.
    """

    low: float
    high: float
    start: float
    stop: float
    step: float

    @classmethod
    def over(cls, low: float, high: float, start: float, stop: float, labels: int = 4) -> Axis:
        """Return an axis that holds these values, with about so many labels at round numbers.

        >>> axis = Axis.over(0.2, 3.7, 0, 100)
        >>> axis.low, axis.high, axis.ticks[:2]
        (0.0, 4.0, [(0.0, '0'), (25.0, '1')])
        """
        if low == high:
            low, high = (low - 0.5, high + 0.5) if abs(low) <= 1 else (low - abs(low) / 2, high + abs(high) / 2)
        rough = (high - low) / labels
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if rough <= power * factor * (1 + 1e-9))
        return cls(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, start, stop, step)

    def at(self, value: float) -> float:
        """Return the place of a value."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.stop - self.start), 1)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places and labels."""
        count = round((self.high - self.low) / self.step)
        values = [self.low + k * self.step for k in range(count + 1)]
        return [(self.at(value), tick_label(value, self.step)) for value in values]


def tick_label(value: float, step: float) -> str:
    """Return a number as an axis shows it, with no more digits than its neighbours need.

    >>> [tick_label(value, step) for value, step in ((0.1 + 0.2, 0.1), (0.75, 0.25), (1500.0, 500.0), (2e-5, 1e-5))]
    ['0.3', '0.75', '1500', '2e-05']
    """
    if abs(value) < step / 1e6:
        return "0"
    if step < 1e-3 or abs(value) >= 1e5:
        return f"{value:.4g}"
    digits = next(digits for digits in range(9) if math.isclose(round(step, digits), step))
    return f"{value:.{digits}f}"


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        name: what it is of.
        number: which colour and dashes it has.
        raw: the path through all its values.
        smooth: the path through their running mean.
        band: the path around what lies within a deviation, if it has one.
    """

    name: str
    number: int
    raw: str
    smooth: str
    band: str = ""


@dataclass(frozen=True)
class LineChart:
    """Values over steps.

    Attributes:
        title: what is shown.
        x, y: the axes.
        lines: one for each run.
        columns: of the table behind it.
        rows: of that: the step, then each line's value or None.
    """

    title: str
    x: Axis
    y: Axis
    lines: list[Line]
    columns: list[str]
    rows: list[list[float | None]]


def line_chart(
    title: str,
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    spread: Mapping[str, Sequence[float]],
    is_share: bool = False,
) -> LineChart:
    """Draw one line for each series.

    Args:
        title: what is shown.
        series: name → steps and values.
        spread: name → how far values spread around each of them.
        is_share: whether values lie between 0 and 1.
    """
    every = np.concatenate([np.asarray(values, dtype=float) for _, values in series.values()])
    around = [np.asarray(series[name][1]) + sign * np.asarray(spread[name]) for name in spread for sign in (-1, 1)]
    every = np.concatenate([every, *around])
    last = max(steps[-1] for steps, _ in series.values())
    x = Axis.over(0, last, LEFT, WIDTH - RIGHT)
    low, high = (0.0, 1.0) if is_share else (float(every.min()), float(every.max()))
    y = Axis.over(low, high, HEIGHT - BOTTOM, TOP)
    lines = [
        Line(
            name,
            number,
            _path(x, y, steps, values),
            _path(x, y, steps, smoothed(np.asarray(values, dtype=float))),
            _band(x, y, steps, np.asarray(values), np.asarray(spread[name])) if name in spread else "",
        )
        for number, (name, (steps, values)) in enumerate(series.items())
    ]
    steps_of_any = sorted({step for steps, _ in series.values() for step in steps})
    known = {name: dict(zip(*one, strict=True)) for name, one in series.items()}
    return LineChart(
        title,
        x,
        y,
        lines,
        ["step", *series],
        [[step, *(known[name].get(step) for name in series)] for step in steps_of_any],
    )


def smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the running mean over a small share of all values, shorter at the ends.

    >>> smoothed(np.arange(100.0))[[0, 50, 99]].tolist()
    [1.5, 50.0, 97.5]
    """
    half = max(1, int(len(values) * _SMOOTHED / 2)) if len(values) >= _FEW else 0
    total = np.concatenate([[0.0], np.cumsum(values)])
    first = np.maximum(np.arange(len(values)) - half, 0)
    last = np.minimum(np.arange(len(values)) + half + 1, len(values))
    means: NDArray[np.float64] = (total[last] - total[first]) / (last - first)
    return means


def _path(x: Axis, y: Axis, steps: Sequence[float], values: Sequence[float] | NDArray[np.float64]) -> str:
    return "M" + "L".join(f"{x.at(step)} {y.at(value)}" for step, value in zip(steps, values, strict=True))


def _band(x: Axis, y: Axis, steps: Sequence[float], middle: NDArray[Any], spread: NDArray[Any]) -> str:
    above, below = ((middle + sign * spread).clip(y.low, y.high) for sign in (1, -1))
    there, back = _path(x, y, steps, above), _path(x, y, list(reversed(steps)), below[::-1])
    return f"{there}L{back[1:]}Z"


@dataclass(frozen=True)
class Bar:
    """One bar: its rectangle, and what it stands for."""

    x: float
    y: float
    width: float
    height: float
    label: str


@dataclass(frozen=True)
class BarChart:
    """Bars over the confidence, from 0 to 1.

    Attributes:
        title: what is shown.
        x, y: the axes.
        bars: where there is anything.
        columns: of the table behind it.
        rows: of that.
    """

    title: str
    x: Axis
    y: Axis
    bars: list[Bar]
    columns: list[str]
    rows: list[list[Any]]


def confidence_histogram(title: str, confidence: NDArray[np.float64]) -> BarChart:
    """Draw how many samples there are of each confidence.

    >>> chart = confidence_histogram("", np.array([0.03, 0.97, 0.99]))
    >>> [bar.label for bar in chart.bars]
    ['0.00 to 0.05: 1', '0.95 to 1.00: 2']
    """
    counts, edges = np.histogram(confidence, bins=BINS, range=(0, 1))
    ranges = [f"{low:.2f} to {high:.2f}" for low, high in itertools.pairwise(edges)]
    x, y = _unit_axis(), Axis.over(0, int(counts.max()), HEIGHT - BOTTOM, TOP)
    y = y if y.step >= 1 else Axis(0, math.ceil(y.high), y.start, y.stop, 1)
    labels = [f"{name}: {count}" for name, count in zip(ranges, counts, strict=True)]
    bars = _bars(x, y, edges, counts.astype(float), labels)
    rows = [[name, int(count)] for name, count in zip(ranges, counts, strict=True)]
    return BarChart(title, x, y, bars, ["confidence", "samples"], rows)


def reliability(title: str, confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> BarChart:
    """Draw how often answers of each confidence are right.

    >>> chart = reliability("", np.array([0.5, 0.5, 0.99]), np.array([True, False, True]))
    >>> chart.rows
    [['0.47 to 0.53', 2, 0.5, 0.5], ['0.93 to 1.00', 1, 0.99, 1.0]]
    """
    edges = np.linspace(0, 1, CONFIDENCE_BINS + 1)
    rows: list[list[Any]] = []
    heights, labels = np.zeros(CONFIDENCE_BINS), [""] * CONFIDENCE_BINS
    for k, samples, mean, accuracy in confidence_bins(confidence, right):
        heights[k] = accuracy
        name = f"{edges[k]:.2f} to {edges[k + 1]:.2f}"
        rows.append([name, samples, mean, accuracy])
        labels[k] = f"{name}: {accuracy:.1%} of {samples} right"
    x, y = _unit_axis(), Axis(0, 1, HEIGHT - BOTTOM, TOP, 0.25)
    columns = ["confidence", "samples", "mean confidence", "right"]
    return BarChart(title, x, y, _bars(x, y, edges, heights, labels), columns, rows)


def _unit_axis() -> Axis:
    return Axis(0, 1, LEFT, WIDTH - RIGHT, 0.2)


def _bars(
    x: Axis, y: Axis, edges: NDArray[np.float64], heights: NDArray[np.float64], labels: Sequence[str]
) -> list[Bar]:
    bars = []
    for k, (height, label) in enumerate(zip(heights.tolist(), labels, strict=True)):
        left, right, top = x.at(edges[k]), x.at(edges[k + 1]), y.at(height)
        if height:
            bars.append(Bar(round(left + 0.5, 1), top, round(right - left - 1, 1), round(y.start - top, 1), label))
    return bars
