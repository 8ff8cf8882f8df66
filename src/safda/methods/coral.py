"""Deep CORAL (Sun & Saenko, 2016): the covariances of both domains' logits become alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase, precisely


@register("coral")
class CORAL(Method):
    """‖Cov(source) − Cov(target)‖²/(4·K²) of C's logits, as its authors have it; both domains get its gradient.

    Sun, Saenko: Deep CORAL: correlation alignment for deep domain adaptation. ECCV workshops, 2016. The authors chose
    the weight task by task, 0.8 on amazon → webcam and 0.0001 on dslr → webcam; the default is the first.
    """

    paper = "Sun & Saenko, ECCV workshops 2016"
    cost = 1.0

    @dataclass(frozen=True)
    class Knobs:
        """Deep CORAL."""

        weight: float = knob(0.8, "weight of the distance", low=0.0, high=1e4, search=(1e-3, 10.0, "log"))

    knobs: Knobs

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return the weighted distance."""
        source, target = (_covariance(side.logits) for side in (batch.source, batch.target))
        return {"coral": self.knobs.weight * (source - target).square().mean() / 4}


@precisely
def _covariance(rows: Tensor) -> Tensor:
    """Of a single row it is zero."""
    return torch.cov(rows.T, correction=min(1, len(rows) - 1))
