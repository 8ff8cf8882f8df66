"""Who is near whom among the samples of both domains, and what they say together of the target's.

A sample that the classifier gets wrong often lies among others that it gets right. So :class:`Neighbourhood` keeps the
latest prediction of every target sample, and lets predictions spread from neighbour to neighbour. The source's samples
stand among them with their true labels: where the domains are close, these keep what spreads from going astray. The
search is made once, and labels spread twice in a pass over the target; so a step costs the same however many samples
there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import block_array, csr_array
from torch import Tensor
from torch.nn import functional as F

from safda.data import Domain
from safda.data.loader import ProgressCallback as Count
from safda.data.loader import evaluation_batches, feature_batches
from safda.nn.heads import unit_moments

_MOST_CANDIDATES = 16384  # neighbours are sought among so many, spread over a domain: the search stays linear
_FEWEST_NEIGHBOURS, _MOST_NEIGHBOURS = 3, 100
_FOCUS = 3  # a neighbour counts by its similarity to this power
_ONE_WAY = 0.05  # so much does a neighbour count that is not one the other way round
_LEAST_VARIANCE = 1e-12  # of a dimension, in features of length one; with less in one domain, it is not compared
_ROUNDS = 20  # from neighbour to neighbour; what is further away counts for little


class Neighbourhood:
    """The nearest neighbours of each target sample, and the labels that predictions become among them.

    Args:
        source: the labelled domain; samples of both must be features.
        target: the domain whose labels are sought.
        neighbours: how many each sample has in a domain, as a share of n/K, the mean size of a class there: three at
            least, and a hundred at most.
        share: the neighbours' part α in a label.
        across: what a neighbour in the other domain counts, beside one in the same: near in features, but a shift away.
        count: told how far the search is.

    Example:
        >>> source = Domain("source", torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]), ("left", "up"))
        >>> two_groups = torch.tensor([[1.0, 0.1], [2.0, 0.1], [0.1, 1.0], [0.1, 2.0]])
        >>> near = Neighbourhood(source, Domain("target", two_groups))
        >>> near.update(torch.tensor([1]), torch.tensor([[0.9, 0.1]]))
        >>> near.spread()
        >>> near.labels.argmax(1).tolist()        # of the last two, only the source has spoken
        [0, 0, 1, 1]
    """

    def __init__(
        self,
        source: Domain,
        target: Domain,
        neighbours: float = 0.2,
        share: float = 0.9,
        across: float = 0.05,
        count: Count | None = None,
    ) -> None:
        labels, classes = source.labelled("a search for neighbours")
        known, links = target_links(source, target, neighbours / len(classes), across, count)
        self.links, self.share = links[:, len(known) :], share
        self.heard = links[:, : len(known)] @ F.one_hot(labels[known], len(classes)).float().numpy()
        self.predictions = torch.zeros(len(target), len(classes))
        self.labels = torch.zeros_like(self.predictions)

    def begin(self, predictions: Tensor) -> None:
        """Start from what a classifier says of every sample."""
        self.predictions = predictions
        self.spread()

    def update(self, rows: Tensor, predictions: Tensor) -> None:
        """Remember what the classifier says of these samples now, as probabilities."""
        self.predictions[rows.to(self.predictions.device)] = predictions.to(self.predictions)

    def spread(self) -> None:
        """Make labels of predictions by label spreading (Zhou et al., 2004): Y = (1 − α)·P + α·L·Y, the source's fixed.

        A sample stays all zeros as long as nothing is known of those that it hears of.
        """
        fixed = (1 - self.share) * self.predictions.numpy() + self.share * self.heard
        labels = fixed
        for _ in range(_ROUNDS):
            labels = fixed + self.share * (self.links @ labels)
        total = labels.sum(1, keepdims=True)
        self.labels = torch.from_numpy(labels / np.maximum(total, np.finfo(total.dtype).tiny))


def target_links(
    source: Domain, target: Domain, neighbours: float, across: float, count: Count | None = None
) -> tuple[Tensor, csr_array]:
    """Find who is linked to the target's samples, and how strongly: by the cosine of :func:`_comparable` features.

    Args:
        source, target: domains of features.
        neighbours: how many each sample has in a domain, as a share of its size.
        across: what a link between the domains counts, beside one within.
        count: told how many searches of how many are done.

    Returns:
        the source's rows that take part, and the target's rows of L = D^−½·S·D^−½: a column for each of those, then one
        for each target sample. S has the weights of links, and D its rows' sums.
    """
    of_source, of_target = _comparable(source, target)
    some = spread_rows(len(source))
    there = _Place(Domain(source.name, source.batch(some)), of_source, neighbours)
    here = _Place(target, of_target, neighbours)
    counted = _counter(count, 2 * (len(some) + len(target)))

    def nearest(of: _Place, among: _Place) -> csr_array:
        return among.nearest(counted(map(of.comparable, evaluation_batches(of.domain))), themselves=of is among)

    source_source, source_target = nearest(there, there), nearest(there, here)
    target_source, target_target = nearest(here, there), nearest(here, here)
    between = across * _linked(target_source, source_target.T)
    links = block_array(
        [[_linked(source_source, source_source.T), between.T], [between, _linked(target_target, target_target.T)]]
    )
    return some, _normalised(links.tocsr())[len(some) :]


def nearest_samples(domain: Domain) -> csr_array:
    """Find the few nearest ones of each sample of a small domain: by the cosine, once its mean is taken away."""
    mean = unit_moments(evaluation_batches(domain))[0].float()

    def centred(batch: Tensor) -> Tensor:
        return F.normalize(F.normalize(batch.float()) - mean)

    place = _Place(domain, centred, neighbours=0)
    return place.nearest(map(centred, evaluation_batches(domain)), themselves=True)


def _comparable(source: Domain, target: Domain) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Make ways to see each domain's features as if nothing had shifted or stretched the whole of it.

    Rows of length one lose their domain's mean, and each dimension gets the same deviation in both domains: the
    geometric mean of the two, since how much a dimension varies tells how much it matters.
    """
    (mean, variance), (target_mean, target_variance) = (
        unit_moments(feature_batches(domain, "saf.neighbours")) for domain in (source, target)
    )
    both_vary = torch.minimum(variance, target_variance) > _LEAST_VARIANCE

    def way(mean: Tensor, own: Tensor, other: Tensor) -> Callable[[Tensor], Tensor]:
        mean, stretch = mean.float(), torch.where(both_vary, (other / own) ** 0.25, 0).float()
        return lambda batch: F.normalize((F.normalize(batch.float()) - mean) * stretch)

    return way(mean, variance, target_variance), way(target_mean, target_variance, variance)


def spread_rows(size: int) -> Tensor:
    """Give row numbers spread evenly over a domain, among which neighbours are sought: all, if not too many."""
    return torch.linspace(0, size - 1, min(size, _MOST_CANDIDATES)).round().long()


class _Place:
    """A domain where neighbours are sought: how many by their share of it, among samples spread over it."""

    def __init__(self, domain: Domain, comparable: Callable[[Tensor], Tensor], neighbours: float) -> None:
        self.domain, self.comparable = domain, comparable
        self.columns = spread_rows(len(domain))
        self.features = comparable(domain.batch(self.columns))
        self.most = min(max(_FEWEST_NEIGHBOURS, round(neighbours * len(domain))), _MOST_NEIGHBOURS)

    def nearest(self, batches: Iterable[Tensor], themselves: bool) -> csr_array:
        """Give the weights of each sample's nearest ones here; with ``themselves``, row i is not its own neighbour."""
        most = min(self.most, len(self.columns) - themselves)
        weights, columns, start = [], [], 0
        for batch in batches:
            alike = batch @ self.features.T
            if themselves:
                own = torch.arange(start, start + len(batch)).unsqueeze(1) == self.columns
                alike.masked_fill_(own, -torch.inf)
            values, found = alike.topk(most)
            weights.append(values.clamp_min(0) ** _FOCUS)
            columns.append(self.columns[found])
            start += len(batch)
        entries = (torch.cat(weights).numpy().ravel(), torch.cat(columns).numpy().ravel(), most * np.arange(start + 1))
        return csr_array(entries, shape=(start, len(self.domain)))


def _counter(count: Count | None, of: int) -> Callable[[Iterable[Tensor]], Iterator[Tensor]]:
    """Make a way to go through batches that tells ``count`` of each, over several passes."""
    done = 0

    def counted(batches: Iterable[Tensor]) -> Iterator[Tensor]:
        nonlocal done
        for batch in batches:
            yield batch
            done += len(batch)
            if count:
                count(done, of)

    return counted


def _linked(one: csr_array, other: csr_array) -> csr_array:
    """Link those who are each other's neighbours. One way only counts for little: some samples are near to everyone."""
    mutual = one.minimum(other)
    return mutual + _ONE_WAY * (one.maximum(other) - mutual)


def _normalised(weight: csr_array) -> csr_array:
    degree: NDArray[np.float32] = weight.sum(1)
    scale = np.where(degree > 0, degree, 1) ** -0.5
    weight.data *= scale.repeat(np.diff(weight.indptr)) * scale[weight.indices]
    return weight
