"""Mixes of inputs, for methods that send them through the network again."""

from __future__ import annotations

import torch
from torch import Tensor

from safda.methods.base import Batch


def mixed(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    """Return weight · first + (1 − weight) · second, with a weight for each row or one for all.

    >>> mixed(torch.ones(2, 1), torch.zeros(2, 1), torch.tensor([0.2, 1.0]))
    tensor([[0.2000],
            [1.0000]])
    """
    return torch.lerp(second, first, weight.to(second).view(-1, *[1] * (second.ndim - 1)))


def draw_beta(concentration: float, rows: int, like: Tensor) -> Tensor:
    """Return weights from Beta(α, α), by torch's global generator, where another tensor is and of its type."""
    return torch.distributions.Beta(concentration, concentration).sample((rows,)).to(like)


def mates_within(batch: Batch) -> Tensor:
    """Return a row number for each row of a batch, of a random one of its own domain."""
    source, target = batch.split(batch.rows)
    orders = [torch.randperm(len(rows), device=rows.device) for rows in (source, target)]
    return torch.cat([orders[0], len(source) + orders[1]])
