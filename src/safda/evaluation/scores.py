"""Scores that need no target labels: which of several classifiers to trust, seen from its outputs alone.

Higher is better in each, without exception: whoever chooses by one takes the highest. None of them is a proof: a
classifier can be sure and wrong. ``entropy`` and ``density`` are even highest for one that puts everything into one
class; ``information`` also asks that all classes be used. ``source_accuracy`` knows nothing of the target.

A score is a function of :class:`Outputs`, registered under its name; another package adds its own by an entry point of
the group ``safda.scores``::

    @SCORES.register("gap")
    def gap(outputs: Outputs) -> float:
        first, second = outputs.target_logits.topk(2).values.T
        return (first - second).mean().item()
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from safda.classifier import Adapted, Predictions
from safda.data import AnyDomain
from safda.errors import SafdaError
from safda.registry import Registry

_ROWS = 1024  # rows of the similarity matrix at a time: 55,000 samples would not fit at once


class SourceMissing(SafdaError):
    """A score asked for the source's outputs where they are not at hand."""


@dataclass(frozen=True)
class Outputs:
    """What a classifier says of both domains: all that a score may look at. Target labels are not among it.

    Attributes:
        target: its predictions of the target.
        predict_source: returns its predictions of the source, and the source's labels; called once, when a score first
            asks for them. None where that would cost too much.
    """

    target: Predictions
    predict_source: Callable[[], tuple[Predictions, Tensor]] | None = None

    @classmethod
    def of(cls, adapted: Adapted, source: AnyDomain, target: Predictions) -> Outputs:
        """Return the outputs of a classifier: of the source it was trained with, and of the target as predicted."""
        labels, _ = source.labelled("a score")
        return cls(target, lambda: (adapted.predict(source), labels))

    @property
    def target_logits(self) -> Tensor:
        """The target's logits, n×K."""
        return torch.from_numpy(self.target.logits)

    @cached_property
    def target_probabilities(self) -> Tensor:
        """Their softmax, n×K."""
        return torch.from_numpy(self.target.probabilities)

    @property
    def target_embedding(self) -> Tensor:
        """The bottleneck's output for the target, n×width."""
        return torch.from_numpy(self.target.embedding)

    @property
    def source_logits(self) -> Tensor:
        """The source's logits, m×K."""
        return torch.from_numpy(self._source[0].logits)

    @property
    def source_embedding(self) -> Tensor:
        """The bottleneck's output for the source, m×width."""
        return torch.from_numpy(self._source[0].embedding)

    @property
    def source_labels(self) -> Tensor:
        """The source's class numbers, m."""
        return self._source[1]

    @cached_property
    def _source(self) -> tuple[Predictions, Tensor]:
        if self.predict_source is None:
            raise SourceMissing("the source's outputs are not at hand, and a score asked for them")
        return self.predict_source()


#: Name → score of a classifier's outputs; the higher, the better.
SCORES: Registry[Callable[[Outputs], float]] = Registry("score", "safda.evaluation.scores")


def scores(outputs: Outputs) -> dict[str, float]:
    """Return every score of a classifier's outputs; where the source is not at hand, those that can do without it."""
    found = {}
    for name, score in SCORES.items():
        try:
            found[name] = score(outputs)
        except SourceMissing:
            continue
    return found


@SCORES.register("entropy")
def entropy(outputs: Outputs) -> float:
    """Return the certainty: 1 minus the mean entropy of a prediction, as a share of ln K. Higher is better.

    >>> import numpy as np
    >>> sure, unsure = (Outputs(Predictions((), (), scale * np.eye(4), np.eye(4))) for scale in (99.0, 0.0))
    >>> entropy(sure), entropy(unsure)
    (1.0, 0.0)
    """
    return 1 - _entropy(outputs.target_probabilities).mean().item()


@SCORES.register("information")
def information(outputs: Outputs) -> float:
    """Return the entropy of the mean prediction minus the mean entropy, as a share of ln K. Higher is better.

    One when every prediction is certain and all classes are used alike; zero when all predictions are the same.

    >>> import numpy as np
    >>> logits = 99 * np.eye(4)
    >>> even, collapsed = (Outputs(Predictions((), (), each, np.eye(4))) for each in (logits, logits[[0, 0]]))
    >>> information(even), round(information(collapsed), 6)
    (1.0, 0.0)
    """
    probabilities = outputs.target_probabilities
    return (_entropy(probabilities.mean(0)) - _entropy(probabilities).mean()).item()


@SCORES.register("density")
def density(outputs: Outputs, temperature: float = 0.05) -> float:
    """Return the soft neighbourhood density (Saito et al., 2021): how many alike neighbours a sample has, on average.

    The mean entropy of the softmax of similarities between a sample's prediction and all others, as a share of
    ln (n − 1): high when predictions form dense groups. Higher is better.

    >>> import numpy as np
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


@SCORES.register("source_accuracy")
def source_accuracy(outputs: Outputs) -> float:
    """Return the share of source samples that the classifier still gets right. Higher is better.

    >>> import numpy as np
    >>> source = Predictions((), (), np.eye(3), np.eye(3))
    >>> round(source_accuracy(Outputs(source, lambda: (source, torch.tensor([0, 1, 1])))), 3)
    0.667
    """
    return (outputs.source_logits.argmax(1) == outputs.source_labels).double().mean().item()


def _entropy(probabilities: Tensor) -> Tensor:
    return _nats(probabilities) / math.log(probabilities.shape[-1])


def _nats(probabilities: Tensor) -> Tensor:
    nats: Tensor = torch.special.entr(probabilities).sum(-1)
    return nats
