"""Finished cells as lines of JSON: what a lab found, without its runs, for another lab to go on with.

A cell's key is made of its recipe and of what its data hold, so a result can be told from that of any other experiment
wherever it was made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safda import schema
from safda.bench.lab import Lab
from safda.errors import SafdaError
from safda.io import read_text, write_text
from safda.text import to_json

#: The file's name in a benchmark's folder.
CELLS = "cells.jsonl"
_ABOUT = ("key", "row", "task", "seed")  # what a line has beside the result


def write_cells(lab: Lab) -> None:
    """Write a line for each finished cell; accuracies of single classes only where the benchmark shows them."""
    lines = []
    for cell in lab.cells():
        result = lab.store.result(cell)
        if result is not None:
            classes = result["class_accuracy"] if lab.benchmark.per_class else {}
            about = {name: getattr(cell, name) for name in _ABOUT}
            lines.append(to_json({**about, **result, "class_accuracy": classes}) + "\n")
    write_text(lab.tables / CELLS, "".join(lines))


def read_cells(file: Path) -> list[dict[str, Any]]:
    """Read the finished cells of another lab; an error names the line that is none."""
    cells = []
    for number, line in enumerate(read_text(file).split("\n"), 1):
        if line.strip():
            where = f"{file}, line {number}"
            try:
                cell = json.loads(line)
            except (ValueError, RecursionError):
                raise SafdaError(f"{where}: is not valid JSON; --cells takes a lab's {CELLS}") from None
            schema.check(cell, schema.CELL, where)
            cells.append(cell)
    return cells


def take_cells(lab: Lab, known: Sequence[Mapping[str, Any]]) -> None:
    """Keep results of other labs where this one has none; what is no cell of this lab is left.

    So is one without classes, from a benchmark that does not show them, where this one does.
    """
    own = {cell.key: cell for cell in lab.cells()}
    for line in known:
        cell = own.get(line["key"])
        if cell is not None and (line["class_accuracy"] or not lab.benchmark.per_class):
            with lab.store.lock(cell):
                if lab.store.result(cell) is None:
                    lab.store.take(cell, {name: line[name] for name in line if name not in _ABOUT})
