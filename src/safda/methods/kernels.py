"""Gaussian kernels, and the maximum mean discrepancy that they tell, for methods that match distributions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from safda.methods.base import precisely

#: Widths of the kernels, as multiples of the rows' mean squared distance, as DAN's and JAN's authors have them.
WIDTHS = tuple(2.0**k for k in range(-3, 2))


@precisely  # a small difference of large numbers
def squared_distances(rows: Tensor) -> Tensor:
    """Return ‖x − y‖² of all pairs of rows.

    >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([[ 0., 25.],
            [25.,  0.]])
    """
    lengths = rows.square().sum(1)
    return (lengths.unsqueeze(1) + lengths - 2 * rows @ rows.T).clamp_min(0)


def gaussian_kernels(rows: Tensor, widths: Sequence[float] = WIDTHS) -> Tensor:
    """Return the sum of Gaussian kernels of all pairs of rows: exp(−d²/2σ²), σ² being a width times the mean d².

    σ passes no gradient.

    >>> gaussian_kernels(torch.tensor([[0.0], [2.0]]), [1.0])    # d² is 4, and on average 2
    tensor([[1.0000, 0.3679],
            [0.3679, 1.0000]])
    """
    squared = squared_distances(rows)
    rounding = torch.finfo(squared.dtype).eps * rows.detach().to(squared).square().sum(1).mean()
    mean = squared.detach().mean().clamp_min(rounding + torch.finfo(squared.dtype).tiny)  # rows that coincide have none
    scaled = squared / (2 * mean)
    return torch.stack([torch.exp(-scaled / width) for width in widths]).sum(0)


def mean_discrepancy(kernel: Tensor, sources: int, linear: bool = False) -> Tensor:
    """Return an unbiased estimate of the squared MMD of source and target; it may be a little below zero.

    Args:
        kernel: of all pairs of rows, the source's first.
        sources: how many of them are the source's.
        linear: compare each row with the next one only, of both domains, as many as both have.
    """
    if linear:
        first = torch.arange(min(sources, len(kernel) - sources), device=kernel.device)
        second = first.roll(-1)
        within = kernel[first, second] + kernel[sources + first, sources + second]
        return (within - kernel[first, sources + second] - kernel[second, sources + first]).mean()
    source, target = kernel[:sources, :sources], kernel[sources:, sources:]
    return _mean_of_others(source) + _mean_of_others(target) - 2 * kernel[:sources, sources:].mean()


def _mean_of_others(kernel: Tensor) -> Tensor:
    """Mean over pairs of different rows."""
    rows = len(kernel)
    return (kernel.sum() - kernel.diagonal().sum()) / max(1, rows * (rows - 1))
