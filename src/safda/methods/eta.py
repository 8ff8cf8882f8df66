"""Where SAF's mixing weight η comes from: learned as in the paper (or as in the released code), Beta, or a constant.

Each is a module from (features, first, second) to one column: the weight of each pair's first sample. Pairs are row
numbers into the features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from safda.knobs import knob


@dataclass(frozen=True)
class EtaKnobs:
    """Where η comes from."""

    source: str = knob("learned", "learned (the paper), or its ablations", choices=("learned", "beta", "constant"))
    width: int = knob(384, "learned: output size of each SAF bottleneck S", low=1, high=65536)
    bottlenecks: int = knob(2, "learned: how many SAF bottlenecks", low=1, high=64)
    rectified: bool = knob(False, "learned: a ReLU before the sigmoid, so that η is in [0.5, 1) (released code)")
    ascend: bool = knob(False, "learned: η seeks the mix that teaches most (not in the paper)")
    beta: float = knob(0.2, "beta: η ~ Beta(beta, beta)", low=0.01, high=1e3)
    constant: float = knob(0.6, "constant: η", low=0.0, high=1.0)


def make_eta(feature_dim: int, knobs: EtaKnobs) -> nn.Module:
    """Make the source of η that knobs describe."""
    if knobs.source == "beta":
        return BetaEta(knobs.beta)
    if knobs.source == "constant":
        return ConstantEta(knobs.constant)
    return LearnedEta(feature_dim, knobs.width, knobs.bottlenecks, knobs.rectified, knobs.ascend)


class LearnedEta(nn.Module):
    """η = Sη(S₁(φ₁) + S₂(φ₂)): the paper's networks S and Sη.

    Args:
        feature_dim: size of a feature.
        width: output size of each bottleneck S.
        bottlenecks: how many there are: 2 in the paper. One is shared by both samples of a pair (so η does not depend
            on their order); with four, two read each sample. All outputs are added.
        rectified: a ReLU before the sigmoid, as in the released code: η in [0.5, 1).
        ascend: climb L_M instead of descending it: η seeks the mix that teaches most. Not in the paper, where the loss
            always falls by picking one of the pair (a pure label has less entropy), so η runs to 0 or 1.
    """

    def __init__(
        self,
        feature_dim: int,
        width: int = EtaKnobs.width,
        bottlenecks: int = EtaKnobs.bottlenecks,
        rectified: bool = EtaKnobs.rectified,
        ascend: bool = EtaKnobs.ascend,
    ) -> None:
        super().__init__()
        self.bottlenecks = nn.ModuleList(nn.Linear(feature_dim, width) for _ in range(bottlenecks))
        self.estimator = nn.Linear(width, 1)
        self.rectified, self.ascend = rectified, ascend

    def forward(self, features: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return η of each pair."""
        if self.ascend:  # turned here and once more below: M climbs, and F, behind it, descends as ever
            features = _Turn.apply(features)  # type: ignore[no-untyped-call]
        sides = (features[first], features[second])
        if len(self.bottlenecks) == 1:
            reads = [(self.bottlenecks[0], side) for side in sides]
        else:
            reads = [(bottleneck, sides[i % 2]) for i, bottleneck in enumerate(self.bottlenecks)]
        score: Tensor = self.estimator(sum(F.relu(bottleneck(side)) for bottleneck, side in reads))
        if self.ascend:
            score = _Turn.apply(score)  # type: ignore[no-untyped-call]
        return torch.sigmoid(F.relu(score) if self.rectified else score)


class BetaEta(nn.Module):
    """η ~ Beta(beta, beta), as in mixup."""

    def __init__(self, beta: float = EtaKnobs.beta) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, features: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Draw η of each pair."""
        return torch.distributions.Beta(self.beta, self.beta).sample((len(first), 1)).to(features)


class ConstantEta(nn.Module):
    """The same η for every pair."""

    def __init__(self, constant: float = EtaKnobs.constant) -> None:
        super().__init__()
        self.constant = constant

    def forward(self, features: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the constant for each pair."""
        return features.new_full((len(first), 1), self.constant)


class _Turn(torch.autograd.Function):
    """The identity forwards; backwards the sign turns, so that a descending optimizer climbs."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]
