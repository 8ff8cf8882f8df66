"""A cheap classifier of features, cross-fitted on the source: what it says of samples that it has not learned from.

The network that a run trains has seen every source sample, so its answers to them do not tell how sure and how right it
would be on others. A logistic regression on a few principal components takes a second, and is asked of each half of the
source by what it learned from the other.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from torch.nn import functional as F

from safda.data import Domain
from safda.data.sampler import evenly_spaced_rows
from safda.methods.propagation import alignments

_MOST_SAMPLES, _FEWEST_SAMPLES = 1500, 20  # of each domain
_MOST_VALUES = 2**24  # of its features: of wide ones, fewer samples
_COMPONENTS = 64
_NEVER = -30.0  # the logit of a class that a half of the source does not have


@dataclass(frozen=True)
class Probe:
    """What a cross-fitted classifier says of some samples of both domains.

    Attributes:
        labels: classes of the source samples.
        source_logits: of each source sample, by what was learned from the other half (n×K).
        target_rows: which samples of the target were looked at.
        target_logits: of each of them, the mean of both halves' (m×K).
        source_features, target_features: principal components that it was made of.
    """

    labels: NDArray[np.int64]
    source_logits: NDArray[np.float64]
    target_rows: NDArray[np.int64]
    target_logits: NDArray[np.float64]
    source_features: NDArray[np.float64]
    target_features: NDArray[np.float64]

    @property
    def accuracy(self) -> float:
        """Share of the source samples that are right, though not learned from."""
        return float((self.source_logits.argmax(1) == self.labels).mean())


def cross_fit(source: Domain, target: Domain, aligned: bool = True) -> Probe | None:
    """Fit a probe on features of the source, and ask it of both domains.

    Args:
        source: the labelled domain; samples of both must be features.
        target: the other.
        aligned: let each domain lose its own mean and scale first. That takes away a shift of the whole domain, and
            with it what a change of the classes' frequencies does to the mean.

    Returns:
        None of too few samples to fit anything.
    """
    most = min(_MOST_SAMPLES, max(_MOST_VALUES // source.inputs.shape[1], _FEWEST_SAMPLES))
    rows = [evenly_spaced_rows(len(domain), most) for domain in (source, target)]
    some = [domain.take(of) for domain, of in zip((source, target), rows, strict=True)]
    labels, classes = some[0].labelled("a probe")
    truth = labels.numpy()
    folds = _folds(truth)
    if len(target) < _FEWEST_SAMPLES or not folds:
        return None
    of_source, of_target = _components(some[0], some[1], aligned)
    source_logits, target_logits = np.zeros((len(truth), len(classes))), np.zeros((len(of_target), len(classes)))
    for learned, held_out in folds:
        regression = _fitted(of_source[learned], truth[learned])
        source_logits[held_out] = _logits(regression, of_source[held_out], len(classes))
        target_logits += _logits(regression, of_target, len(classes)) / len(folds)
    return Probe(truth, source_logits, rows[1].numpy(), target_logits, of_source, of_target)


def _folds(labels: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Cut the source in two, alike in their classes; no way, if a half would have but one, or no class has two."""
    if len(labels) < _FEWEST_SAMPLES or np.bincount(labels).max() < 2:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes with a single sample
        folds = list(StratifiedKFold(2, shuffle=True, random_state=0).split(labels, labels))
    return folds if all(len(np.unique(labels[learned])) > 1 for learned, _ in folds) else []


def _components(source: Domain, target: Domain, aligned: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return principal components of both domains' features, of unit variance on average over the source."""
    ways = alignments(source, target) if aligned else (F.normalize, F.normalize)
    both = [
        way(domain.batch(torch.arange(len(domain))).float()).double().numpy()
        for way, domain in zip(ways, (source, target), strict=True)
    ]
    together = np.concatenate(both)
    found = PCA(min(_COMPONENTS, *together.shape), random_state=0).fit(together)
    of_source, of_target = (found.transform(each) for each in both)
    scale = np.sqrt(max(of_source.var(0).mean(), np.finfo(np.float64).tiny))
    return of_source / scale, of_target / scale


def _fitted(values: NDArray[np.float64], labels: NDArray[np.int64]) -> LogisticRegression:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # near enough will do
        return LogisticRegression(max_iter=100).fit(values, labels)


def _logits(regression: LogisticRegression, values: NDArray[np.float64], classes: int) -> NDArray[np.float64]:
    scores = regression.decision_function(values)
    found = np.full((len(values), classes), _NEVER)
    found[:, regression.classes_] = np.stack([-scores / 2, scores / 2], 1) if scores.ndim == 1 else scores
    return found
