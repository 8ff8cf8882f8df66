"""Tables of a report: what a cell shows, and what it is sorted by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class TableCell(NamedTuple):
    """What a cell shows and, of a number, what it is sorted by."""

    text: str
    value: float | None = None


class Column(NamedTuple):
    """The heading of a column, and whether numbers stand in it."""

    name: str
    is_number: bool


@dataclass(frozen=True)
class Table:
    """A table that can be sorted."""

    caption: str
    columns: list[Column]
    rows: list[list[TableCell]]


def table(
    caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], formats: Mapping[str, str] | None = None
) -> Table:
    """Make a table of plain values.

    Args:
        caption: what it tells.
        columns: their headings.
        rows: values, or cells; None leaves one empty.
        formats: of columns whose numbers are to be shown in a certain way, such as ``".1%"``.

    >>> made = table("shares", ["class", "share"], [["ant", 0.25]], {"share": ".0%"})
    >>> made.rows[0][1], made.columns[1].is_number
    (TableCell(text='25%', value=0.25), True)
    """
    how = formats or {}
    made = [[cell(value, how.get(column, "")) for column, value in zip(columns, row, strict=True)] for row in rows]
    numbers = [any(row[k].value is not None for row in made) for k in range(len(columns))]
    return Table(caption, [Column(name, number) for name, number in zip(columns, numbers, strict=True)], made)


def cell(value: Any, form: str = "") -> TableCell:
    """Return a value as a cell: of a number, as many digits as tell something.

    >>> cell(0.123456).text, cell(1234).text, cell(None).text, cell("ant").value
    ('0.1235', '1234', '', None)
    """
    if isinstance(value, TableCell):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return TableCell("" if value is None else str(value))
    return TableCell(format(value, form or ("d" if isinstance(value, int) else ".4g")), value)
