"""Scores against labels. On a target these are oracle numbers: they look at what training never saw."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix

#: Equal bins of confidence: of the calibration error, and of the chart of it.
CONFIDENCE_BINS = 15


@dataclass(frozen=True)
class Evaluation:
    """How predictions compare with labels.

    Attributes:
        samples: how many there were.
        accuracy: share of right answers.
        mean_class_accuracy: mean over the classes that occur of each one's accuracy.
        class_accuracy: class name → accuracy, for the classes that occur.
        classes: all class names, in the order of the confusion's rows and columns.
        confusion: counts, true class by row, predicted class by column.
        calibration_error: mean gap between confidence and accuracy over 15 equal bins of confidence (ECE).
        mean_confidence: mean of the largest probability.
    """

    samples: int
    accuracy: float
    mean_class_accuracy: float
    class_accuracy: dict[str, float]
    classes: tuple[str, ...]
    confusion: list[list[int]]
    calibration_error: float
    mean_confidence: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def score(
    probabilities: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]], classes: tuple[str, ...]
) -> Evaluation:
    """Compare probabilities (n×K) with class numbers.

    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> result = score(p, np.array([0, 1, 1]), ("cat", "dog"))
    >>> round(result.accuracy, 3), result.class_accuracy
    (0.667, {'cat': 1.0, 'dog': 0.5})
    """
    predicted, confidence = probabilities.argmax(1), probabilities.max(1)
    confusion = confusion_matrix(labels, predicted, labels=range(len(classes)))
    occurring = [k for k in range(len(classes)) if confusion[k].sum()]
    class_accuracy = {classes[k]: float(confusion[k, k] / confusion[k].sum()) for k in occurring}
    return Evaluation(
        samples=len(labels),
        accuracy=float((predicted == labels).mean()),
        mean_class_accuracy=float(np.mean(list(class_accuracy.values()))),
        class_accuracy=class_accuracy,
        classes=classes,
        confusion=confusion.tolist(),
        calibration_error=calibration_error(confidence, predicted == labels),
        mean_confidence=float(confidence.mean()),
    )


class ConfidenceBin(NamedTuple):
    """Samples of about the same confidence.

    Attributes:
        number: which of the bins it is, from 0.
        samples: how many it holds.
        confidence: their mean confidence.
        accuracy: the share of them that is right.
    """

    number: int
    samples: int
    confidence: float
    accuracy: float


def confidence_bins(
    confidence: NDArray[np.floating[Any]], right: NDArray[np.bool_], bins: int = CONFIDENCE_BINS
) -> list[ConfidenceBin]:
    """Return the bins that hold any sample, least confidence first.

    >>> confidence_bins(np.array([0.5, 0.5, 1.0]), np.array([True, False, True]), bins=10)
    [ConfidenceBin(number=5, samples=2, confidence=0.5, accuracy=0.5),
     ConfidenceBin(number=9, samples=1, confidence=1.0, accuracy=1.0)]
    """
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    return [
        ConfidenceBin(number, int(here.sum()), float(confidence[here].mean()), float(right[here].mean()))
        for number in np.unique(which).tolist()
        for here in [which == number]
    ]


def calibration_error(
    confidence: NDArray[np.floating[Any]], right: NDArray[np.bool_], bins: int = CONFIDENCE_BINS
) -> float:
    """Expected calibration error: |accuracy − confidence| in each bin, weighted by the bin's share.

    >>> calibration_error(np.array([0.75, 0.75, 0.75, 0.75]), np.array([True, True, True, False]))
    0.0
    """
    found = confidence_bins(confidence, right, bins)
    return float(sum(abs(each.accuracy - each.confidence) * (each.samples / len(confidence)) for each in found))
