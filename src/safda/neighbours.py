"""Who is near whom among the target's samples, and what they say together.

A sample that the classifier gets wrong often lies among others that it gets right. So :class:`Neighbourhood` keeps the
latest prediction of every target sample, and lets predictions spread from neighbour to neighbour. The search is made
once, and they spread twice in a pass over the target; so a step costs the same however many samples there are.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn import functional as F

from safda.data import Domain
from safda.data.feed import Count, evaluation_batches, feature_batches
from safda.networks import Centred

_MOST_CANDIDATES = 16384  # neighbours are sought among so many, spread over the domain: the search stays linear
_FEWEST_NEIGHBOURS, _MOST_NEIGHBOURS = 3, 100
_FOCUS = 3  # a neighbour counts by its similarity to this power
_ONE_WAY = 0.05  # so much does a neighbour count that is not one the other way round
_ROUNDS = 20  # from neighbour to neighbour; what is further away counts for little


class Neighbourhood:
    """The nearest neighbours of each sample of a domain, by the cosine of features of length one, centred.

    Args:
        domain: the target; its samples must be features.
        classes: number of classes K.
        neighbours: how many each sample has, as a share of n/K, the mean size of a class: three at least, and a
            hundred at most.
        share: the neighbours' part α in a label.
        count: told how far the search is.

    Example:
        >>> two_groups = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 2.0]])
        >>> near = Neighbourhood(Domain("target", two_groups), classes=2)
        >>> near.update(torch.tensor([1]), torch.tensor([[0.9, 0.1]]))
        >>> near.spread()
        >>> near.labels[torch.tensor([0, 3])]        # nothing that is known is near the last sample
        tensor([[0.9000, 0.1000],
                [0.0000, 0.0000]])
    """

    def __init__(
        self, domain: Domain, classes: int, neighbours: float = 0.2, share: float = 0.9, count: Count | None = None
    ) -> None:
        most = min(max(_FEWEST_NEIGHBOURS, round(neighbours * len(domain) / classes)), _MOST_NEIGHBOURS)
        self.links, self.share = links(*nearest_rows(domain, most, count)), share
        self.predictions = torch.zeros(len(domain), classes)
        self.labels = torch.zeros(len(domain), classes)

    def update(self, rows: Tensor, predictions: Tensor) -> None:
        """Remember what the classifier says of these samples now, as probabilities."""
        self.predictions[rows.to(self.predictions.device)] = predictions.to(self.predictions)

    def spread(self) -> None:
        """Make labels of predictions by label spreading (Zhou et al., 2004): Y = (1 − α)·P + α·L·Y.

        A sample stays all zeros as long as none of those that it hears of has been seen.
        """
        own = (1 - self.share) * self.predictions.numpy()
        labels = own
        for _ in range(_ROUNDS):
            labels = own + self.share * (self.links @ labels)
        total = labels.sum(1, keepdims=True)
        self.labels = torch.from_numpy(labels / np.maximum(total, np.finfo(total.dtype).tiny))


def links(rows: Tensor, weights: Tensor) -> csr_array:
    """Give L = D^−½·S·D^−½, where S has the weights of those who are each other's neighbours, and D its rows' sums.

    Who is a neighbour one way only counts for little: some samples are near to everyone.
    """
    samples, count = rows.shape
    starts = count * np.arange(samples + 1)
    one_way = csr_array((weights.numpy().ravel(), rows.numpy().ravel(), starts), shape=(samples, samples))
    mutual = one_way.minimum(one_way.T)
    weight = (mutual + _ONE_WAY * (one_way.maximum(one_way.T) - mutual)).tocsr().astype(np.float32)
    degree: NDArray[np.float32] = weight.sum(1)
    scale = np.where(degree > 0, degree, 1) ** -0.5
    weight.data *= scale.repeat(np.diff(weight.indptr)) * scale[weight.indices]
    return weight


def nearest_rows(domain: Domain, most: int, count: Count | None = None) -> tuple[Tensor, Tensor]:
    """Find each sample's ``most`` nearest others, all of them if there are fewer: row numbers and weights."""
    candidates = torch.linspace(0, len(domain) - 1, min(len(domain), _MOST_CANDIDATES)).round().long()
    most = min(most, len(candidates) - 1)
    centred = Centred(domain.inputs.shape[-1])
    centred.learn(feature_batches(domain, "saf.neighbours"))
    known = F.normalize(centred(domain.batch(candidates).float()))
    rows, weights, start = [], [], 0
    for batch in evaluation_batches(domain):
        alike = F.normalize(centred(batch.float())) @ known.T
        own = torch.arange(start, start + len(batch)).unsqueeze(1) == candidates
        values, columns = alike.masked_fill_(own, -torch.inf).topk(most)
        rows.append(candidates[columns])
        weights.append(values.clamp_min(0) ** _FOCUS)
        start += len(batch)
        if count:
            count(start, len(domain))
    return torch.cat(rows), torch.cat(weights)
