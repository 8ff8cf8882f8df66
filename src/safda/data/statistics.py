"""What rows of features look like, in one pass over them that stays small in memory however many there are."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safda.data.domain import AnyDomain, Domain
from safda.data.loader import evaluation_batches
from safda.errors import SafdaError

_DIGEST = 16  # bytes: of two different rows, equal digests are not to be expected in any lifetime


@dataclass(frozen=True)
class RowStatistics:
    """What one pass over a domain's rows found.

    Attributes:
        length: mean length of a row.
        std: standard deviation of all values together.
        zeros: share of values that are zero.
        empty: which rows are zeros only.
        columns: standard deviation of each column.
        constant: for each column, whether it never changes.
        digests: of each row's content.
    """

    length: float
    std: float
    zeros: float
    empty: NDArray[np.int64]
    columns: NDArray[np.float64]
    constant: NDArray[np.bool_]
    digests: NDArray[np.bytes_]


def require_variety(domain: AnyDomain) -> None:
    """Refuse features that are the same for all samples: nothing could be learned from them, nor told of them."""
    if not isinstance(domain, Domain) or len(domain) < 2:
        return
    first = domain.batch(torch.tensor([0]))
    if not any((batch != first).any() for batch in evaluation_batches(domain)):
        told = f"all {len(domain)} samples have the very same features, so nothing tells them apart"
        raise SafdaError(f"{domain.name}: {told}; look at how they were made")


def row_statistics(domain: Domain) -> RowStatistics:
    """Compute statistics of a domain's rows in one pass; samples of more than one dimension are taken as rows.

    >>> rows = row_statistics(Domain("d", torch.tensor([[3.0, 4.0, 0.0], [0.0, 4.0, 3.0], [0.0, 0.0, 0.0]])))
    >>> round(rows.length, 3), rows.empty.tolist(), rows.constant.tolist()
    (3.333, [2], [False, False, False])
    """
    count, width = len(domain), math.prod(domain.inputs.shape[1:])
    digests = np.empty(count, dtype=f"S{_DIGEST}")
    empty = torch.empty(count, dtype=torch.bool)
    first = domain.batch(torch.tensor([0])).flatten(1).double()[0]
    changes = torch.zeros(width, dtype=torch.bool)
    total, squares = torch.zeros(2, width, dtype=torch.float64)
    length, zeros, done = 0.0, 0, 0
    for batch in evaluation_batches(domain):
        rows = batch.flatten(1) + 0.0  # which makes zero of minus zero
        here = slice(done, done + len(rows))
        digests[here] = [_digest(row) for row in rows.numpy()]
        is_zero = rows == 0
        empty[here], zeros = is_zero.all(1), zeros + int(is_zero.sum())
        values = rows.double()
        length += float(values.norm(dim=1).sum())
        values -= first  # small numbers: what is large and hardly changes would lose its digits in squares
        changes |= (values != 0).any(0)
        total, squares, done = total + values.sum(0), squares + values.square().sum(0), here.stop
    means, variances = total / count, (squares / count - (total / count).square()).clamp_min(0)
    return RowStatistics(
        length / count,
        _overall_std(means + first, variances),
        zeros / (count * width),
        empty.nonzero().flatten().numpy(),
        variances.sqrt().numpy(),
        ~changes.numpy(),
        digests,
    )


def _digest(row: NDArray[np.float32]) -> bytes:
    return hashlib.blake2b(row.data, digest_size=_DIGEST).digest()


def _overall_std(means: Tensor, variances: Tensor) -> float:
    """Return the standard deviation of all values, from the moments of each column."""
    return math.sqrt(float(variances.mean() + means.var(correction=0)))
