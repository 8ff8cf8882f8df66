"""How good an adapted classifier is likely to be: an estimate of its accuracy, with an interval, without target labels.

Two classifiers that err independently agree about as often as they are right. What adaptation learned from is not
independent of it; two simple labellers that know nothing but the source's labels are as near to that as can be had:
the graph, which lets these labels spread from neighbour to neighbour into the target, and a linear probe. How often the
classifier agrees with the first, and how often the two agree with each other, tells its accuracy better than its own
confidence does. docs/estimate.md has how much better, and the command that says so.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning
from sklearn.linear_model import RidgeClassifier

from safda.classifier import Predictions
from safda.data import Domain
from safda.data.loader import evaluation_batches
from safda.data.sampler import evenly_spaced_rows
from safda.evaluation.scores.agreement import GRAPH
from safda.methods.propagation import alignments, propagation_graph

Answers = NDArray[np.int64]

_MOST_SAMPLES = 4096  # of the source teach the probe
_DECAY = 0.01  # of the probe's weights, beside the mean square of a feature
_DEVIATIONS = 1.645  # of a normal distribution, either way, hold nine of ten
_FEWEST = 20  # target samples: of fewer, nothing can be said


class Weights(NamedTuple):
    """What makes an estimate of agreements beyond chance: constant + graph·a + graph_probe·b; how far it may be off.

    Attributes:
        constant: what is taken away from all.
        graph: what agreement with the graph's labels counts.
        graph_probe: what agreement of the graph's labels with the probe's counts: how far both are to be believed.
        reach: half the width of the interval, beside what chance does to a few samples.
    """

    constant: float
    graph: float
    graph_probe: float
    reach: float


#: By least squares over the runs of docs/estimate.md, where each data set counts alike; with any of them left out, the
#: weights are much the same. The reach is what nine of ten errors stay within, on the data set that was left out.
WEIGHTS = Weights(constant=-0.116, graph=0.857, graph_probe=0.322, reach=0.099)
LEVEL = 0.9
METHOD = "agreement with labels that spread from the source"


@dataclass(frozen=True)
class Estimate:
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


class SourceLabellers:
    """What the source's labels alone say of the target: through the graph of neighbours, and by a linear probe.

    Args:
        source: the labelled domain; samples of both must be features.
        target: the other one.

    Attributes:
        graph: the class that reaches each target sample from the source's, over the graph.
        probe: the class that a linear classifier gives it.
    """

    def __init__(self, source: Domain, target: Domain) -> None:
        spread = propagation_graph(source, target, GRAPH).source_labels(GRAPH.alpha)
        self.graph: Answers = spread.argmax(1).numpy()
        self.probe: Answers = _probe_answers(source, target)

    def agreement(self, answers: Answers) -> dict[str, float]:
        """Return how often they agree with a classifier's answers, and with each other."""
        return {
            "graph": float((answers == self.graph).mean()),
            "probe": float((answers == self.probe).mean()),
            "graph_probe": float((self.graph == self.probe).mean()),
        }


def estimate_accuracy(predictions: Predictions, source: Domain, target: Domain) -> dict[str, Any] | None:
    """Estimate the accuracy of predictions of a target without labels.

    Args:
        predictions: what a classifier says of the target.
        source: the labelled domain; samples of both must be features.
        target: the other one.

    Returns:
        an :class:`Estimate` as plain values; None of a few samples.
    """
    if len(target) < _FEWEST:
        return None
    seen = SourceLabellers(source, target).agreement(predictions.logits.argmax(1))
    return combined(seen, len(predictions.classes), len(target)).to_dict()


def combined(seen: Mapping[str, float], classes: int, samples: int, weights: Weights = WEIGHTS) -> Estimate:
    """Make an estimate of agreements, as :meth:`SourceLabellers.agreement` has them.

    >>> found = combined({"graph": 0.8, "graph_probe": 0.8}, classes=31, samples=800)
    >>> found.low < 0.8 < found.accuracy < found.high
    True
    """
    graph, both = (beyond_chance(seen[name], classes) for name in ("graph", "graph_probe"))
    beyond = weights.constant + weights.graph * graph + weights.graph_probe * both
    accuracy = float(np.clip(beyond + (1 - beyond) / classes, 0, 1))
    by_chance = _DEVIATIONS * math.sqrt(accuracy * (1 - accuracy) / samples)
    reach = math.hypot(weights.reach, by_chance)
    return Estimate(accuracy, max(accuracy - reach, 0.0), min(accuracy + reach, 1.0), LEVEL, METHOD)


def beyond_chance(share: float, classes: int) -> float:
    """Return a share of equal answers as 0 for what chance gives, and 1 for all.

    >>> beyond_chance(0.75, classes=2)
    0.5
    """
    return (share - 1 / classes) / (1 - 1 / classes)


def _probe_answers(source: Domain, target: Domain) -> Answers:
    """Learn a linear classifier from the source's features, made like the target's, and ask it of the target."""
    align_source, align_target = alignments(source, target)
    rows = evenly_spaced_rows(len(source), _MOST_SAMPLES)
    features = align_source(source.batch(rows)).numpy()
    labels = source.labelled("an estimate")[0][rows].numpy()
    decay = _DECAY * len(features) / features.shape[1]  # features are of length one
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LinAlgWarning)  # of columns that do not vary; the decay takes care of them
        probe = RidgeClassifier(alpha=decay).fit(features, labels)
    answers = [probe.predict(align_target(batch).numpy()) for batch in evaluation_batches(target)]
    return np.concatenate(answers)


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
