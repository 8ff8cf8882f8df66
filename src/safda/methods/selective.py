"""Selective pseudo-labelling (Wang & Breckon, AAAI 2020): discriminants that learn their surest answers, in rounds.

Rows of both domains are projected so that those of one class are near each other. A target sample gets the class whose
mean is nearest, or the one that its cluster was matched with, whichever is surer. The next projection learns a larger
share of these answers, the surest of each class first, until it learns all. It takes seconds, knows no step size and no
seed, and errs elsewhere than a network does; so its answers are worth averaging with a network's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.optimize import linear_sum_assignment
from scipy.special import softmax
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn import functional as F

from safda.data import Domain
from safda.data.loader import ProgressCallback, evaluation_batches
from safda.data.sampler import evenly_spaced_rows

Rows = NDArray[np.float32]
Scale = Callable[[Tensor], Tensor]

_ROUNDS = 10
_FEWEST_DIRECTIONS = 64  # of a projection: with K classes K − 1 tell all, where domains do not differ
_MOST_LEARNED = 16384  # samples of a domain, evenly over it: what it costs does not grow further


@dataclass(frozen=True)
class Discriminant:
    """A projection, and where classes lie in it.

    Attributes:
        projection: a direction in each column.
        origin: what is the middle there, of the domain that is asked about.
        centres: one or two points for each class; a sample's class is that of the nearest.
    """

    projection: Rows
    origin: Rows
    centres: tuple[Rows, ...]

    def probabilities(self, rows: Rows) -> Rows:
        """Return how sure each class is, of rows of length one; their sum may be above one, where centres differ."""
        projected = normalize(rows @ self.projection - self.origin)
        of_each = [softmax(-euclidean_distances(projected, centres), axis=1) for centres in self.centres]
        return np.asarray(np.maximum.reduce(of_each), dtype=np.float32)


def selective_pseudo_labels(
    source: Rows, labels: NDArray[np.int64], target: Rows, aligned: bool, known: NDArray[np.int64] | None = None
) -> Discriminant:
    """Learn the source's labels, and then the target's as they are found.

    Args:
        source, target: rows of length one.
        labels: the source's classes, each of which it must have a sample of.
        aligned: give both domains the same middle.
        known: the target's classes, as far as a user has told them, and −1 of all others.

    >>> corners = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8]], dtype=np.float32)
    >>> found = selective_pseudo_labels(normalize(corners), np.array([0, 0, 1, 1]), normalize(corners[::-1]), False)
    >>> found.probabilities(normalize(corners)).argmax(1).tolist()
    [0, 0, 1, 1]
    """
    answers = np.full(len(target), -1) if known is None else known
    is_known = answers >= 0
    chosen = is_known
    for share in np.arange(1, _ROUNDS + 1) / _ROUNDS:
        learned, classes = np.concatenate([source, target[chosen]]), np.concatenate([labels, answers[chosen]])
        projection = discriminant_directions(learned, classes)
        middle = (source @ projection).mean(0)
        origin = (target @ projection).mean(0) if aligned else middle
        origins = np.concatenate([np.tile(middle, (len(source), 1)), np.tile(origin, (int(chosen.sum()), 1))])
        means = class_means(normalize(learned @ projection - origins), classes)
        clusters = matched_clusters(normalize(target @ projection - origin), means)
        found = Discriminant(projection, origin, (means, *clusters))
        probabilities = found.probabilities(target)
        answers = np.where(is_known, answers, probabilities.argmax(1))
        chosen = is_known | surest(answers, probabilities.max(1), share)
    return found


def discriminant_directions(rows: Rows, labels: NDArray[np.int64]) -> Rows:
    """Return the directions of supervised locality preserving projections: same-class rows near, and all of them far.

    They solve X·D·Xᵀ v = λ (X·(D − M)·Xᵀ + I) v, with M = 1 for two rows of one class, else 0, and D its rows' sums;
    the largest λ come first.
    """
    rows = rows.astype(np.float64)  # what is apart must stay positive, beside a shift that all rows share
    spread = (rows * np.bincount(labels)[labels, None]).T @ rows
    sums = np.stack([rows[labels == label].sum(0) for label in np.unique(labels)])
    apart = spread - sums.T @ sums
    size = rows.shape[1]
    kept = min(max(_FEWEST_DIRECTIONS, len(sums) - 1), size)
    with threadpool_limits(1):  # threads that wait for each other make it slower, many times where cores are busy
        _, directions = eigh(spread, apart + np.eye(size), subset_by_index=(size - kept, size - 1))
    return np.asarray(directions[:, ::-1], dtype=np.float32)


def class_means(rows: Rows, labels: NDArray[np.int64]) -> Rows:
    """Return the mean direction of each class's rows."""
    means = np.stack([rows[labels == label].mean(0) for label in range(labels.max() + 1)])
    return np.asarray(normalize(means), dtype=np.float32)


def matched_clusters(rows: Rows, means: Rows) -> list[Rows]:
    """Return the rows' clusters, each at the place of the class it is matched with; none where rows are too few."""
    if len(rows) < len(means):
        return []
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than classes: some clusters are empty
        clusters = KMeans(len(means), init=means, n_init=1, max_iter=30).fit(rows).cluster_centers_
    of_class, of_cluster = linear_sum_assignment(euclidean_distances(means, clusters))
    return [clusters[of_cluster[np.argsort(of_class)]]]


def surest(answers: NDArray[np.int64], confidence: Rows, share: float) -> NDArray[np.bool_]:
    """Mark a share of the samples that got each answer: those whose answers are surest.

    >>> surest(np.array([0, 0, 0, 0, 1, 1]), np.array([0.5, 0.9, 0.6, 0.8, 0.2, 0.3]), 0.5).tolist()
    [False, True, False, True, False, True]
    """
    chosen = np.zeros(len(answers), dtype=bool)
    for answer in np.unique(answers):
        of_class = np.flatnonzero(answers == answer)
        best_first = of_class[np.argsort(-confidence[of_class], kind="stable")]
        chosen[best_first[: int(share * len(of_class))]] = True
    return chosen


@torch.no_grad()
def selective_votes(
    source: Domain,
    target: Domain,
    scales: Sequence[Scale],
    aligned: bool,
    progress: ProgressCallback | None = None,
) -> Tensor:
    """Return the votes of selective pseudo-labelling for every target sample: a row of shares, one for each class.

    There is a vote for each scaling of the features: what a length or a dimension's scale tells is another thing in
    each kind of data.

    Args:
        source, target: domains of features.
        scales: what makes rows of them that can be compared.
        aligned: take away from each domain its own mean.
        progress: called with (done, total), after each vote.
    """
    _, classes = source.labelled("selective pseudo-labelling")
    votes = torch.zeros(len(target), len(classes))
    for number, scale in enumerate(scales, 1):
        votes += F.one_hot(_vote(source, target, scale, aligned), len(classes))
        if progress:
            progress(number, len(scales))
    return votes / len(scales)


def _vote(source: Domain, target: Domain, scale: Scale, aligned: bool) -> Tensor:
    """Learn some of the samples, and return the class of every one of the target."""
    known = torch.full((len(target),), -1) if target.known_labels is None else target.known_labels
    some = [evenly_spaced_rows(len(domain), _MOST_LEARNED) for domain in (source, target)]
    some[1] = _distinct(some[1], (known >= 0).nonzero().squeeze(1))
    scaled = [scale(domain.batch(rows)) for domain, rows in zip((source, target), some, strict=True)]
    means = [rows.mean(0) if aligned else torch.zeros(rows.shape[1]) for rows in scaled]
    ours, theirs = (normalize((rows - mean).numpy()) for rows, mean in zip(scaled, means, strict=True))
    labels, known = source.labelled("a vote")[0][some[0]], known[some[1]]
    present = _distinct(labels, known[known >= 0])  # a rare class may be in none of these rows
    told = torch.where(known >= 0, torch.searchsorted(present, known), -1)
    found = selective_pseudo_labels(ours, torch.searchsorted(present, labels).numpy(), theirs, aligned, told.numpy())
    rows = (normalize((scale(batch) - means[1]).numpy()) for batch in evaluation_batches(target))
    return present[np.concatenate([found.probabilities(each).argmax(1) for each in rows])]


def _distinct(*numbers: Tensor) -> Tensor:
    return torch.from_numpy(np.unique(torch.cat(numbers).numpy()))
