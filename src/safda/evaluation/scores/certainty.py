"""How sure, how even and how dense predictions of the target are: scores that look at nothing else."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from safda.evaluation.scores.outputs import Outputs, score

_ROWS = 1024  # rows of the similarity matrix at a time: 55,000 samples would not fit at once


@score("entropy", paper="Morerio et al., ICLR 2018", cost="outputs")
def entropy(outputs: Outputs) -> float:
    """Return the certainty: 1 minus the mean entropy of a prediction, as a share of ln K. Higher is better.

    Highest for a classifier that is sure of everything, even one that puts it all into one class.

    >>> import numpy as np
    >>> from safda.classifier import Predictions
    >>> sure, unsure = (Outputs(Predictions((), (), scale * np.eye(4), np.eye(4))) for scale in (99.0, 0.0))
    >>> entropy(sure), entropy(unsure)
    (1.0, 0.0)
    """
    return 1 - _entropy(outputs.target_probabilities).mean().item()


@score("information", paper="Bridle et al., NIPS 1991; Musgrave et al., 2022", cost="outputs")
def information(outputs: Outputs) -> float:
    """Return the entropy of the mean prediction minus the mean entropy, as a share of ln K. Higher is better.

    One when every prediction is certain and all classes are used alike; zero when all predictions are the same.

    >>> import numpy as np
    >>> from safda.classifier import Predictions
    >>> logits = 99 * np.eye(4)
    >>> even, collapsed = (Outputs(Predictions((), (), each, np.eye(4))) for each in (logits, logits[[0, 0]]))
    >>> information(even), round(information(collapsed), 6)
    (1.0, 0.0)
    """
    probabilities = outputs.target_probabilities
    return (_entropy(probabilities.mean(0)) - _entropy(probabilities).mean()).item()


@score("nuclear_norm", paper="Cui et al., CVPR 2020; Musgrave et al., 2022", cost="outputs")
def nuclear_norm(outputs: Outputs) -> float:
    """Return the nuclear norm of all predictions, as a share of the largest that there is. Higher is better.

    The sum of the singular values of the n×K matrix of probabilities, over √(n·min(n, K)): like information, it is one
    when every prediction is certain and all classes are used alike.

    >>> import numpy as np
    >>> from safda.classifier import Predictions
    >>> logits = 99 * np.eye(4)
    >>> even, collapsed = (Outputs(Predictions((), (), each, np.eye(4))) for each in (logits, logits[[0, 0, 0, 0]]))
    >>> round(nuclear_norm(even), 6), round(nuclear_norm(collapsed), 6)
    (1.0, 0.5)
    """
    probabilities = outputs.target_probabilities.double()
    values = torch.linalg.svdvals(probabilities)
    return float(values.sum()) / math.sqrt(len(probabilities) * len(values))


@score("density", paper="soft neighbourhood density: Saito et al., ICCV 2021", cost="outputs")
def density(outputs: Outputs, temperature: float = 0.05) -> float:
    """Return how many alike neighbours a sample has, on average: soft neighbourhood density. Higher is better.

    The mean entropy of the softmax of similarities between a sample's prediction and all others, as a share of
    ln (n − 1): high when predictions form dense groups, and highest when there is one group.

    >>> import numpy as np
    >>> from safda.classifier import Predictions
    >>> groups = Outputs(Predictions((), (), 99 * np.eye(2)[[0, 1] * 3], np.eye(6)))  # two, of three samples each
    >>> round(density(groups), 3) == round(math.log(2) / math.log(5), 3)  # beside each, two of the five others
    True
    """
    probabilities = outputs.target_probabilities
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
