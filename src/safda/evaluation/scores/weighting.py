"""Validation on the source, where each sample counts as much as it is likely in the target.

Whether a sample is likelier in the target is told by a classifier of domains, on what the network makes of it. Samples
that the network learned from flatter it: both scores are worth more on source samples that were held out, as
:func:`safda.make_scorer` has them in a cross-validation.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch import Tensor

from safda.data.sampler import evenly_spaced_rows
from safda.evaluation.scores.outputs import Outputs, score

_MOST_SAMPLES = 4096  # of each domain tell them apart
_HELD_OUT = 0.33  # of the source, from what tells domains apart: as skada has it
_FEWEST = 4  # source samples, to hold some out
_MOST_LOG_RATIO = 50.0  # of densities: beyond it, their numbers would overflow

Array = NDArray[np.float64]


@score("iw", paper="importance weighted validation: Sugiyama et al., JMLR 2007", cost="fit")
def importance_weighted(outputs: Outputs) -> float:
    """Return the accuracy on source samples, each weighed by how much likelier it is in the target. Higher is better.

    >>> import torch
    >>> from safda.classifier import Predictions
    >>> rows = np.array([[9, 0], [0, 9], [0, 9]], dtype=np.float32)
    >>> target = source = Predictions((), (), rows, rows)  # the same samples: all count alike
    >>> round(importance_weighted(Outputs(target, lambda: (source, torch.tensor([0, 1, 0])))), 3)
    0.667
    """
    embedding = _rows(outputs.source_embedding)
    weights = density_ratio(embedding, _rows(outputs.target_embedding), embedding)
    right = _rows(outputs.source_logits).argmax(1) == _some(outputs.source_labels).numpy()
    return float(np.average(right, weights=weights))


@score("dev", paper="deep embedded validation: You et al., ICML 2019", cost="fit")
def deep_embedded_validation(outputs: Outputs) -> float:
    """Return minus the weighted cross-entropy of source samples, with a control variate. Higher is better.

    Domains are told apart on two thirds of the source, and the others weighed.
    """
    labels = _some(outputs.source_labels).numpy()
    if len(labels) < _FEWEST:
        return float("nan")
    learned, held_out = train_test_split(np.arange(len(labels)), test_size=_HELD_OUT, random_state=0)
    embedding = _rows(outputs.source_embedding)
    weights = density_ratio(embedding[learned], _rows(outputs.target_embedding), embedding[held_out])
    logits = _rows(outputs.source_logits)[held_out]
    losses = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(logits)), labels[held_out]]
    return -controlled_mean(weights, losses)


def density_ratio(source: Array, target: Array, at: Array) -> Array:
    """Return how much likelier samples are in the target than in the source, by a logistic classifier of domains."""
    domain = np.repeat([1, 0], [len(source), len(target)])
    classifier = LogisticRegression()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # near enough will do
        classifier.fit(np.concatenate([source, target]), domain)
    log_ratio = -classifier.decision_function(at).clip(-_MOST_LOG_RATIO, _MOST_LOG_RATIO)
    ratio: Array = len(source) / len(target) * np.exp(log_ratio)
    return ratio


def controlled_mean(weights: Array, losses: Array) -> float:
    """Return the mean of weighted losses, less what the weights' mean is too much: they must have a mean of one.

    >>> controlled_mean(np.array([2.0, 1.0]), np.array([0.5, 0.5]))
    0.5
    """
    weighted = weights * losses
    variance = weights.var(ddof=1)
    share = -np.cov(weighted, weights)[0, 1] / variance if variance > 0 else 0.0
    return float(weighted.mean() + share * (weights.mean() - 1))


def _some(values: Tensor) -> Tensor:
    return values[evenly_spaced_rows(len(values), _MOST_SAMPLES)]


def _rows(values: Tensor) -> Array:
    rows: Array = _some(values).double().numpy()
    return rows
