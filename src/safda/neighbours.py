"""Who is near whom among the target's samples, and what the classifier last said of them.

A sample that the classifier gets wrong often lies among others that it gets right. So :class:`Neighbourhood` keeps the
latest prediction of every target sample, and gives for any of them the mean over its nearest neighbours. The search
is made once; a step then costs the same however many samples there are.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from safda.data import Domain
from safda.data.feed import evaluation_batches, feature_batches
from safda.networks import Centred

_MOST_CANDIDATES = 16384  # neighbours are sought among so many, spread over the domain: the search stays linear
_MOST_NEIGHBOURS = 100
_FOCUS = 3  # a neighbour counts by its similarity to this power


class Neighbourhood:
    """The nearest neighbours of each sample of a domain, by the cosine of features of length one, centred.

    Args:
        domain: the target; its samples must be features.
        share: how many neighbours a sample has, as a share of n/K, the mean size of a class: one at least, and a
            hundred at most.
        classes: number of classes K.

    Example:
        >>> two_groups = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 2.0]])
        >>> near = Neighbourhood(Domain("target", two_groups), share=0.5, classes=2)
        >>> near.update(torch.tensor([1]), torch.tensor([[0.9, 0.1]]))
        >>> near.of(torch.tensor([0, 3]))        # of the last sample's neighbour nothing is known yet
        tensor([[0.9000, 0.1000],
                [0.0000, 0.0000]])
    """

    def __init__(self, domain: Domain, share: float, classes: int) -> None:
        count = min(max(1, round(share * len(domain) / classes)), _MOST_NEIGHBOURS)
        self.rows, self.weights = nearest_rows(domain, count)
        self.predictions = torch.zeros(len(domain), classes)

    def of(self, rows: Tensor) -> Tensor:
        """Give the mean prediction of these samples' neighbours; zeros where none has been seen."""
        near = self.predictions[self.rows[rows]]
        total = torch.einsum("nk,nkc->nc", self.weights[rows], near)
        return total / total.sum(1, keepdim=True).clamp_min(torch.finfo(total.dtype).tiny)

    def update(self, rows: Tensor, predictions: Tensor) -> None:
        """Remember what the classifier says of these samples now, as probabilities."""
        self.predictions[rows.to(self.predictions.device)] = predictions.to(self.predictions)


def nearest_rows(domain: Domain, count: int) -> tuple[Tensor, Tensor]:
    """Find each sample's nearest others, all of them if there are fewer: their row numbers and weights, n×count."""
    candidates = torch.linspace(0, len(domain) - 1, min(len(domain), _MOST_CANDIDATES)).round().long()
    count = min(count, len(candidates) - 1)
    centred = Centred(domain.inputs.shape[-1])
    centred.learn(feature_batches(domain, "saf.neighbours"))
    known = F.normalize(centred(domain.batch(candidates).float()))
    rows, weights, start = [], [], 0
    for batch in evaluation_batches(domain):
        alike = F.normalize(centred(batch.float())) @ known.T
        own = torch.arange(start, start + len(batch)).unsqueeze(1) == candidates
        values, columns = alike.masked_fill_(own, -torch.inf).topk(count)
        rows.append(candidates[columns])
        weights.append(values.clamp_min(0) ** _FOCUS)
        start += len(batch)
    return torch.cat(rows), torch.cat(weights)
