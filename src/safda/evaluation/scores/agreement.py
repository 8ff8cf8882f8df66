"""Agreement: with what neighbours say, and with models that began with other seeds."""

from __future__ import annotations

import numpy as np

from safda.evaluation.scores.outputs import Outputs, score
from safda.methods.propagation import PropagationKnobs, propagation_graph
from safda.recipe import preset

#: The graph of the default recipe, so that one that a run has made serves again.
GRAPH: PropagationKnobs = preset("default")["pseudo_labels"].propagation


@score("graph_agreement", paper="label spreading: Zhou et al., NIPS 2003; the score is ours", cost="graph")
def graph_agreement(outputs: Outputs) -> float:
    """Return the share of target samples whose answer stays once answers spread among neighbours. Higher is better.

    They spread over the graph of both domains' features, in which the source's samples have their true labels.
    """
    graph = propagation_graph(*outputs.feature_domains, GRAPH)
    spread = graph.propagate(outputs.target_probabilities, GRAPH.alpha)
    return (spread.argmax(1) == outputs.target_answers).double().mean().item()


@score("seed_agreement", paper="Jiang et al., ICLR 2022; Baek et al., NeurIPS 2022", cost="models")
def seed_agreement(outputs: Outputs) -> float:
    """Return the mean share of target samples to which models of other seeds give the same answer. Higher is better.

    >>> from safda.classifier import Predictions
    >>> one, other = (Predictions((), (), np.eye(2)[answers], np.eye(2)) for answers in ([0, 1], [0, 0]))
    >>> seed_agreement(Outputs(one, predict_by_others=lambda: [one, other]))
    0.75
    """
    answers = outputs.target.logits.argmax(1)
    return float(np.mean([(each.logits.argmax(1) == answers).mean() for each in outputs.others]))
