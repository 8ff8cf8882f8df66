"""Scores that need no target labels: which of several classifiers to trust, seen from what it says.

Higher is better in each, without exception: whoever chooses by one takes the highest. None of them is a proof: a
classifier can be sure and wrong. docs/scores.md has what each is worth on the data sets at hand.

A score is a function of :class:`Outputs`, registered under its name; another package adds its own by an entry point of
the group ``safda.scores``::

    @score("gap", paper="ours", cost="outputs")
    def gap(outputs: Outputs) -> float:
        first, second = outputs.target_logits.topk(2).values.T
        return (first - second).mean().item()
"""

from safda.evaluation.scores.certainty import density, entropy, information, nuclear_norm
from safda.evaluation.scores.outputs import (
    COSTS,
    SCORES,
    About,
    Missing,
    ModelsMissing,
    NetworkMissing,
    Outputs,
    SourceMissing,
    about,
    score,
    scores,
)
from safda.evaluation.scores.source import source_accuracy

__all__ = [
    "COSTS",
    "SCORES",
    "About",
    "Missing",
    "ModelsMissing",
    "NetworkMissing",
    "Outputs",
    "SourceMissing",
    "about",
    "density",
    "entropy",
    "information",
    "nuclear_norm",
    "score",
    "scores",
    "source_accuracy",
]
