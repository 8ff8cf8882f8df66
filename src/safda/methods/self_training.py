"""Self-training (Lee, 2013): the target's predictions learn from their own argmax. The released code adds it to SAF."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase
from safda.schedules import ramp


@register("self_training")
class SelfTraining(Method):
    """Cross-entropy of each target prediction with its own argmax; its weight is weight + rise · tanh(t/T).

    Lee: Pseudo-label: the simple and efficient semi-supervised learning method for deep neural networks. ICML workshop
    on challenges in representation learning, 2013.
    """

    paper = "Lee, ICML workshop 2013"
    cost = 1.0
    rides = True

    @dataclass(frozen=True)
    class Knobs:
        """Self-training."""

        weight: float = knob(0.1, "initial weight of the loss", low=0.0, high=100.0)
        rise: float = knob(0.4, "what its weight gains: rise · tanh(t/T)", low=0.0, high=100.0)

    knobs: Knobs

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return the weighted cross-entropy."""
        weight = self.knobs.weight + ramp(batch.progress, self.knobs.rise, 1.0)
        logits = batch.target.logits
        return {"self_training": weight * F.cross_entropy(logits, logits.argmax(1))}
