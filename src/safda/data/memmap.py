"""Rows of numbers that stay on disk, as the inputs of a domain."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safda.data.array_files import Segment

_CHUNK = 4096  # rows read together where all of them pass by


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
