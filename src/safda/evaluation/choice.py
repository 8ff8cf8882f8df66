"""Which of several adapted classifiers to take, where the target has no labels, and whether to adapt at all.

A good one is sure of its answers, uses all classes, and has not left what the source taught: a classifier can be sure,
even and wrong, but then it seldom agrees with one that only learned the source. docs/default.md has what the rule below
is worth on the data sets at hand, beside others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from safda.classifier import Predictions
from safda.evaluation.scores import Outputs, information

SOURCE_ONLY = "source-only"  #: what a choice calls the classifier that did not adapt
REFINED = "refined"  #: the one that begins with what all others say

_AGREEMENT = 0.25  # what agreement with source only counts, beside information


@dataclass(frozen=True)
class Choice:
    """What was taken, and why.

    Attributes:
        name: which one.
        evidence: name → what was looked at: ``information``, ``agreement`` with source only, and the ``score`` of both.
    """

    name: str
    evidence: dict[str, dict[str, float]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"chosen": self.name, "evidence": self.evidence}


def choose(predictions: Mapping[str, Predictions]) -> Choice:
    """Choose among classifiers by what they say of the target; :data:`SOURCE_ONLY` must be one of them.

    >>> import numpy as np
    >>> sure = 9 * np.eye(3)[[0, 1, 2, 0, 1, 2]]
    >>> both = {SOURCE_ONLY: Predictions((), (), sure / 9, sure), "adapted": Predictions((), (), sure, sure)}
    >>> choose(both).name
    'adapted'
    """
    before = predictions[SOURCE_ONLY].logits.argmax(1)
    evidence = {}
    for name, each in predictions.items():
        seen = {
            "information": information(Outputs(each)),
            "agreement": float((each.logits.argmax(1) == before).mean()),
        }
        seen["score"] = seen["information"] + _AGREEMENT * seen["agreement"]
        evidence[name] = {what: round(value, 6) for what, value in seen.items()}
    return Choice(max(evidence, key=lambda name: evidence[name]["score"]), evidence)
