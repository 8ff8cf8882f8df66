"""How good an adapted classifier is likely to be: an estimate of its accuracy, with an interval, without target labels.

Two classifiers that err independently agree about as often as they are right. What adaptation learned from is not
independent of it; labels that spread from the source's samples over the graph of neighbours into the target are as near
to that as can be had, since they know nothing but the source's labels. How often the classifier says the same tells its
accuracy better than its own confidence does. docs/estimate.md has how much better, and the command that says so.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safda.classifier import Predictions
from safda.data import Domain
from safda.evaluation.scores.agreement import GRAPH
from safda.methods.propagation import both_graphs

_DEVIATIONS = 1.645  # of a normal distribution, either way, hold nine of ten
_FEWEST = 20  # target samples: of fewer, nothing can be said


class Weights(NamedTuple):
    """What makes an estimate of an agreement: both beyond chance, accuracy = constant + agreement · a.

    Attributes:
        constant: what is added to all.
        agreement: what agreement counts.
        reach: half the width of the interval, beside what chance does to a few samples.
    """

    constant: float
    agreement: float
    reach: float


#: By least squares over the runs of docs/estimate.md, where each data set counts alike; with any of them left out, the
#: weights are much the same. The reach is what nine of ten errors stay within, on the data set that was left out.
WEIGHTS = Weights(constant=-0.164, agreement=1.165, reach=0.117)
LEVEL = 0.9
METHOD = "agreement with labels that spread from the source"


@dataclass(frozen=True)
class AccuracyEstimate:
    """An estimate of target accuracy, from 0 to 1.

    Attributes:
        accuracy: what is likely.
        low, high: where it lies, in as many cases as ``level`` says.
        level: the share of cases.
        method: by what.
    """

    accuracy: float
    low: float
    high: float
    level: float
    method: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}


def estimate_accuracy(predictions: Predictions, source: Domain, target: Domain) -> dict[str, Any] | None:
    """Estimate the accuracy of predictions of a target without labels.

    Args:
        predictions: what a classifier says of the target.
        source: the labelled domain; samples of both must be features.
        target: the other one.

    Returns:
        an :class:`AccuracyEstimate` as plain values; None of a few samples.
    """
    if len(target) < _FEWEST:
        return None
    agreement = agreement_with_source_labels(predictions, source, target)
    return estimate(agreement, len(predictions.classes), len(target)).to_dict()


def agreement_with_source_labels(predictions: Predictions, source: Domain, target: Domain) -> float:
    """Return the share of target samples of which labels that spread over the graph from the source say the same.

    Of two graphs, aligned or not, it is the one that speaks for the predictions, as where candidates are chosen.
    """
    answers = predictions.logits.argmax(1)
    spread = [graph.source_labels(GRAPH.alpha).argmax(1).numpy() for graph in both_graphs(source, target, GRAPH)]
    return max(float((answers == labels).mean()) for labels in spread)


def estimate(agreement: float, classes: int, samples: int, weights: Weights = WEIGHTS) -> AccuracyEstimate:
    """Make an estimate of an agreement.

    Args:
        agreement: from :func:`agreement_with_source_labels`.
        classes: how many there are.
        samples: of the target.
        weights: of the line.

    >>> found = estimate(0.8, classes=31, samples=800)
    >>> found.low < 0.8 < found.high
    True
    """
    accuracy = likely_accuracy(weights.constant + weights.agreement * beyond_chance(agreement, classes), classes)
    by_chance = _DEVIATIONS * math.sqrt(accuracy * (1 - accuracy) / samples)
    reach = math.hypot(weights.reach, by_chance)
    return AccuracyEstimate(accuracy, max(accuracy - reach, 0.0), min(accuracy + reach, 1.0), LEVEL, METHOD)


def beyond_chance(share: float, classes: int) -> float:
    """Return a share of equal answers as 0 for what chance gives, or less, and 1 for all.

    >>> beyond_chance(0.75, classes=2), beyond_chance(0.1, classes=2)
    (0.5, 0.0)
    """
    return max(0.0, (share - 1 / classes) / (1 - 1 / classes))


def likely_accuracy(beyond: float, classes: int) -> float:
    """Return the share that is so far beyond chance: what chance gives at least, and all at most.

    >>> likely_accuracy(0.5, classes=2), likely_accuracy(-0.1, classes=4), likely_accuracy(1.1, classes=4)
    (0.75, 0.25, 1.0)
    """
    beyond = float(np.clip(beyond, 0, 1))
    return beyond + (1 - beyond) / classes


# ------------------------------------------------------------------------------ by confidence, calibrated by the source


def average_thresholded_confidence(
    source_confidence: NDArray[Any], source_right: NDArray[np.bool_], target_confidence: NDArray[Any]
) -> float:
    """Estimate accuracy as the share of target samples above a threshold of confidence.

    It is the threshold that as many source samples reach as are right.

    Garg et al.: Leveraging unlabeled data to predict out-of-distribution performance. ICLR, 2022. The source's samples
    should not be those that were learned from.

    >>> average_thresholded_confidence(np.array([0.9, 0.8, 0.6]), np.array([True, True, False]), np.array([0.95, 0.5]))
    0.5
    """
    wrong = int((~source_right).sum())
    ordered = np.sort(source_confidence)
    threshold = ordered[wrong] if wrong < len(ordered) else np.inf
    return float((target_confidence >= threshold).mean())


def difference_of_confidences(
    source_confidence: NDArray[Any], source_right: NDArray[np.bool_], target_confidence: NDArray[Any]
) -> float:
    """Estimate accuracy as the source's, less what the mean confidence falls by from source to target.

    Guillory et al.: Predicting with confidence on unseen distributions. ICCV, 2021. The source's samples should not be
    those that were learned from.

    >>> difference_of_confidences(np.array([0.75, 0.75]), np.array([True, True]), np.array([0.5, 0.5]))
    0.75
    """
    fall = source_confidence.mean() - target_confidence.mean()
    return float(np.clip(source_right.mean() - fall, 0, 1))
