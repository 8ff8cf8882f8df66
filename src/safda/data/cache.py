"""The feature cache: what a fixed backbone makes of each picture, computed once and read from disk ever after.

A picture is known by its content, the backbone by its weights, layers and input size, so whatever of them changes is
computed anew and nothing else. Each extraction writes a segment of its own: two files that only grow, first the
rows and then, once these are safely on disk, an index: the digests of their pictures, each with a checksum of its
row. A row that the index does not have, or whose checksum does not fit, is no row: a kill loses at most one batch,
damage costs no more than the time to compute a row again, and any number of processes can read and write at once.
"""

from __future__ import annotations

import io
import os
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, TypeAlias

import numpy as np
import torch
from torch import Tensor

from safda.data.ahead import read_ahead
from safda.data.array_files import Segment
from safda.data.domain import Domain
from safda.data.files import ImageFiles
from safda.data.images import TransformedImages
from safda.data.loader import ProgressCallback
from safda.data.memmap import MemmapRows
from safda.data.settings import cache_dir, cached_folders, num_workers, writable_cache
from safda.errors import SafdaError, SafdaWarning

_BATCH = 32
_DIGEST, _CHECKSUM = 16, 4  # bytes
_ENTRY = _DIGEST + _CHECKSUM  # of the index
_CLOSE = 0.01  # a feature and itself on another device differ by less, in proportion to its length

#: Where the features of pictures are: digest → (file, row).
Locations: TypeAlias = dict[str, tuple[Path, int]]


def cached_features(
    domain: Domain,
    extract: Callable[[Tensor], Tensor],
    key: str,
    width: int,
    progress: ProgressCallback | None = None,
    doubt: bool = False,
) -> Domain:
    """Return a domain of features in place of one of pictures.

    Args:
        domain: the pictures.
        extract: the backbone: from a batch of pictures to n×width features.
        key: all that the features depend on but the pictures.
        width: size of a feature.
        progress: called with (done, total) as it goes on.
        doubt: whether another backbone may have the same key: what is there is used only where this one agrees with it.
    """
    images = domain.inputs
    if not isinstance(images, TransformedImages):
        return domain
    digests = images.files.digests
    name = f"features/{key}-{images.transform.key}-{width}"
    found, damaged = _find_rows(cached_folders(name), set(digests), width)
    if damaged:
        what = f"{damaged} rows of the feature cache are damaged; they are computed again"
        warnings.warn(f"{cache_dir() / name}: {what}", SafdaWarning, stacklevel=2)
    if doubt:
        found = _agreed(found, domain, digests, extract, width)
    missing = list({digest: row for row, digest in enumerate(digests) if digest not in found}.values())
    if missing:
        found |= _extract(domain, images.files, missing, extract, name, progress)
    places = [found[digest] for digest in digests]
    paths = sorted({path for path, _ in places})
    number = {path: k for k, path in enumerate(paths)}
    segments = [Segment(path, 0, np.dtype(np.float32), width) for path in paths]
    segment_numbers = np.array([number[path] for path, _ in places])
    return replace(domain, inputs=MemmapRows(segments, segment_numbers, np.array([row for _, row in places])))


def _agreed(
    found: Locations, domain: Domain, digests: Sequence[str], extract: Callable[[Tensor], Tensor], width: int
) -> Locations:
    """Leave out segments of which one row is not what the backbone makes of its picture."""
    first: dict[Path, int] = {}
    for row, digest in enumerate(digests):
        if digest in found:
            first.setdefault(found[digest][0], row)
    foreign = set[Path]()
    for path, row in first.items():
        segment = Segment(path, 0, np.dtype(np.float32), width)
        kept = torch.from_numpy(segment.rows(np.array([found[digests[row]][1]])))
        difference = extract(domain.batch(torch.tensor([row]))).float().cpu() - kept
        if not difference.norm() <= _CLOSE * kept.norm():
            foreign.add(path)
    return {digest: place for digest, place in found.items() if place[0] not in foreign}


def _extract(
    domain: Domain,
    files: ImageFiles,
    rows: list[int],
    extract: Callable[[Tensor], Tensor],
    name: str,
    progress: ProgressCallback | None,
) -> Locations:
    """Compute features in a new segment, and return where they are."""
    parts = torch.split(torch.tensor(rows), _BATCH)
    found: Locations = {}
    with _SegmentWriter(writable_cache(name)) as writer:
        for part, inputs in zip(parts, read_ahead(domain.batch, parts, num_workers()), strict=True):
            features = extract(inputs)
            if not torch.isfinite(features).all():
                row = int(part[~torch.isfinite(features).all(1)][0])
                raise SafdaError(f"{files.paths[row]}: the backbone makes features of it that are not finite")
            found |= writer.append(features, [files.digests[row] for row in part.tolist()])
            if progress:
                progress(len(found), len(rows))
    return found


def _find_rows(folders: Sequence[Path], wanted: set[str], width: int) -> tuple[Locations, int]:
    """Return where the features of pictures are, and how many are nowhere but in damaged rows."""
    found: Locations = {}
    damaged: set[str] = set()
    for index in (file for folder in folders for file in sorted(folder.glob("*.index"), reverse=True)):
        for digest, row, whole in _segment_rows(index, wanted - found.keys(), width):
            if whole:
                found[digest] = (index.with_suffix(".rows"), row)
            else:
                damaged.add(digest)
    return found, len(damaged - found.keys())


def _segment_rows(index: Path, wanted: set[str], width: int) -> Iterator[tuple[str, int, bool]]:
    """Yield those rows of a segment that are wanted: the picture's digest, the row's number and whether it is whole."""
    size = width * np.dtype(np.float32).itemsize
    try:
        entries = index.read_bytes()
    except OSError:  # another user's
        return
    with _opened(index.with_suffix(".rows")) as rows:
        for row in range(len(entries) // _ENTRY):
            entry = entries[row * _ENTRY : (row + 1) * _ENTRY]
            digest = entry[:_DIGEST]
            if digest.hex() in wanted:
                rows.seek(row * size)
                yield digest.hex(), row, entry == _entry(digest, rows.read(size))


def _entry(digest: bytes, row: bytes) -> bytes:
    """Return a row's entry in the index: whose it is, and a checksum of both."""
    return digest + zlib.crc32(digest + row).to_bytes(_CHECKSUM, "little")


def _opened(path: Path) -> IO[bytes]:
    """Open a file to read; one that cannot be read is as good as empty."""
    try:
        return path.open("rb")
    except OSError:
        return io.BytesIO()


class _SegmentWriter:
    """A new segment."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{time.time_ns()}-{os.getpid()}.rows"
        self._written = 0
        try:
            self._rows, self._index = (self._path.with_suffix(kind).open("ab") for kind in (".rows", ".index"))
        except OSError as error:
            raise SafdaError(f"{folder}: cannot hold the feature cache: {error.strerror}") from None

    def append(self, features: Tensor, digests: Sequence[str]) -> Locations:
        """Write rows, only when they are on disk say whose they are, and return where."""
        rows = [row.tobytes() for row in features.float().cpu().numpy()]
        try:
            _write(self._rows, b"".join(rows))
            _write(self._index, b"".join(_entry(bytes.fromhex(d), row) for d, row in zip(digests, rows, strict=True)))
        except OSError as error:
            raise SafdaError(f"{self._rows.name}: cannot be written: {error.strerror}") from None
        first, self._written = self._written, self._written + len(rows)
        return {digest: (self._path, first + i) for i, digest in enumerate(digests)}

    def __enter__(self) -> _SegmentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows.close()
        self._index.close()


def _write(file: IO[bytes], content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
