"""Tables as files: named columns to CSV, lines of JSON or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safda.errors import SafdaError
from safda.runs import write_bytes

Columns = Mapping[str, list[Any]]


def write_table(path: Path, columns: Columns) -> None:
    """Write ``.csv``, ``.jsonl`` or ``.parquet``, whole or not at all."""
    writers = {".csv": _csv, ".jsonl": _json_lines, ".parquet": _parquet}
    if path.suffix not in writers:
        raise SafdaError(f"{path}: tables are written as {', '.join(writers)}; choose one of these endings")
    content = writers[path.suffix](columns)
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


def _json_lines(columns: Columns) -> bytes:
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _parquet(columns: Columns) -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise SafdaError("writing .parquet needs pyarrow: pip install 'safda[parquet]'") from None
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(dict(columns)), sink)
    return sink.getvalue()
