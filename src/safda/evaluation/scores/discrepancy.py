"""The discrepancy between domains that the paper's theory speaks of."""

from __future__ import annotations

from safda.evaluation.scores.outputs import Outputs, score
from safda.evaluation.theory import empirical_mdd

_FEWEST = 8  # samples of each domain, to learn from some and hold some out


@score("mdd", paper="margin disparity discrepancy: Zhang et al., ICML 2019", cost="adversary")
def negative_mdd(outputs: Outputs) -> float:
    """Return minus the empirical MDD: how far a second classifier can leave on the target alone. Higher is better.

    From −2 to 0. That classifier learns from the embedding, and is measured on samples that it has not seen.
    """
    source, target = outputs.source_logits, outputs.target_logits
    if min(len(source), len(target)) < _FEWEST:
        return float("nan")
    return -empirical_mdd(outputs.source_embedding, source, outputs.target_embedding, target)
