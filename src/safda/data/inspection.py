"""Every file is opened once before it is used: can it be read, what is odd about it, what is its content's digest.

What was found is remembered until anything about the file changes that the system keeps account of, so a second look
at the same files costs little.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, UnidentifiedImageError

from safda.data.pixels import FORMATS, content_digest, decoding, orientation, to_rgb, upright_size
from safda.data.settings import cached_folders, num_workers, writable_cache
from safda.errors import SafdaWarning, first_line
from safda.io import write_bytes

if TYPE_CHECKING:
    from safda.data.loader import ProgressCallback

NOT_AN_IMAGE = "not a picture"
_VERSION = 2  # of what inspection says; another makes it forget
_TICK = 2_000_000_000  # nanoseconds between two ticks of a file system's clock: FAT's is the slowest
_MOST_BYTES = 2**30  # of a file that is looked into
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
        if file.is_file() and file.stat().st_size > _MOST_BYTES:
            return Inspected("too large to be a picture")
        content = file.read_bytes() if file.is_file() else None
    except (OSError, ValueError) as error:
        return Inspected(f"cannot be opened: {first_line(error)}")
    if content is None:
        broken = "a link to nothing" if file.is_symlink() else "not a file" if file.exists() else "no such file"
        return Inspected(broken)
    digest = content_digest(content)
    if not content:
        return Inspected("empty: zero bytes", digest)
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError:
        return Inspected(NOT_AN_IMAGE, digest)
    except Image.DecompressionBombError:
        return Inspected("too large to be decoded safely", digest)
    except Exception as error:  # decoders raise whatever the damage makes them stumble over
        return Inspected(f"broken: {first_line(error)}", digest)
    try:
        size = image.size
        image.draft("RGB", (_PREVIEW, _PREVIEW))
        with decoding(image):
            size, traits = upright_size(size, image), _traits(image)
            to_rgb(image).load()
    except Exception as error:  # likewise
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
    key = hashlib.sha256(f"{_VERSION} ".encode() + os.fsencode(Path(name).resolve())).hexdigest()[:32]
    known: dict[str, Any] = {}
    for folder in cached_folders("inspected"):
        known |= _load_findings(folder / key, name)
    now = time.time_ns()
    states = [_state(file, now) for file in files]
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
        _save_findings(
            writable_cache("inspected") / key,
            {each: (state, found[each]) for each, state in zip(ids, states, strict=True)},
        )
    return [found[each] for each in ids]


def _state(file: Path, now: int) -> list[int]:
    """Return what changes with a file's content; nothing for what is not there, or has changed a moment ago.

    Size and date can be made what they were, by a copy that keeps dates say; the system's own time of change cannot.
    """
    try:
        state = file.stat()
    except (OSError, ValueError):
        return []
    if state.st_ctime_ns > now - _TICK:  # another change within the same tick would go unseen
        return []
    return [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]


def _load_findings(file: Path, name: str) -> dict[str, Any]:
    try:
        checksum, _, content = file.read_bytes().partition(b"\n")
    except OSError:
        return {}
    if content_digest(content).encode() != checksum:
        what = f"what was found in {name} before is damaged; its files are opened again"
        warnings.warn(f"{file}: {what}", SafdaWarning, stacklevel=2)
        return {}
    return {
        each: (state, Inspected(about["problem"], about["digest"], tuple(about["size"]), tuple(about["traits"])))
        for each, (state, about) in json.loads(content).items()
    }


def _save_findings(file: Path, known: dict[str, Any]) -> None:
    content = json.dumps({each: [state, asdict(about)] for each, (state, about) in known.items()}).encode()
    try:
        write_bytes(file, content_digest(content).encode() + b"\n" + content)
    except OSError:
        return  # memory is a convenience: without it, files are opened again
