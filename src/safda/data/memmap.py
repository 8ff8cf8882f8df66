"""Rows of numbers that stay on disk: memory-mapped, and let go again once a batch has been copied out."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_CHUNK = 4096  # rows read together where all of them pass by


@dataclass(frozen=True)
class Segment:
    """One file of rows, all of one width, after a header of ``offset`` bytes."""

    path: Path
    offset: int
    dtype: np.dtype[Any]
    width: int

    @cached_property
    def _map(self) -> mmap.mmap:
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Copy these rows out."""
        count = (len(self._map) - self.offset) // (self.width * self.dtype.itemsize)
        values = np.frombuffer(self._map, self.dtype, count * self.width, self.offset).reshape(count, self.width)
        copied = values[numbers].astype(np.float32, copy=False)
        # Pages once read would count as this process's memory until the whole file did.
        self._map.madvise(mmap.MADV_DONTNEED)
        return copied


class MemmapRows:
    """Rows picked from segments, as the inputs of a domain.

    Args:
        segments: the files.
        segment_of: for each sample, the number of its segment.
        rows: for each sample, its row there.
    """

    dtype = torch.float32

    def __init__(self, segments: Sequence[Segment], segment_of: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        self._segments, self._segment_of, self._rows = segments, segment_of, rows

    @property
    def shape(self) -> tuple[int, int]:
        """How many samples, and how wide."""
        return len(self._rows), self._segments[0].width

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Read these samples."""
        asked = rows.numpy()
        batch = np.empty((len(asked), self.shape[1]), dtype=np.float32)
        for number, segment in enumerate(self._segments):
            here = self._segment_of[asked] == number
            if here.any():
                batch[here] = segment.rows(self._rows[asked[here]])
        return torch.from_numpy(batch)

    def augmented(self, rows: Tensor, uniforms: NDArray[np.float64]) -> Tensor:
        """Read these samples: features are what they are."""
        return self[rows]

    def take(self, rows: Tensor) -> MemmapRows:
        """Return these samples alone; nothing is read."""
        asked = rows.numpy()
        return MemmapRows(self._segments, self._segment_of[asked], self._rows[asked])

    def fingerprint(self) -> str:
        """Return a digest of all samples."""
        digest = hashlib.sha256(str(self.shape).encode())
        for rows in torch.split(torch.arange(len(self)), _CHUNK):
            digest.update(self[rows].numpy().data)
        return digest.hexdigest()[:32]
