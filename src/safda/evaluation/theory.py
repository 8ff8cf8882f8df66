"""The paper's quantities: margin, margin disparity, discrepancy, and what can be computed of the error bound.

All take probabilities, n×K, of a classifier C and of another, C', on the same samples. The sup over C' in the
discrepancy is what MDD's adversary D is trained to reach, so D's probabilities stand for it.
"""

from __future__ import annotations

import math

from torch import Tensor


def margin(probabilities: Tensor, labels: Tensor) -> Tensor:
    """ρ: half the gap between the probability of a label and the largest of the others.

    >>> import torch
    >>> margin(torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([0]))
    tensor([0.2500])
    """
    own = probabilities.gather(1, labels.unsqueeze(1)).squeeze(1)
    others = probabilities.scatter(1, labels.unsqueeze(1), float("-inf")).max(1).values
    return (own - others) / 2


def margin_loss(probabilities: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """ρ̄: 1 for a negative margin, 0 beyond the threshold ϱ, and falling linearly in between."""
    return (1 - margin(probabilities, labels) / threshold).clamp(0, 1)


def margin_risk(probabilities: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """ε̂: the mean margin loss against true labels."""
    return margin_loss(probabilities, labels, threshold).mean()


def margin_disparity(probabilities: Tensor, other: Tensor, threshold: float) -> Tensor:
    """Δ̂: the mean margin loss of ``probabilities`` against what the other classifier predicts."""
    return margin_loss(probabilities, other.argmax(1), threshold).mean()


def discrepancy(source: Tensor, other_source: Tensor, target: Tensor, other_target: Tensor, threshold: float) -> Tensor:
    """d̂ for one given pair of classifiers: twice what their disparity grows from source to target.

    The paper prints source minus target; as in MDD's own definition, it must be target minus source, or an
    adversary that disagrees on the target would make the bound smaller.
    """
    on_source = margin_disparity(source, other_source, threshold)
    on_target = margin_disparity(target, other_target, threshold)
    return 2 * (on_target - on_source)


def h_divergence(source_error: float, target_error: float) -> float:
    """d̂_H from a domain classifier's error on each domain: 2·(1 − their sum); 0 says they cannot be told apart.

    >>> h_divergence(0.5, 0.5), h_divergence(0.0, 0.0)
    (0.0, 2.0)
    """
    return 2 * (1 - (source_error + target_error))


def sampling_terms(sources: int, targets: int, delta: float) -> float:
    """The error bound's terms that depend on the numbers of samples alone, at confidence 1 − 3δ.

    What else stands in the bound, λ and K, cannot be computed from data.

    >>> sampling_terms(10**6, 10**6, 0.05) < sampling_terms(100, 100, 0.05)
    True
    """
    log = math.log(2 / delta)
    return 2 * math.sqrt(log / (2 * sources)) + math.sqrt(log / (2 * targets))
