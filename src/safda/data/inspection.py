"""Every file is opened once before it is used: can it be read, what is odd about it, what is its content's digest.

What was found is remembered by path, size and time of change, so a second look at the same files costs little.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

from safda.data.images import FORMATS, first_line, orientation, to_rgb, upright_size
from safda.data.loader import ProgressCallback
from safda.data.settings import cache_dir, num_workers
from safda.io import write_text

NOT_AN_IMAGE = "not a picture"
_VERSION = 1  # of what inspection says; another makes it forget
_PREVIEW = 32  # a JPEG is decoded this small where that is enough to know that it can be


@dataclass(frozen=True)
class Inspected:
    """What is known of one file.

    Attributes:
        problem: why it cannot be used; empty if it can.
        digest: of its content.
        size: width and height, upright.
        traits: what is odd about it and is put right in reading.
    """

    problem: str = ""
    digest: str = ""
    size: tuple[int, int] = (0, 0)
    traits: tuple[str, ...] = ()


def inspect(file: Path) -> Inspected:
    """Open one file."""
    try:
        content = file.read_bytes() if file.is_file() else None
    except OSError as error:
        return Inspected(f"cannot be opened: {error.strerror}")
    if content is None:
        broken = "a link to nothing" if file.is_symlink() else "not a file" if file.exists() else "no such file"
        return Inspected(broken)
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    if not content:
        return Inspected("empty: zero bytes", digest)
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError:
        return Inspected(NOT_AN_IMAGE, digest)
    except Image.DecompressionBombError:
        return Inspected("too large to be decoded safely", digest)
    except (OSError, ValueError, SyntaxError) as error:
        return Inspected(f"broken: {first_line(error)}", digest)
    try:
        size, traits = upright_size(image), _traits(image)
        image.draft("RGB", (_PREVIEW, _PREVIEW))
        to_rgb(image).load()
    except Exception as error:  # decoders raise whatever the damage makes them stumble over
        return Inspected(f"broken: {first_line(error)}", digest)
    return Inspected("", digest, size, traits)


def _traits(image: Any) -> tuple[str, ...]:
    mode = image.mode
    found = {
        "CMYK": mode == "CMYK",
        "palette": mode in ("P", "PA"),
        "16 bits": mode.startswith("I"),
        "floating point": mode == "F",
        "greyscale": mode in ("L", "LA", "La"),
        "black and white": mode == "1",
        "transparent": mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info,
        "rotated by EXIF": orientation(image) != 1,
        "animated": getattr(image, "n_frames", 1) > 1 and image.format != "MPO",
    }
    return tuple(name for name, there in found.items() if there)


def inspect_each(files: Sequence[Path], progress: ProgressCallback | None = None) -> list[Inspected]:
    """Open files, several at a time; ``progress`` is called with (done, total) as it goes on."""
    found = []
    with ThreadPoolExecutor(num_workers()) as pool:
        for done, result in enumerate(pool.map(inspect, files), 1):
            found.append(result)
            if progress:
                progress(done, len(files))
    return found


def inspect_all(
    name: str, files: Sequence[Path], ids: Sequence[str], progress: ProgressCallback | None = None
) -> list[Inspected]:
    """Open all files of a domain that have changed since they were last opened.

    Args:
        name: of the domain, under which findings are remembered.
        files: where they are.
        ids: their names.
        progress: called with (done, total) as it goes on.
    """
    key = hashlib.sha256(os.fsencode(Path(name).resolve())).hexdigest()[:32]
    cache_file = cache_dir() / "inspected" / f"{key}.json"
    known = _load_findings(cache_file)
    states = [_size_and_mtime(file) for file in files]
    found: dict[str, Inspected] = {}
    asked = []
    for file, each, state in zip(files, ids, states, strict=True):
        if state and known.get(each, (None, None))[0] == state:
            found[each] = known[each][1]
        else:
            asked.append((each, file))
    if asked:
        results = inspect_each([file for _, file in asked], progress)
        found.update((each, result) for (each, _), result in zip(asked, results, strict=True))
        _save_findings(cache_file, {each: (state, found[each]) for each, state in zip(ids, states, strict=True)})
    return [found[each] for each in ids]


def _size_and_mtime(file: Path) -> list[int]:
    """Return size and time of change; nothing for what is not there."""
    try:
        state = file.stat()
    except OSError:
        return []
    return [state.st_size, state.st_mtime_ns]


def _load_findings(cache_file: Path) -> dict[str, Any]:
    try:
        content = json.loads(cache_file.read_text(encoding="utf-8"))
        if content["version"] != _VERSION:
            return {}
        return {
            each: (state, Inspected(about["problem"], about["digest"], tuple(about["size"]), tuple(about["traits"])))
            for each, (state, about) in content["files"].items()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _save_findings(cache_file: Path, known: dict[str, Any]) -> None:
    files = {each: [state, asdict(about)] for each, (state, about) in known.items()}
    try:
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        write_text(cache_file, json.dumps({"version": _VERSION, "files": files}))
    except (OSError, UnicodeError):
        return  # memory is a convenience: without it, files are opened again
