"""How frequent classes are in a target without labels, if nothing but that has changed: label shift.

Two estimators of the target's class priors. :func:`black_box_shift` needs a classifier's answers alone, and inverts its
confusion matrix. :func:`maximum_likelihood_shift` needs probabilities that are right on the source, and makes more of
them. Both assume that a class looks alike in both domains; where it does not, they are as wrong as the classifier.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Floats = NDArray[np.float64]


def class_shares(labels: NDArray[np.integer[Any]], classes: int) -> Floats:
    """Return the share of each class.

    >>> class_shares(np.array([0, 2, 2, 2]), 3).tolist()
    [0.25, 0.0, 0.75]
    """
    shares: Floats = np.bincount(labels, minlength=classes) / len(labels)
    return shares


def black_box_shift(
    source_predicted: NDArray[np.integer[Any]],
    source_labels: NDArray[np.integer[Any]],
    target_predicted: NDArray[np.integer[Any]],
    classes: int,
) -> Floats:
    """Estimate the target's class priors by inverting the confusion matrix (BBSE; Lipton et al., ICML 2018).

    The weights w ≥ 0 with P_S(ŷ, y)·w = P_T(ŷ), in least squares, times the source's priors.

    Args:
        source_predicted: a classifier's answers to source samples that it has not learned from.
        source_labels: their classes.
        target_predicted: the same classifier's answers to the target.
        classes: number of classes K.

    >>> known = np.repeat([0, 1], 10)                      # it takes two in ten of each class for the other
    >>> answers = np.array([0] * 8 + [1] * 2 + [1] * 8 + [0] * 2)
    >>> black_box_shift(answers, known, np.array([0] * 5 + [1] * 5), 2).round(3).tolist()
    [0.5, 0.5]
    >>> black_box_shift(answers, known, np.array([0] * 2 + [1] * 8), 2).round(3).tolist()
    [0.0, 1.0]
    """
    joint = np.zeros((classes, classes))
    np.add.at(joint, (source_predicted, source_labels), 1 / len(source_labels))
    weights, _ = nnls(joint, class_shares(target_predicted, classes))
    return _normalised(weights * class_shares(source_labels, classes), classes)


def maximum_likelihood_shift(
    probabilities: NDArray[np.floating[Any]], source_priors: NDArray[np.floating[Any]], iterations: int = 2000
) -> Floats:
    """Estimate the target's class priors by maximum likelihood, with EM (MLLS; Saerens et al., 2002).

    Args:
        probabilities: of each class for each target sample (n×K), as they would be right on the source.
        source_priors: the source's share of each class; a class that it does not have gets none.
        iterations: at most; it ends once nothing changes any more.

    >>> sure = np.eye(2)[[0, 0, 0, 1]]                     # who is certain of everything counts
    >>> maximum_likelihood_shift(sure, np.array([0.5, 0.5])).tolist()
    [0.75, 0.25]
    """
    known = source_priors > 0
    ratios = np.where(known, probabilities / np.where(known, source_priors, 1), 0).astype(np.float64)
    priors = source_priors.astype(np.float64)
    for _ in range(iterations):
        posterior = ratios * priors
        posterior /= np.maximum(posterior.sum(1, keepdims=True), np.finfo(np.float64).tiny)
        before, priors = priors, posterior.mean(0)
        if np.abs(priors - before).sum() < 1e-9:
            break
    return _normalised(priors, len(priors))


def total_variation(one: NDArray[np.floating[Any]], other: NDArray[np.floating[Any]]) -> float:
    """Return how much of one distribution must move to make the other: from 0 to 1.

    >>> total_variation(np.array([0.5, 0.5]), np.array([0.25, 0.75]))
    0.25
    """
    return float(np.abs(one - other).sum() / 2)


def _normalised(priors: Floats, classes: int) -> Floats:
    total = priors.sum()
    return priors / total if total > 0 else np.full(classes, 1 / classes)
