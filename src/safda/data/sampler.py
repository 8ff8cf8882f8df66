"""Which samples a step takes: a function of the seed and the step alone."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

_LABELLED_SHARE = 4  # one in so many rows of a batch
_LABELLED_DRAWS = 2  # keeps these epochs apart from those of source (0) and target (1)


class Sampler(Protocol):
    """Who chooses a step's samples of one domain."""

    def rows(self, step: int) -> Tensor:
        """Return the row numbers of one step's batch: the same whoever asks, and how often."""


class EpochSampler:
    """Batches of row numbers, epoch after epoch without replacement, as a pure function of the step.

    Nothing here is state that a checkpoint would have to hold: ``rows(step)`` is the same whoever asks.

    >>> sampler = EpochSampler(samples=5, batch=2, seed=0, domain=0)
    >>> sorted(torch.cat([sampler.rows(step) for step in range(5)]).tolist())    # two epochs of five
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    """

    def __init__(self, samples: int, batch: int, seed: int, domain: int) -> None:
        self.samples, self.batch, self.seed, self.domain = samples, batch, seed, domain
        self._epochs: dict[int, Tensor] = {}

    def rows(self, step: int) -> Tensor:
        """Return the row numbers of one step's batch."""
        start, stop = step * self.batch, (step + 1) * self.batch
        parts = []
        while start < stop:
            epoch, offset = divmod(start, self.samples)
            part = self._epoch(epoch)[offset : offset + stop - start]
            parts.append(part)
            start += len(part)
        return torch.cat(parts)

    def _epoch(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            generator = torch.Generator().manual_seed(mixed_seed(self.seed, self.domain, epoch))
            newest = {epoch - 1: self._epochs[epoch - 1]} if epoch - 1 in self._epochs else {}
            self._epochs = {**newest, epoch: torch.randperm(self.samples, generator=generator)}
        return self._epochs[epoch]


class LabelledSampler:
    """Another sampler's batches, in which up to a quarter of the rows give way to samples whose labels are known.

    So each of these few is seen often, however large the domain. They are spread evenly over a batch: every process
    gets its share.

    Args:
        default: whose batches these are.
        labelled: row numbers of the samples whose labels are known.
        batch: samples in a step.
        seed: decides every draw.

    >>> sampler = LabelledSampler(EpochSampler(100, 8, 0, 1), torch.tensor([3, 5, 7]), batch=8, seed=0)
    >>> sorted(torch.cat([sampler.rows(step)[::4] for step in range(3)]).tolist())    # two epochs of three
    [3, 3, 5, 5, 7, 7]
    """

    def __init__(self, default: Sampler, labelled: Tensor, batch: int, seed: int) -> None:
        count = min(len(labelled), max(1, batch // _LABELLED_SHARE))
        self._default, self._labelled = default, labelled
        self._places = torch.arange(count) * batch // count
        self._turns = EpochSampler(len(labelled), count, seed, _LABELLED_DRAWS)

    def rows(self, step: int) -> Tensor:
        """Return the row numbers of one step's batch."""
        rows = self._default.rows(step).clone()
        rows[self._places] = self._labelled[self._turns.rows(step)]
        return rows


def mixed_seed(*parts: int) -> int:
    """Make one well-mixed seed of several small numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


def evenly_spaced_rows(size: int, most: int) -> Tensor:
    """Return row numbers evenly over a domain: all, if there are not more than ``most``.

    >>> evenly_spaced_rows(7, most=3).tolist(), evenly_spaced_rows(2, most=3).tolist()
    ([0, 3, 6], [0, 1])
    """
    return torch.linspace(0, size - 1, min(size, most), dtype=torch.float64).round().long()
