"""Files: written whole or not at all, read with an error in one line; and tables, as CSV, lines of JSON or Parquet."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from safda.errors import SafdaError, first_line, reading
from safda.schema import check
from safda.text import csv_cell, to_json

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: A table: the name of each column → its values.
Columns = Mapping[str, list[Any]]

_MOST_TEXT = 2**28  # bytes: a device file has no end


# -------------------------------------------------------------------------------------------------------- atomic files


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to write that appears under its name once it is whole and on disk, or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_dir(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically and durably."""
    with new_file(path) as file:
        file.write(content)


def write_text(path: Path, content: str) -> None:
    """Write a text file atomically and durably."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically and durably."""
    write_text(path, to_json(content, indent=2) + "\n")


def read_text(path: Path) -> str:
    """Read a text file, of any size that such a file may have."""
    with disk_errors(path, "read"), path.open("rb") as file:
        content = file.read(_MOST_TEXT + 1)
    if len(content) > _MOST_TEXT:
        raise SafdaError(f"{path}: cannot be read: it is larger than {_MOST_TEXT // 2**20} MB, or has no end")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise SafdaError(f"{path}: cannot be read: it is not a text file in UTF-8") from None


def read_json(path: Path, form: Any) -> dict[str, Any]:
    """Read a JSON object, and make sure that it is of one of the forms of :mod:`safda.schema`."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise SafdaError(f"{path}: cannot be read: it is not valid JSON: {error}") from None
    check(content, form, str(path))
    values: dict[str, Any] = content
    return values


def csv_delimiter(text: str) -> str:
    """Return what parts the columns of a table: where a comma is for decimals, spreadsheets write semicolons.

    >>> csv_delimiter("id;label"), csv_delimiter("id,label"), csv_delimiter("id")
    (';', ',', ',')
    """
    first = text.partition("\n")[0]
    return ";" if ";" in first and "," not in first else ","


def read_csv(path: Path, hint: str) -> dict[str, list[str]]:
    """Read a table whose first line names its columns: name → cells, as texts.

    Args:
        path: the file.
        hint: what to say of one that is empty: which columns there should be.
    """
    with reading(path, ".csv file"):
        text = read_text(path).removeprefix("\ufeff")
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=csv_delimiter(text)))
    if not any(rows):
        raise SafdaError(f"{path}: is empty; {hint}")
    for number, row in enumerate(rows, 1):
        if row and len(row) != len(rows[0]):
            raise SafdaError(f"{path}: line {number} has {len(row)} columns, the first has {len(rows[0])}")
    return {name.strip(): [row[i] for row in rows[1:] if row] for i, name in enumerate(rows[0])}


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Return what a TOML text holds."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SafdaError(f"{where}: not valid TOML: {error}") from None


def sync_dir(path: Path) -> None:
    """Bring a folder's entries to the disk, so that a file that was renamed in it stays so."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class disk_errors:
    """Turn what the operating system says of a disk into one line: for use in ``with``."""

    def __init__(self, path: Path, done: str = "written") -> None:
        self.path, self.done = path, done

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError):
            raise SafdaError(f"{self.path}: cannot be {self.done}: {error.strerror or error}") from error


# -------------------------------------------------------------------------------------------------------------- tables


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
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise SafdaError(f"{path}: cannot be written: {first_line(error)}") from None
    if path.is_dir():
        raise SafdaError(f"{path}: is a folder; name a file in it")
    if not path.parent.is_dir():
        raise SafdaError(f"{path}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise SafdaError(f"{path}: nothing can be written in the folder {path.parent}; choose another")


def refuse_overwriting(path: Path, inputs: Iterable[str | Path]) -> None:
    """Make sure that a file to be written is none of those that are read, by whatever name."""
    if path.exists() and any(os.path.exists(each) and path.samefile(each) for each in inputs):
        raise SafdaError(f"{path}: belongs to what this command reads, and would be written over; choose another name")


def refuse_within(folder: Path, inputs: Iterable[str | Path]) -> None:
    """Make sure that a folder to be written lies in none of those that are read: it would be taken for a part of it."""
    for each in inputs:
        if os.path.isdir(each) and folder.resolve().is_relative_to(Path(each).resolve()):
            raise SafdaError(f"{folder}: lies within {each}, and would be taken for a part of it; choose another -o")


def require_table(path: Path) -> None:
    """Make sure that a table can be written there, in the format that its ending names."""
    require_writable(path, WRITERS)
    if path.suffix == ".parquet":
        _pyarrow()


def write_table(path: Path, columns: Columns) -> None:
    """Write ``.csv``, ``.jsonl`` or ``.parquet``, whole or not at all."""
    require_table(path)
    content = WRITERS[path.suffix](columns)
    with disk_errors(path):
        write_bytes(path, content)


def _csv(columns: Columns) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in (columns, *zip(*columns.values(), strict=True)):
        writer.writerow(map(csv_cell, row))
    return text.getvalue().encode()


def json_lines(columns: Columns) -> Iterator[str]:
    """Yield a table as lines of JSON, one for each row.

    >>> list(json_lines({"id": ["a", "b"], "class": ["ant", "bee"]}))
    ['{"id": "a", "class": "ant"}', '{"id": "b", "class": "bee"}']
    """
    for row in zip(*columns.values(), strict=True):
        yield to_json(dict(zip(columns, row, strict=True)))


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
        raise SafdaError("writing .parquet needs pyarrow: pip install pyarrow") from None
    return pyarrow


#: Ending → what makes the file's content.
WRITERS: dict[str, Callable[[Columns], bytes]] = {".csv": _csv, ".jsonl": _json_lines, ".parquet": _parquet}
