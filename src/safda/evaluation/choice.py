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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from safda.classifier import Predictions
from safda.evaluation.scores import Outputs, information
from safda.evaluation.scores.agreement import GRAPH
from safda.methods.propagation import LabelPropagation

SOURCE_ONLY = "source-only"  #: what a choice calls the classifier that did not adapt
_DIGITS = 6  # of all that is seen: what is written down is what was decided by


class Rule(NamedTuple):
    """The numbers of the choice.

    How sure a classifier is depends on its recipe, and source only agrees with itself: neither may count for much.

    Attributes:
        neighbours, information, agreement: what they count beside ``source_labels``, which counts one.
        begun: which part of a score is that of those whose answers a classifier began with.
        deviations: by how many of :func:`chance` a score must be above source only's.
        tie: by how many of them it must be above another candidate's, to be told from it.
    """

    neighbours: float = 0.5
    information: float = 0.25
    agreement: float = 0.3
    begun: float = 0.5
    deviations: float = 2.0
    tie: float = 0.25

    def weigh(self, seen: Mapping[str, float]) -> float:
        """Add up what was seen of one classifier."""
        counts = seen["source_labels"] + self.neighbours * seen["neighbours"]
        return counts + self.information * seen["information"] + self.agreement * seen["agreement"]


RULE = Rule()


@dataclass(frozen=True)
class Evidence:
    """What can be seen of several classifiers without labels of the target.

    Attributes:
        samples: how many of the target they answer.
        alike: name → name → on which share of samples both give the same answer.
        in_graphs: by each graph, name → ``source_labels``, ``neighbours``, ``information`` and ``agreement``.
    """

    samples: int
    alike: Mapping[str, Mapping[str, float]]
    in_graphs: Sequence[Mapping[str, Mapping[str, float]]]


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

    Args:
        predictions: what each says of the same samples.
        graphs: of the source and these samples, such as an aligned one and one that is not; without any, what needs
            them counts nothing.
        begun_with: as :func:`decide` has it.

    >>> sure = 9 * np.eye(3)[[0, 1, 2, 0, 1, 2]]
    >>> both = {SOURCE_ONLY: Predictions((), (), sure / 9, sure), "adapted": Predictions((), (), sure, sure)}
    >>> choose(both, []).name
    'adapted'
    """
    return decide(look_at(predictions, graphs), begun_with or {}, RULE)


def look_at(predictions: Mapping[str, Predictions], graphs: Sequence[LabelPropagation]) -> Evidence:
    """Return what can be seen of classifiers by what each says of the same samples, in each of these graphs."""
    answers = {name: each.logits.argmax(1) for name, each in predictions.items()}
    alike = {one: {other: _share(own == answers[other]) for other in answers} for one, own in answers.items()}
    in_all = {
        name: {"information": round(information(Outputs(each)), _DIGITS), "agreement": alike[name][SOURCE_ONLY]}
        for name, each in predictions.items()
    }
    nothing = {name: {"source_labels": 0.0, "neighbours": 0.0} for name in answers}
    classes = predictions[SOURCE_ONLY].logits.shape[1]
    in_graphs = [_in_graph(graph, answers, classes) for graph in graphs] or [nothing]
    together = [{name: {**seen[name], **in_all[name]} for name in seen} for seen in in_graphs]
    return Evidence(len(answers[SOURCE_ONLY]), alike, together)


def decide(evidence: Evidence, begun_with: Mapping[str, Sequence[str]], rule: Rule = RULE) -> Choice:
    """Take one by what was seen.

    Source only is taken unless the score of another is clearly higher; of those that are, the highest is. Where several
    cannot be told from the highest, chance would decide: the one that began with the answers of most others is taken,
    and of these the first. One that learned pseudo-labels has made its neighbours agree, right or wrong: half of its
    score is that of the one whose answers they were, or, where that one had learned another's in its turn, of the
    other. An ensemble's were mostly those of many that are not judged here; its answers must speak for themselves.

    Args:
        evidence: of all of them.
        begun_with: name → those whose answers its pseudo-labels began with, on average; it counts where at least half
            of them are judged, and none is source only.
        rule: what counts how much.
    """
    seen = {
        name: max((in_graph[name] for in_graph in evidence.in_graphs), key=rule.weigh) for name in evidence.in_graphs[0]
    }
    scores = _scores(seen, begun_with, rule)

    def by_chance(one: str, other: str) -> float:
        return chance(evidence.alike[one][other], evidence.samples)

    def is_clear(name: str) -> bool:
        return scores[name] > scores[SOURCE_ONLY] + rule.deviations * by_chance(name, SOURCE_ONLY)

    def is_as_good(name: str) -> bool:
        return scores[name] >= scores[highest] - rule.tie * by_chance(name, highest)

    def others(name: str) -> int:
        return len(set(begun_with.get(name, ())) - {SOURCE_ONLY})

    clear = [name for name in scores if is_clear(name)]
    highest = max(clear, key=scores.__getitem__, default=SOURCE_ONLY)
    taken = max(filter(is_as_good, clear), key=others, default=SOURCE_ONLY)
    return Choice(taken, {name: {**seen[name], "score": scores[name]} for name in seen})


def _in_graph(
    graph: LabelPropagation, answers: Mapping[str, NDArray[Any]], classes: int
) -> dict[str, dict[str, float]]:
    """Return what a graph says of each classifier's answers."""
    labels = graph.source_labels(GRAPH.alpha).argmax(1).numpy()
    return {
        name: {
            "source_labels": _share(own == labels),
            "neighbours": round(neighbour_information(np.eye(classes)[own], graph.affinity), _DIGITS),
        }
        for name, own in answers.items()
    }


def _share(of_samples: NDArray[np.bool_]) -> float:
    return round(float(of_samples.mean()), _DIGITS)


def _scores(
    seen: Mapping[str, Mapping[str, float]], begun_with: Mapping[str, Sequence[str]], rule: Rule
) -> dict[str, float]:
    """Return each classifier's score: a part of it is that of those with whom all began."""
    alone = {name: rule.weigh(each) for name, each in seen.items()}

    def first_of_all(name: str) -> float:
        """Return the score of those whose answers came first: of one that learned from another, of that one's."""
        others = begun_with.get(name, ())
        judged = [other for other in others if other in alone]
        if SOURCE_ONLY in others or not judged or 2 * len(judged) < len(others):
            return alone[name]
        return fmean(first_of_all(other) for other in judged)

    return {
        name: round((1 - rule.begun) * score + rule.begun * first_of_all(name), _DIGITS)
        for name, score in alone.items()
    }


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
