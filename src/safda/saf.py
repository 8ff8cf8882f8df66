"""Shuffle Augmentation of Features: the paper in one file.

Pairs of target features are mixed with a learned weight η, their pseudo-labels are mixed alike, and the
classifier trains on the mixes (Algorithm "SAF-mixup" of the paper). Every row of the paper's ablation table is
a parameter of the one module :class:`SAF`. It needs torch alone, and works in any training loop::

    saf = SAF(feature_dim=2048)
    out = saf(target_features, classify)     # classify is C∘B
    loss = classification + adversarial + weight * out.loss
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

Classify = Callable[[Tensor], Tensor]

_PRIOR_RATE = 0.01  # the running mean of predictions looks back about a hundred steps
_LEAST_PRIOR = 1e-4  # a class that is never predicted must not take every sample at once


@dataclass(frozen=True)
class SAFOutput:
    """What one call of :class:`SAF` gives.

    Attributes:
        loss: L_M, the cross-entropy divergence of the mixes; zero where no pair could be drawn.
        eta: the weight of each pair's first sample, shape (pairs,).
        first, second: row numbers of the pairs, into the features that were mixed.
        labels: the composite labels ỹ, shape (pairs, classes).
        logits: C∘B of the mixes, shape (pairs, classes).
        self_training: the released code's extra loss, or None where it is switched off.
    """

    loss: Tensor
    eta: Tensor
    first: Tensor
    second: Tensor
    labels: Tensor
    logits: Tensor
    self_training: Tensor | None


class SAF(nn.Module):
    """The paper's module M = (S₁, S₂, Sη), with each of its ablations as a parameter.

    Args:
        feature_dim: size of a feature φ (or of B's output, where that is what gets mixed).
        width: output size of each SAF bottleneck S.
        bottlenecks: how many there are: 2 in the paper. One is shared by both samples of a pair (so η does
            not depend on their order); with four, two read each sample. All outputs are added.
        eta: ``"learned"`` (the paper), ``"beta"`` (η ~ Beta(beta, beta)) or ``"constant"``.
        beta: the parameter of Beta.
        constant: the constant.
        rectified: a ReLU before the sigmoid, as in the released code: η in [0.5, 1).
        pairing: ``"random"`` draws pairs without replacement, N/2 mixes of N samples (of an odd batch one
            sample sits out; a single sample has no partner, and the loss is zero). ``"reversed"`` mixes the
            batch with itself reversed, N mixes of N samples.
        labels: ``"soft"`` probabilities or ``"hard"`` one-hot pseudo-labels.
        label_scale: factor on the composite labels: 1 in the paper, 2 in the released code.
        label_gradient: whether the pseudo-labels ŷ pass a gradient back into C∘B. η gets its gradient through
            both features and labels in any case.
        align: divide pseudo-labels by a running mean of all predictions, to this power, and normalise again, so that
            no class grows only because it was frequent already. With 1 the classes come out equally frequent; less
            leaves room for a target that is unbalanced. Needs ``classes``. Not in the paper.
        sharpen: raise pseudo-labels to this power and normalise again. Not in the paper.
        ascend: M climbs L_M instead of descending it: η seeks the mix that teaches most. Not in the paper, where
            the loss always falls by picking one of the pair (a pure label has less entropy), so η runs to 0 or 1.
        classes: number of classes K, for ``align``.
        keep: ``"all"`` samples, only ``"certain"`` or only ``"uncertain"`` ones.
        threshold: a sample is certain if the entropy of its prediction is at most this fraction of ln K.
        feed_source: mix source samples too, by their predictions like the target's.
        mix_at: ``"features"`` (the paper) or ``"bottleneck"`` (the row "no bottleneck layer"): what the caller
            hands in, φ with C∘B, or B(φ) with C.
        self_training: also compute the cross-entropy of the target's logits with their own argmax.

    Example:
        >>> saf, classify = SAF(feature_dim=8, width=4), nn.Linear(8, 3)
        >>> out = saf(torch.randn(6, 8), classify)
        >>> tuple(out.eta.shape), tuple(out.labels.shape)
        ((3,), (3, 3))
    """

    def __init__(
        self,
        feature_dim: int,
        *,
        width: int = 384,
        bottlenecks: int = 2,
        eta: str = "learned",
        beta: float = 0.2,
        constant: float = 0.6,
        rectified: bool = False,
        pairing: str = "random",
        labels: str = "soft",
        label_scale: float = 1.0,
        label_gradient: bool = False,
        align: float = 0.0,
        sharpen: float = 1.0,
        ascend: bool = False,
        classes: int | None = None,
        keep: str = "all",
        threshold: float = 0.5,
        feed_source: bool = False,
        mix_at: str = "features",
        self_training: bool = False,
    ) -> None:
        super().__init__()
        _one_of("eta", eta, ("learned", "beta", "constant"))
        _one_of("pairing", pairing, ("random", "reversed"))
        _one_of("labels", labels, ("soft", "hard"))
        _one_of("keep", keep, ("all", "certain", "uncertain"))
        _one_of("mix_at", mix_at, ("features", "bottleneck"))
        if eta == "learned":
            self.bottlenecks = nn.ModuleList(nn.Linear(feature_dim, width) for _ in range(bottlenecks))
            self.estimator = nn.Linear(width, 1)
        if align:
            if classes is None:
                raise ValueError(f"SAF(align={align}) needs classes")
            self.register_buffer("prior", torch.full((classes,), 1 / classes))
        self.eta, self.beta, self.constant, self.rectified = eta, beta, constant, rectified
        self.pairing, self.keep, self.threshold = pairing, keep, threshold
        self.labels, self.label_scale, self.label_gradient = labels, label_scale, label_gradient
        self.sharpen, self.align, self.ascend = sharpen, align, ascend
        self.feed_source, self.mix_at, self.self_training = feed_source, mix_at, self_training

    def forward(
        self,
        target_features: Tensor,
        classify: Classify,
        *,
        source_features: Tensor | None = None,
        logits: Tensor | None = None,
        projected: tuple[Tensor, Classify] | None = None,
        spread: Tensor | None = None,
    ) -> SAFOutput:
        """Mix the features and score the mixes.

        Args:
            target_features: φ of the target samples, shape (N, feature_dim).
            classify: C∘B, from features to logits.
            source_features: φ of the source samples; needed with ``feed_source`` and ignored without.
            logits: ``classify`` of all the rows that may be mixed (source first, if fed), where the step has
                computed them already.
            projected: an affine image of those rows, B's linear layer say, and what remains of ``classify``
                after it. Mixing commutes with affine maps, so this spares a matrix product and changes nothing.
            spread: labels to use in place of predictions, such as those that spread from neighbour to neighbour
                (:class:`safda.neighbours.Neighbourhood`), for each of those rows; zeros where none is known.
        """
        features = target_features
        if self.feed_source:
            if source_features is None:
                raise ValueError("SAF(feed_source=True) needs source_features")
            features = torch.cat([source_features, target_features])
        if logits is None:
            logits = classify(features)

        first, second = self.draw_pairs(logits)
        eta = self.mixing_weight(features, first, second)
        pseudo = self._pseudo_labels(logits, spread)
        labels = self.label_scale * _mix(eta, pseudo, first, second)
        if len(first) == 0:
            loss, mixed_logits = eta.sum(), labels  # an empty sum: zero, and a zero gradient for every part of M
        else:
            rows, rest = projected or (features, classify)
            mixed_logits = rest(_mix(eta, rows, first, second))
            loss = cross_entropy_divergence(mixed_logits, labels)
        extra = self_training_loss(logits[-len(target_features) :]) if self.self_training else None
        return SAFOutput(loss, eta.squeeze(1), first, second, labels, mixed_logits, extra)

    def draw_pairs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """RandomDrawPair: row numbers of the samples that meet."""
        rows = torch.arange(len(logits), device=logits.device)
        if self.keep != "all":
            certain = relative_entropy(logits) <= self.threshold
            rows = rows[certain if self.keep == "certain" else ~certain]
        if self.pairing == "reversed":
            return rows, rows.flip(0)
        rows = rows[draw_order(len(rows), logits.device)]
        half = len(rows) // 2
        return rows[:half], rows[half : 2 * half]

    def mixing_weight(self, features: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """η = Sη(S₁(φ₁) + S₂(φ₂)), one column; or what an ablation puts in its place."""
        if self.eta == "constant":
            return features.new_full((len(first), 1), self.constant)
        if self.eta == "beta":
            return torch.distributions.Beta(self.beta, self.beta).sample((len(first), 1)).to(features)
        sides = (features[first], features[second])
        if len(self.bottlenecks) == 1:
            reads = [(self.bottlenecks[0], side) for side in sides]
        else:
            reads = [(bottleneck, sides[i % 2]) for i, bottleneck in enumerate(self.bottlenecks)]
        score: Tensor = self.estimator(sum(F.relu(bottleneck(side)) for bottleneck, side in reads))
        if self.ascend:
            score = _Climb.apply(score)  # type: ignore[no-untyped-call]
        return torch.sigmoid(F.relu(score) if self.rectified else score)

    def _pseudo_labels(self, logits: Tensor, spread: Tensor | None) -> Tensor:
        """ŷ = C∘B(φ), as probabilities or one-hot."""
        labels = (logits if self.label_gradient else logits.detach()).softmax(1)
        if spread is not None:
            labels = torch.where(spread.sum(1, keepdim=True) > 0, spread, labels)
        if self.sharpen != 1:
            labels = _normalised(labels**self.sharpen)
        if self.align:
            labels = self._aligned(labels)
        if self.labels == "hard":
            return F.one_hot(labels.argmax(1), labels.shape[1]).to(labels.dtype)
        return labels

    def _aligned(self, labels: Tensor) -> Tensor:
        prior = self.get_buffer("prior")
        if self.training:
            seen = labels.detach().mean(0)
            if dist.is_available() and dist.is_initialized():
                dist.all_reduce(seen)
                seen = seen / dist.get_world_size()
            prior.lerp_(seen.to(prior.dtype), _PRIOR_RATE)
        return _normalised(labels / prior.clamp_min(_LEAST_PRIOR) ** self.align)


def cross_entropy_divergence(logits: Tensor, labels: Tensor) -> Tensor:
    """L_CED: the mean over samples of −yᵀ log σ(x), for labels that are distributions.

    >>> x, y = torch.zeros(1, 4), torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    >>> round(cross_entropy_divergence(x, y).item(), 4)    # ln 4
    1.3863
    """
    return -(labels * logits.log_softmax(1)).sum(1).mean()


def self_training_loss(logits: Tensor) -> Tensor:
    """The released code's extra loss: cross-entropy of a prediction with its own argmax."""
    return F.cross_entropy(logits, logits.argmax(1))


def relative_entropy(logits: Tensor) -> Tensor:
    """Entropy of each prediction as a fraction of its maximum, ln K.

    >>> round(relative_entropy(torch.zeros(1, 7)).item(), 4)
    1.0
    """
    log_p = logits.detach().log_softmax(1)
    return -(log_p.exp() * log_p).sum(1) / math.log(logits.shape[1])


def draw_order(rows: int, device: torch.device) -> Tensor:
    """The order in which rows are drawn, from torch's global generator (so a loop's seed decides it)."""
    return torch.randperm(rows, device=device)


class _Climb(torch.autograd.Function):
    """The identity forwards; backwards the sign turns, so that a descending optimizer climbs."""

    @staticmethod
    def forward(ctx: Any, score: Tensor) -> Tensor:
        return score.view_as(score)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


def _mix(eta: Tensor, rows: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """η·x₁ + (1−η)·x₂."""
    return torch.lerp(rows[second], rows[first], eta.to(rows.dtype))


def _normalised(labels: Tensor) -> Tensor:
    return labels / labels.sum(1, keepdim=True)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"SAF({name}={value!r}): must be one of {', '.join(known)}")
