"""The feature cache: what a fixed backbone makes of each picture, computed once and read from disk ever after.

A picture is known by its content, the backbone by its weights and input size, so whatever of them changes is
computed anew and nothing else. Each extraction writes a segment of its own: two files that only grow, first the
rows and then, once these are safely on disk, the digests of their pictures. A row without a digest is no row, so
a kill loses at most one batch, and any number of processes can read and write at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np
import torch
from torch import Tensor

from safda.data.domain import Domain, ImageFiles
from safda.data.images import TransformedImages
from safda.data.loader import ProgressCallback, read_ahead
from safda.data.memmap import MemmapRows, Segment
from safda.data.settings import cache_dir, num_workers
from safda.errors import SafdaError

_BATCH = 32
_DIGEST = 16  # bytes


def cached_features(
    domain: Domain,
    extract: Callable[[Tensor], Tensor],
    key: str,
    width: int,
    progress: ProgressCallback | None = None,
) -> Domain:
    """Return a domain of features in place of one of pictures.

    Args:
        domain: the pictures.
        extract: the backbone: from a batch of pictures to n×width features.
        key: all that the features depend on but the pictures.
        width: size of a feature.
        progress: called with (done, total) as it goes on.
    """
    images = domain.inputs
    if not isinstance(images, TransformedImages):
        return domain
    digests = images.files.digests
    folder = cache_dir() / "features" / f"{key}-{images.transform.key}-{width}"
    locations = _locations(folder)
    missing = list({digest: row for row, digest in enumerate(digests) if digest not in locations}.values())
    if missing:
        _extract(domain, images.files, missing, extract, folder, progress)
        locations = _locations(folder)
    found = [locations[digest] for digest in digests]
    paths = sorted({path for path, _ in found})
    number = {path: k for k, path in enumerate(paths)}
    segments = [Segment(path, 0, np.dtype(np.float32), width) for path in paths]
    segment_numbers = np.array([number[path] for path, _ in found])
    return replace(domain, inputs=MemmapRows(segments, segment_numbers, np.array([row for _, row in found])))


def _extract(
    domain: Domain,
    files: ImageFiles,
    rows: list[int],
    extract: Callable[[Tensor], Tensor],
    folder: Path,
    progress: ProgressCallback | None,
) -> None:
    parts = torch.split(torch.tensor(rows), _BATCH)
    done = 0
    with _SegmentWriter(folder) as writer:
        for part, inputs in zip(parts, read_ahead(domain.batch, parts, num_workers()), strict=True):
            features = extract(inputs)
            if not torch.isfinite(features).all():
                row = int(part[~torch.isfinite(features).all(1)][0])
                raise SafdaError(f"{files.paths[row]}: the backbone makes features of it that are not finite")
            writer.append(features, (files.digests[row] for row in part.tolist()))
            done += len(part)
            if progress:
                progress(done, len(rows))


def _locations(folder: Path) -> dict[str, tuple[Path, int]]:
    """Return where the features of each picture are: digest → (file, row)."""
    locations = {}
    for digests in sorted(folder.glob("*.digests")):
        content = digests.read_bytes()
        for row in range(len(content) // _DIGEST):
            digest = content[row * _DIGEST : (row + 1) * _DIGEST].hex()
            locations[digest] = (digests.with_suffix(".rows"), row)
    return locations


class _SegmentWriter:
    """A new segment."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            name = f"{time.time_ns()}-{os.getpid()}"
            self._rows, self._digests = ((folder / f"{name}.{kind}").open("ab") for kind in ("rows", "digests"))
        except OSError as error:
            raise SafdaError(f"{folder}: cannot hold the feature cache: {error.strerror}") from None

    def append(self, features: Tensor, digests: Iterable[str]) -> None:
        """Write rows, and only when they are on disk say whose they are."""
        try:
            _write(self._rows, features.float().cpu().contiguous().numpy().tobytes())
            _write(self._digests, b"".join(map(bytes.fromhex, digests)))
        except OSError as error:
            raise SafdaError(f"{self._rows.name}: cannot be written: {error.strerror}") from None

    def __enter__(self) -> _SegmentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows.close()
        self._digests.close()


def _write(file: IO[bytes], content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
