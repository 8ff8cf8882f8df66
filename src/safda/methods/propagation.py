"""Label propagation over the nearest neighbours of both domains' samples.

A sample that the classifier gets wrong often lies among others that it gets right. So the predictions of all target
samples spread from neighbour to neighbour. The source's samples stand among them with their true labels: where the
domains are close, these keep what spreads from going astray. The search for neighbours is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet, ref

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import block_array, csr_array
from torch import Tensor
from torch.nn import functional as F

from safda.data import Domain
from safda.data.loader import ProgressCallback, evaluation_batches, feature_batches
from safda.data.sampler import evenly_spaced_rows
from safda.knobs import knob
from safda.nn.heads import moments, signed_root, standard_scale

_MOST_CANDIDATES = 16384  # neighbours are sought among so many, evenly over a domain: the search stays linear
_FEWEST_NEIGHBOURS, _MOST_NEIGHBOURS = 3, 100
_FOCUS = 3  # a neighbour counts by its similarity to this power
_ONE_WAY = 0.05  # so much does a neighbour count that is not one the other way round
_LEAST_VARIANCE = 1e-12  # of a dimension, in features of length one; with less in one domain, it is not compared
_ITERATIONS = 20  # from neighbour to neighbour; what is further away counts for little
_MOST_PROBED = 2048  # source samples tell in which features neighbours are to be sought
_CLEARLY_PURER = 0.03  # by so much must more neighbours be of one class than in plain features

#: Features in which neighbours can be sought, the plain ones first: rows of length one; their signed square roots;
#: rows whose dimensions all vary alike.
FEATURES = ("centred", "rooted", "standardised")


RowMap = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class PropagationKnobs:
    """Label propagation over nearest neighbours; not in the paper."""

    neighbours: float = knob(
        0.0,
        "how many a sample has in a domain, as a share of n/K, a class's mean size; 0: none",
        low=0.0,
        high=1.0,
    )
    alpha: float = knob(0.9, "the neighbours' part in a label", low=0.0, high=1.0)
    cross_domain: float = knob(
        0.05, "affinity of a neighbour in the other domain, beside one in the same; 0: none", low=0.0, high=1.0
    )
    features: str = knob(
        "auto",
        "in which neighbours are sought; auto: where most are of one class in the source; all: in each, on average",
        choices=("auto", "all", *FEATURES),
    )


class LabelPropagation:
    """The affinity graph of both domains' samples, and the labels that predictions become on it.

    Args:
        source: the labelled domain; samples of both must be features.
        target: the domain whose labels are sought.
        knobs: how many neighbours there are, three at least and a hundred at most, and what those across domains count:
            near in features, but a shift away.
        progress: called with (done, total) as the search goes on.
        align: take away first what shifts or stretches a whole domain. Where classes are not as frequent in both, that
            takes away a part of what tells them apart.

    Example:
        >>> source = Domain("source", torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]), ("left", "up"))
        >>> two_groups = torch.tensor([[1.0, 0.1], [2.0, 0.1], [0.1, 1.0], [0.1, 2.0]])
        >>> graph = LabelPropagation(source, Domain("target", two_groups), PropagationKnobs(neighbours=0.2))
        >>> predictions = torch.tensor([[0.0, 0.0], [0.9, 0.1], [0.0, 0.0], [0.0, 0.0]])
        >>> graph.propagate(predictions, alpha=0.9).argmax(1).tolist()    # the last two hear of the source alone
        [0, 0, 1, 1]
    """

    def __init__(
        self,
        source: Domain,
        target: Domain,
        knobs: PropagationKnobs,
        progress: ProgressCallback | None = None,
        align: bool = True,
    ) -> None:
        self._made_of = ref(source), ref(target), knobs, align
        labels, classes = source.labelled("label propagation")
        kinds = FEATURES if knobs.features == "all" else (knobs.features,)
        share = knobs.neighbours / len(classes)
        affinities = []
        for number, kind in enumerate(kinds):
            ways = (alignments if align else unaligned)(source, target, kind)
            counted = _part_of(progress, number, len(kinds))
            rows, found = target_affinity(source, target, ways, share, knobs.cross_domain, counted)
            affinities.append(found)
        affinity = sum(affinities[1:], affinities[0])
        affinity.data /= len(affinities)  # in place: divided as a whole it would be of double precision
        self.affinity = affinity[:, len(rows) :]
        self.from_source = affinity[:, : len(rows)] @ F.one_hot(labels[rows], len(classes)).float().numpy()
        known = torch.full((len(target),), -1) if target.known_labels is None else target.known_labels
        self._known_rows = (known >= 0).nonzero().squeeze(1).numpy()
        self._known = F.one_hot(known[self._known_rows], len(classes)).float().numpy()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of a copy what it was made of: that holds for this process alone."""
        return {name: value for name, value in vars(self).items() if name != "_made_of"}

    def is_of(self, source: Domain, target: Domain, knobs: PropagationKnobs, align: bool) -> bool:
        """Return whether this is the graph of these two domains; α is no part of it."""
        its_source, its_target, its_knobs, is_aligned = self._made_of
        same = its_source() is source and its_target() is target and is_aligned == align
        return same and replace(its_knobs, alpha=knobs.alpha) == knobs

    def propagate(self, predictions: Tensor, alpha: float) -> Tensor:
        """Make labels of predictions by label spreading (Zhou et al., 2004): Y = (1 − α)·P + α·L·Y.

        Labels that are known stay as they are: the source's, and those of target samples that a user has given.

        Args:
            predictions: probabilities of every target sample; zeros where none is known.
            alpha: α, the neighbours' part.

        Returns:
            labels whose rows sum to one; a row stays all zeros as long as nothing is known of any that reaches it.
        """
        fixed = (1 - alpha) * predictions.numpy() + alpha * self.from_source
        labels = fixed.copy()
        labels[self._known_rows] = self._known
        for _ in range(_ITERATIONS):
            labels = fixed + alpha * (self.affinity @ labels)
            labels[self._known_rows] = self._known
        total = labels.sum(1, keepdims=True)
        return torch.from_numpy(labels / np.maximum(total, np.finfo(total.dtype).tiny))

    def source_labels(self, alpha: float) -> Tensor:
        """Let the source's true labels alone spread into the target: what nobody's predictions have a part in."""
        return self.propagate(torch.zeros(self.from_source.shape), alpha)


_graphs: WeakSet[LabelPropagation] = WeakSet()  # those that somebody still uses


def propagation_graph(
    source: Domain,
    target: Domain,
    knobs: PropagationKnobs,
    progress: ProgressCallback | None = None,
    align: bool = True,
) -> LabelPropagation:
    """Return the graph of two domains: where several recipes are tried on the very same ones, it is made once."""
    for graph in _graphs:
        if graph.is_of(source, target, knobs, align):
            return graph
    graph = LabelPropagation(source, target, knobs, progress, align)
    _graphs.add(graph)
    return graph


def both_graphs(
    source: Domain, target: Domain, knobs: PropagationKnobs, progress: ProgressCallback | None = None
) -> list[LabelPropagation]:
    """Return the graph of two domains, and the one in which what shifts a whole domain was left."""
    return [propagation_graph(source, target, knobs, progress, align) for align in (True, False)]


def target_affinity(
    source: Domain,
    target: Domain,
    ways: tuple[RowMap, RowMap],
    neighbours: float,
    cross_domain: float,
    progress: ProgressCallback | None = None,
) -> tuple[Tensor, csr_array]:
    """Find the normalised affinity of the target's samples with all others: by the cosine of aligned features.

    Args:
        source, target: domains of features.
        ways: how each domain's are aligned, from :func:`alignments`.
        neighbours: how many each sample has in a domain, as a share of its size.
        cross_domain: what an edge between the domains counts, beside one within.
        progress: called with (done, total) as the search goes on.

    Returns:
        the source's rows that take part, and the target's rows of L = D^−½·S·D^−½: a column for each of those, then one
        for each target sample. S has the weights of edges, and D its rows' sums.
    """
    align_source, align_target = ways
    rows = evenly_spaced_rows(len(source), _MOST_CANDIDATES)
    there = _NeighbourSearch(Domain(source.name, source.batch(rows)), align_source, neighbours)
    here = _NeighbourSearch(target, align_target, neighbours)
    counted = _counter(progress, 2 * (len(rows) + len(target)))

    def nearest(of: _NeighbourSearch, among: _NeighbourSearch) -> csr_array:
        return among.nearest(counted(map(of.align, evaluation_batches(of.domain))), exclude_self=of is among)

    source_source, source_target = nearest(there, there), nearest(there, here)
    target_source, target_target = nearest(here, there), nearest(here, here)
    between = cross_domain * _symmetric(target_source, source_target.T)
    affinity = block_array(
        [[_symmetric(source_source, source_source.T), between.T], [between, _symmetric(target_target, target_target.T)]]
    )
    return rows, _normalised(affinity.tocsr())[len(rows) :]


def nearest_samples(domain: Domain, features: str = "centred") -> csr_array:
    """Find the few nearest ones of each sample of a small domain: by the cosine, once its mean is taken away."""
    unit = _of_length_one(features, domain)
    mean = _moments(unit, domain)[0].float()

    def centred(batch: Tensor) -> Tensor:
        return F.normalize(unit(batch.float()) - mean)

    search = _NeighbourSearch(domain, centred, neighbours=0)
    return search.nearest(map(centred, evaluation_batches(domain)), exclude_self=True)


def best_features(source: Domain) -> tuple[str, float]:
    """Return in which of :data:`FEATURES` the nearest neighbours of source samples are most often of their class.

    Plain ones are taken unless others are clearly better. Beside it, how often they are: from 0 to 1.

    >>> lengths = torch.tensor([1.0, 3.0]).repeat(50)[:, None] + torch.rand(100, 2) / 5
    >>> best_features(Domain("short and long", lengths, torch.arange(100) % 2, ("short", "long")))
    ('standardised', 1.0)
    """
    rows = evenly_spaced_rows(len(source), _MOST_PROBED)
    labels = source.labelled("a search for neighbours")[0][rows].numpy()
    some = Domain(source.name, source.batch(rows))

    def purity(features: str) -> float:
        near = nearest_samples(some, features)
        return float((labels[near.indices] == labels.repeat(np.diff(near.indptr))).mean())

    plain, *others = ((purity(features), features) for features in FEATURES)
    best = max(others)
    share, features = best if best[0] > plain[0] + _CLEARLY_PURER else plain
    return features, share


def _of_length_one(features: str, *domains: Domain) -> RowMap:
    """Make a function that gives rows of domains length one: as they are, or rescaled first, alike in all of them."""
    if features == "rooted":
        return lambda batch: F.normalize(signed_root(batch))
    if features == "standardised":
        mean, variance = _together([moments(feature_batches(each, "label propagation")) for each in domains])
        scale = standard_scale(mean, variance)
        return lambda batch: F.normalize(((batch.double() - mean) * scale).to(batch.dtype))
    return F.normalize


def _moments(unit: RowMap, *domains: Domain) -> tuple[Tensor, Tensor]:
    """Return mean and variance of each dimension of rows of length one; each domain counts alike."""
    batches = ((unit(batch.double()) for batch in feature_batches(each, "label propagation")) for each in domains)
    return _together([moments(each) for each in batches])


def _together(of_domains: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return mean and variance over domains that count alike, from those of each."""
    means, variances = (torch.stack(each) for each in zip(*of_domains, strict=True))
    return means.mean(0), variances.mean(0) + means.var(0, correction=0)


def alignments(source: Domain, target: Domain, features: str = "centred") -> tuple[RowMap, RowMap]:
    """Make functions that show each domain's features as if nothing had shifted or stretched the whole of it.

    Rows of length one lose their domain's mean, and each dimension gets the same deviation in both domains: the
    geometric mean of the two, since how much a dimension varies tells how much it matters.

    Args:
        source, target: domains of features.
        features: one of :data:`FEATURES`, or ``"auto"``: the best by :func:`best_features`.
    """
    kind = _kind(source, features)
    unit_source, unit_target = (_of_length_one(kind, domain) for domain in (source, target))
    (mean, variance), (target_mean, target_variance) = _moments(unit_source, source), _moments(unit_target, target)
    both_vary = torch.minimum(variance, target_variance) > _LEAST_VARIANCE

    def alignment(unit: RowMap, mean: Tensor, own: Tensor, other: Tensor) -> RowMap:
        mean, stretch = mean.float(), torch.where(both_vary, (other / own) ** 0.25, 0).float()
        return lambda batch: F.normalize((unit(batch.float()) - mean) * stretch)

    return (
        alignment(unit_source, mean, variance, target_variance),
        alignment(unit_target, target_mean, target_variance, variance),
    )


def unaligned(source: Domain, target: Domain, features: str = "centred") -> tuple[RowMap, RowMap]:
    """Make functions that show both domains' features as they are to each other: rows of length one, minus one mean.

    Args:
        source, target, features: as of :func:`alignments`.
    """
    unit = _of_length_one(_kind(source, features), source, target)
    mean = _moments(unit, source, target)[0].float()

    def way(batch: Tensor) -> Tensor:
        return F.normalize(unit(batch.float()) - mean)

    return way, way


def _kind(source: Domain, features: str) -> str:
    return best_features(source)[0] if features == "auto" else features


class _NeighbourSearch:
    """A domain among whose samples neighbours are sought: how many by their share of it."""

    def __init__(self, domain: Domain, align: RowMap, neighbours: float) -> None:
        self.domain, self.align = domain, align
        self.columns = evenly_spaced_rows(len(domain), _MOST_CANDIDATES)
        self.features = align(domain.batch(self.columns))
        self.most = min(max(_FEWEST_NEIGHBOURS, round(neighbours * len(self.columns))), _MOST_NEIGHBOURS)

    def nearest(self, batches: Iterable[Tensor], exclude_self: bool) -> csr_array:
        """Return the weights of each sample's nearest ones here; with ``exclude_self``, row i is not its own."""
        most = min(self.most, len(self.columns) - exclude_self)
        weights, columns, start = [], [], 0
        for batch in batches:
            similarity = batch @ self.features.T
            if exclude_self:
                own = torch.arange(start, start + len(batch)).unsqueeze(1) == self.columns
                similarity.masked_fill_(own, -torch.inf)
            values, found = similarity.topk(most)
            weights.append(values.clamp_min(0) ** _FOCUS)
            columns.append(self.columns[found])
            start += len(batch)
        entries = (torch.cat(weights).numpy().ravel(), torch.cat(columns).numpy().ravel(), most * np.arange(start + 1))
        return csr_array(entries, shape=(start, len(self.domain)))


def _part_of(progress: ProgressCallback | None, number: int, parts: int) -> ProgressCallback | None:
    """Make of a callback one for a search that is one of several."""
    if progress is None:
        return None
    return lambda done, total: progress(number * total + done, parts * total)


def _counter(progress: ProgressCallback | None, total: int) -> Callable[[Iterable[Tensor]], Iterator[Tensor]]:
    """Make a way to go through batches that reports each, over several passes."""
    done = 0

    def counted(batches: Iterable[Tensor]) -> Iterator[Tensor]:
        nonlocal done
        for batch in batches:
            yield batch
            done += len(batch)
            if progress:
                progress(done, total)

    return counted


def _symmetric(one: csr_array, other: csr_array) -> csr_array:
    """Join those who are each other's neighbours. One way only counts for little: some samples are near to everyone."""
    mutual = one.minimum(other)
    return mutual + _ONE_WAY * (one.maximum(other) - mutual)


def _normalised(weight: csr_array) -> csr_array:
    degree: NDArray[np.float32] = weight.sum(1)
    scale = np.where(degree > 0, degree, 1) ** -0.5
    weight.data *= scale.repeat(np.diff(weight.indptr)) * scale[weight.indices]
    return weight
