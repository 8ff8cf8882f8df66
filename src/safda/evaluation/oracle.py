"""Scores against labels. On a target these are oracle numbers: they look at what training never saw."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix


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


def calibration_error(confidence: NDArray[np.floating[Any]], right: NDArray[np.bool_], bins: int = 15) -> float:
    """Expected calibration error: |accuracy − confidence| in each bin, weighted by the bin's share.

    >>> calibration_error(np.array([0.75, 0.75, 0.75, 0.75]), np.array([True, True, True, False]))
    0.0
    """
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [
        abs(right[which == b].mean() - confidence[which == b].mean()) * (which == b).mean() for b in np.unique(which)
    ]
    return float(sum(gaps))
