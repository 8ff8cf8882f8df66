"""Tables as files: named columns to CSV, lines of JSON or Parquet."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safda.errors import SafdaError
from safda.runs import write_bytes

Columns = Mapping[str, list[Any]]


def require_writable(path: Path, endings: Iterable[str]) -> None:
    """Make sure that a file can be written there: asked before the work, since an hour later it is too late.

    Args:
        path: the file.
        endings: of which it must have one.
    """
    known = list(endings)
    if path.suffix not in known:
        choice = f"one of {', '.join(known)}" if len(known) > 1 else known[0]
        raise SafdaError(f"{path}: its ending must be {choice}; choose another name")
    if path.is_dir():
        raise SafdaError(f"{path}: is a folder; name a file in it")
    if not path.parent.is_dir():
        raise SafdaError(f"{path}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise SafdaError(f"{path}: nothing can be written in the folder {path.parent}; choose another")


def require_table(path: Path) -> None:
    """Make sure that a table can be written there, in the format that its ending names."""
    require_writable(path, WRITERS)
    if path.suffix == ".parquet":
        _pyarrow()


def write_table(path: Path, columns: Columns) -> None:
    """Write ``.csv``, ``.jsonl`` or ``.parquet``, whole or not at all."""
    require_table(path)
    content = WRITERS[path.suffix](columns)
    try:
        write_bytes(path, content)
    except OSError as error:
        raise SafdaError(f"{path}: cannot be written: {error.strerror}") from None


def _csv(columns: Columns) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def json_lines(columns: Columns) -> Iterator[str]:
    """Give a table as lines of JSON, one for each row.

    >>> list(json_lines({"id": ["a", "b"], "class": ["ant", "bee"]}))
    ['{"id": "a", "class": "ant"}', '{"id": "b", "class": "bee"}']
    """
    for row in zip(*columns.values(), strict=True):
        yield json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False)


def _json_lines(columns: Columns) -> bytes:
    return "".join(f"{line}\n" for line in json_lines(columns)).encode()


def _parquet(columns: Columns) -> bytes:
    pyarrow = _pyarrow()
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(dict(columns)), sink)
    return sink.getvalue()


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise SafdaError("writing .parquet needs pyarrow: pip install 'safda[parquet]'") from None
    return pyarrow


#: Ending → what makes the file's content.
WRITERS: dict[str, Callable[[Columns], bytes]] = {".csv": _csv, ".jsonl": _json_lines, ".parquet": _parquet}
