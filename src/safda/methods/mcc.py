"""Minimum class confusion (Jin et al., ECCV 2020): the target's predictions must not waver between two classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase
from safda.methods.cdan import certainty


@register("mcc")
class MCC(Method):
    """1 − (1/K)·Σ_j C̃_jj, where C = Pᵀ·diag(w)·P of the target's batch and C̃ has rows that add up to one.

    P are C's probabilities at a temperature, and w weighs sure samples more (1 + e^−H, of mean one, without gradient).
    It is no distance of domains: the source takes no part.

    Jin, Wang, Long, Wang: Minimum class confusion for versatile domain adaptation. ECCV 2020. The authors' code
    normalises columns where the paper has rows; C is symmetric, so the loss is the same. SAF meets it in F's features
    and C, beside it.
    """

    paper = "Jin et al., ECCV 2020"
    cost = 1.0

    @dataclass(frozen=True)
    class Knobs:
        """Minimum class confusion."""

        weight: float = knob(1.0, "weight of the confusion", low=0.0, high=1e4, search=(0.1, 10.0, "log"))
        temperature: float = knob(2.5, "divides the logits", low=0.01, high=100.0, search=(1.0, 5.0, "linear"))

    knobs: Knobs

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return the weighted confusion."""
        probability = (batch.target.logits / self.knobs.temperature).softmax(1)
        weighted = probability * certainty(probability.detach()).unsqueeze(1)
        confusion = probability.T @ weighted
        share = confusion.diagonal() / confusion.sum(1).clamp_min(torch.finfo(confusion.dtype).tiny)
        return {"mcc": self.knobs.weight * (1 - share.mean())}
