"""Shuffle Augmentation of Features: the paper's Algorithm 1, "SAF-mixup", and nothing else.

Pairs of target features are mixed with a weight η, their pseudo-labels are mixed alike, and the classifier trains on
the mixes. It works in any training loop::

    saf = SAF(feature_dim=2048)
    out = saf(target_features, classify)     # classify is C∘B
    loss = classification + adversarial + weight * out.loss

Where η comes from is in ``eta.py``, what pseudo-labels may be in ``pseudo_labels.py``, and how safda's own loop uses
all three in ``saf_method.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from safda.methods.eta import LearnedEta

Classify = Callable[[Tensor], Tensor]


class SAFOutput(NamedTuple):
    """What one call of :class:`SAF` returns.

    Attributes:
        loss: L_M, the cross-entropy divergence of the mixes; zero where no pair could be drawn.
        eta: the weight of each pair's first sample, shape (pairs,).
        first, second: row numbers of the pairs, into the features.
        labels: the composite labels ỹ, shape (pairs, classes).
        logits: C∘B of the mixes, shape (pairs, classes).
    """

    loss: Tensor
    eta: Tensor
    first: Tensor
    second: Tensor
    labels: Tensor
    logits: Tensor


class SAF(nn.Module):
    """The paper's module M: draw pairs, weigh them by η, mix features and labels, and score the mixes.

    Args:
        feature_dim: size of a feature φ.
        eta: from (features, first, second) to η, one column; by default the paper's, learned.
        pairing: ``"random"`` draws pairs without replacement, N/2 mixes of N samples (of an odd batch one sample sits
            out; a single sample has no partner, and the loss is zero). ``"reversed"``, as in the released code, mixes
            the batch with itself reversed, N mixes of N samples.
        label_scale: factor on the composite labels: 1 in the paper, 2 in the released code.

    Example:
        >>> saf, classify = SAF(feature_dim=8), nn.Linear(8, 3)
        >>> out = saf(torch.randn(6, 8), classify)
        >>> tuple(out.eta.shape), tuple(out.labels.shape)
        ((3,), (3, 3))
    """

    def __init__(
        self, feature_dim: int, *, eta: nn.Module | None = None, pairing: str = "random", label_scale: float = 1.0
    ) -> None:
        super().__init__()
        if pairing not in ("random", "reversed"):
            raise ValueError(f"SAF(pairing={pairing!r}): must be random or reversed")
        self.eta = LearnedEta(feature_dim) if eta is None else eta
        self.pairing, self.label_scale = pairing, label_scale

    def forward(
        self,
        features: Tensor,
        classify: Classify,
        *,
        pseudo_labels: Tensor | None = None,
        candidates: Tensor | None = None,
        evidence: Tensor | None = None,
        projected: tuple[Tensor, Classify] | None = None,
    ) -> SAFOutput:
        """Mix the features and score the mixes.

        Args:
            features: φ of the target samples, shape (N, feature_dim).
            classify: C∘B, from features to logits.
            pseudo_labels: ŷ of every row; by default C∘B's own probabilities, which pass no gradient back.
            candidates: row numbers of the samples that may be mixed; by default all.
            evidence: what η is made of, a line for each row; by default the features, as in the paper.
            projected: an affine image of the features, B's linear layer say, and what remains of ``classify`` after
                it. Mixing commutes with affine maps, so this spares a matrix product and changes nothing.
        """
        if pseudo_labels is None:
            pseudo_labels = classify(features).detach().softmax(1)
        if candidates is None:
            candidates = torch.arange(len(features), device=features.device)
        first, second = self.draw_pairs(candidates)
        eta = self.eta(features if evidence is None else evidence, first, second)
        labels = self.label_scale * mix(eta, pseudo_labels, first, second)  # ỹ = η·ŷ₁ + (1 − η)·ŷ₂
        if len(first) == 0:  # an empty sum: zero, and a zero gradient for every part of M
            return SAFOutput(eta.sum(), eta.squeeze(1), first, second, labels, labels)
        rows, rest = projected or (features, classify)
        logits = rest(mix(eta, rows, first, second))  # C∘B of φ̃ = η·φ₁ + (1 − η)·φ₂
        return SAFOutput(cross_entropy_divergence(logits, labels), eta.squeeze(1), first, second, labels, logits)

    def draw_pairs(self, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """RandomDrawPair: row numbers of the samples that meet, by torch's global generator."""
        if self.pairing == "reversed":
            return candidates, candidates.flip(0)
        shuffled = candidates[torch.randperm(len(candidates), device=candidates.device)]
        half = len(shuffled) // 2
        return shuffled[:half], shuffled[half : 2 * half]


def mix(eta: Tensor, rows: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """η·x₁ + (1 − η)·x₂."""
    return torch.lerp(rows[second], rows[first], eta.to(rows.dtype))


def cross_entropy_divergence(logits: Tensor, labels: Tensor) -> Tensor:
    """L_CED: the mean over samples of −yᵀ log σ(x), for labels that are distributions.

    >>> x, y = torch.zeros(1, 4), torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    >>> round(cross_entropy_divergence(x, y).item(), 4)    # ln 4
    1.3863
    """
    return -(labels * logits.log_softmax(1)).sum(1).mean()
