"""Batch spectral penalization (Chen et al., ICML 2019): no direction of the embedding may outgrow the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase


@register("bsp")
class BSP(Method):
    """The k largest singular values of each domain's batch of embeddings, squared, on top of another method.

    Chen, Wang, Long, Wang: Transferability vs. discriminability: batch spectral penalization for adversarial domain
    adaptation. ICML 2019. Squared singular values grow with the batch; here they are divided by its size, so the
    authors' weight of 0.0001 with 36 samples is 0.0036.
    """

    paper = "Chen et al., ICML 2019"
    cost = 1.1
    rides = True

    @dataclass(frozen=True)
    class Knobs:
        """Batch spectral penalization."""

        weight: float = knob(0.0036, "weight of the penalty", low=0.0, high=100.0, search=(1e-4, 0.1, "log"))
        k: int = knob(1, "how many singular values of each domain", low=1, high=65536)

    knobs: Knobs

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return the weighted penalty."""
        penalties = [
            torch.linalg.svdvals(side.embedding.float())[: self.knobs.k].square().sum() / len(side.embedding)
            for side in (batch.source, batch.target)
        ]
        return {"bsp": self.knobs.weight * torch.stack(penalties).sum()}
