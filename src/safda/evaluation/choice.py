"""Which of several adapted classifiers to take, where the target has no labels, and whether to adapt at all.

Labels that spread over the graph from the source's true ones into the target know nothing of any classifier: a good one
often says the same (``source_labels``). It gives near samples the same answer, and not all samples the same one
(``neighbours``); it is sure of its answers and uses all classes (``information``); and it has not left what the source
taught (``agreement``, with a classifier that only learned the source). docs/default.md has what each is worth on the
data sets at hand.

What shifts a whole domain may be taken away before neighbours are sought, or left. Where the domains were measured
differently it must go; where classes are more frequent in one of them it must stay, since a domain's mean holds its
classes' shares. Nobody can tell which it is, so there is a graph of each, and a classifier is judged in the one that
speaks for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from safda.classifier import Predictions
from safda.evaluation.scores import Outputs, information
from safda.evaluation.scores.agreement import GRAPH
from safda.methods.propagation import LabelPropagation

SOURCE_ONLY = "source-only"  #: what a choice calls the classifier that did not adapt

# How sure a classifier is depends on its recipe, and source only agrees with itself: neither may count for much.
_COUNTS = {"source_labels": 1.0, "neighbours": 0.5, "information": 0.25, "agreement": 0.3}
_DEVIATIONS = 2.0  # of :func:`chance`: by so many must a score be above source only's
_TIE = 0.25  # … and by so many above another candidate's, to be told from it


@dataclass(frozen=True)
class Choice:
    """What was taken, and why.

    Attributes:
        name: which one.
        evidence: name → what was looked at: ``source_labels`` and ``neighbours`` in the graph that speaks for it,
            ``information``, ``agreement``, and the ``score`` of all four, half of it that of the one whose answers it
            began with.
    """

    name: str
    evidence: dict[str, dict[str, float]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"chosen": self.name, "evidence": self.evidence}


def choose(
    predictions: Mapping[str, Predictions],
    graphs: Sequence[LabelPropagation],
    begun_with: Mapping[str, Sequence[str]] | None = None,
) -> Choice:
    """Choose among classifiers by what they say of the target; :data:`SOURCE_ONLY` must be one of them.

    It is taken unless the score of another is clearly higher; of those that are, the highest is. Where several cannot
    be told from the highest, chance would decide: the one that began with the answers of most others is taken, and of
    these the first. One that learned pseudo-labels has made its neighbours agree, right or wrong: half of its score is
    that of the one whose answers they were. An ensemble's were those of many that are not judged here, and its answers
    must speak for themselves.

    Args:
        predictions: what each says of the same samples.
        graphs: of the source and these samples, such as an aligned one and one that is not; without any, what needs
            them counts nothing.
        begun_with: name → those whose answers its pseudo-labels began with, on average; it counts where all of them are
            judged, and none is source only.

    >>> sure = 9 * np.eye(3)[[0, 1, 2, 0, 1, 2]]
    >>> both = {SOURCE_ONLY: Predictions((), (), sure / 9, sure), "adapted": Predictions((), (), sure, sure)}
    >>> choose(both, []).name
    'adapted'
    """
    answers = {name: each.logits.argmax(1) for name, each in predictions.items()}
    begun_with = begun_with or {}
    evidence = _scored(_evidence(predictions, answers, graphs), begun_with)
    samples = len(answers[SOURCE_ONLY])

    def score(name: str) -> float:
        return evidence[name]["score"]

    def by_chance(one: str, other: str) -> float:
        return chance(float((answers[one] == answers[other]).mean()), samples)

    def is_clear(name: str) -> bool:
        return score(name) > score(SOURCE_ONLY) + _DEVIATIONS * by_chance(name, SOURCE_ONLY)

    def is_as_good(name: str) -> bool:
        return score(name) >= score(highest) - _TIE * by_chance(name, highest)

    def others(name: str) -> int:
        return len(set(begun_with.get(name, ())) - {SOURCE_ONLY})

    clear = [name for name in evidence if is_clear(name)]
    highest = max(clear, key=score, default=SOURCE_ONLY)
    return Choice(max(filter(is_as_good, clear), key=others, default=SOURCE_ONLY), evidence)


def _evidence(
    predictions: Mapping[str, Predictions], answers: Mapping[str, NDArray[Any]], graphs: Sequence[LabelPropagation]
) -> dict[str, dict[str, float]]:
    """Look at each classifier, in the graph that speaks for it."""
    spread = [graph.source_labels(GRAPH.alpha).argmax(1).numpy() for graph in graphs]
    evidence: dict[str, dict[str, float]] = {}
    for name, each in predictions.items():
        one_hot = np.eye(each.logits.shape[1])[answers[name]]
        in_graphs = [
            {
                "source_labels": float((answers[name] == labels).mean()),
                "neighbours": neighbour_information(one_hot, graph.affinity),
            }
            for graph, labels in zip(graphs, spread, strict=True)
        ]
        speaks_for_it = max(in_graphs, key=_weighted, default={"source_labels": 0.0, "neighbours": 0.0})
        evidence[name] = {
            **speaks_for_it,
            "information": information(Outputs(each)),
            "agreement": float((answers[name] == answers[SOURCE_ONLY]).mean()),
        }
    return evidence


def _scored(
    evidence: Mapping[str, Mapping[str, float]], begun_with: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """Add each classifier's score: half of it is that of those it began with, where all of them are judged."""
    alone = {name: _weighted(seen) for name, seen in evidence.items()}
    scored = {}
    for name, seen in evidence.items():
        first = begun_with.get(name, ())
        if SOURCE_ONLY in first or not alone.keys() >= set(first):
            first = ()
        score = (alone[name] + fmean(alone[other] for other in first or (name,))) / 2
        scored[name] = {what: round(value, 6) for what, value in {**seen, "score": score}.items()}
    return scored


def chance(agreement: float, samples: int) -> float:
    """Return by how much the scores of two classifiers differ by chance: a standard deviation.

    Of the samples that get another answer, some speak for the one and some for the other. If they did so at random,
    their balance, as a share of all samples, would have this deviation: so a few samples of a small target must speak
    with one voice, and of a large one a small share will do.

    Args:
        agreement: the share of samples to which both give the same answer.
        samples: how many there are.

    >>> chance(agreement=0.75, samples=400)
    0.025
    """
    return math.sqrt((1 - agreement) / samples)


def _weighted(seen: Mapping[str, float]) -> float:
    return sum(_COUNTS[what] * value for what, value in seen.items())


def neighbour_information(probabilities: NDArray[Any], affinity: csr_array) -> float:
    """Return what a sample's neighbours tell of its own answer, as a share of what there is to tell.

    That is the mutual information of a sample's class, drawn by its probabilities, and a neighbour's, drawn likewise,
    over the entropy of classes: 1 when near samples always get the same sure answer, 0 when they tell nothing of each
    other, or when all answers are the same.

    >>> two_pairs = csr_array(np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]))
    >>> neighbour_information(np.eye(2)[[0, 0, 1, 1]], two_pairs)
    1.0
    >>> neighbour_information(np.full((4, 2), 0.5), two_pairs)
    0.0
    """
    own = probabilities.astype(np.float64)
    near = affinity @ own
    known = near.sum(1) > 0  # a sample may have no neighbour
    if not known.any():
        return 0.0
    near = near[known] / near[known].sum(1, keepdims=True)
    joint = own[known].T @ near / known.sum()
    mine, theirs = joint.sum(1), joint.sum(0)
    entropy = -float(np.sum(mine * np.log(np.maximum(mine, _TINY))))
    independent = np.outer(mine, theirs)
    mutual = float(np.sum(joint * np.log(np.maximum(joint, _TINY) / np.maximum(independent, _TINY))))
    return max(0.0, mutual / entropy) if entropy > _LEAST_ENTROPY else 0.0


_TINY = 1e-30
_LEAST_ENTROPY = 1e-6  # in nats: with less, all answers are the same class
