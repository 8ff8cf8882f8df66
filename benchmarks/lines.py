"""Results as lines of JSON, one a run, in a file that survives a stop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safda.errors import SafdaError
from safda.io import read_text

Line = dict[str, Any]


def read_lines(file: Path) -> list[Line]:
    """Read the runs that were made before; none if there is no file."""
    try:
        return [json.loads(line) for line in read_text(file).splitlines()] if file.exists() else []
    except ValueError as error:
        raise SafdaError(f"{file}: is not lines of JSON ({error}); mend it, or choose another -o") from None


def add_line(file: Path, line: Mapping[str, Any]) -> None:
    """Add a run."""
    with file.open("a", encoding="utf-8") as opened:
        opened.write(json.dumps(line, ensure_ascii=False) + "\n")
