"""Scores that need no target labels: which of several classifiers to trust, seen from its predictions alone.

Higher is better in each. None of them is a proof: a classifier can be sure and wrong. ``entropy`` and ``density`` are
even highest for one that puts everything into one class; ``information`` also asks that all classes be used.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

_ROWS = 1024  # rows of the similarity matrix at a time: 55,000 samples would not fit at once


def entropy(probabilities: Tensor) -> float:
    """Certainty: 1 minus the mean entropy of a prediction, as a share of ln K.

    >>> entropy(torch.eye(4)), entropy(torch.full((4, 4), 0.25))
    (1.0, 0.0)
    """
    return 1 - _entropy(probabilities).mean().item()


def information(probabilities: Tensor) -> float:
    """Information maximisation: entropy of the mean prediction minus mean entropy, as a share of ln K.

    One when every prediction is certain and all classes are used alike; zero when all predictions are the same.

    >>> information(torch.eye(4)), information(torch.eye(4)[[0, 0, 0]])
    (1.0, 0.0)
    """
    return (_entropy(probabilities.mean(0)) - _entropy(probabilities).mean()).item()


def density(probabilities: Tensor, temperature: float = 0.05) -> float:
    """Soft neighbourhood density (Saito et al., 2021): how many alike neighbours a sample has, on average.

    The mean entropy of the softmax of similarities between a sample's prediction and all others, as a share of
    ln (n − 1): high when predictions form dense groups.

    >>> predicted = torch.eye(2).repeat(3, 1)  # two groups of three: each sample has two of the five others beside it
    >>> round(density(predicted), 3) == round(math.log(2) / math.log(5), 3)
    True
    """
    if len(probabilities) < 2:  # alone, it has no neighbour
        return 0.0
    unit = F.normalize(probabilities, dim=1)
    total = 0.0
    for start in range(0, len(unit), _ROWS):
        similar = unit[start : start + _ROWS] @ unit.T / temperature
        similar.diagonal(offset=start).fill_(-torch.inf)  # a sample is not its own neighbour
        total += _nats(similar.softmax(1)).sum().item()
    return total / len(unit) / math.log(max(len(unit) - 1, 2))


def _entropy(probabilities: Tensor) -> Tensor:
    return _nats(probabilities) / math.log(probabilities.shape[-1])


def _nats(probabilities: Tensor) -> Tensor:
    nats: Tensor = torch.special.entr(probabilities).sum(-1)
    return nats


#: Name → score of n×K probabilities.
SCORES: dict[str, Callable[[Tensor], float]] = {
    "information": information,
    "entropy": entropy,
    "density": density,
}


def scores(probabilities: Tensor) -> dict[str, float]:
    """Return every score of a classifier's predictions."""
    return {name: score(probabilities) for name, score in SCORES.items()}
