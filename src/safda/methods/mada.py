"""Multi-adversarial domain adaptation (Pei et al., AAAI 2018): a discriminator for each class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase, reverse
from safda.methods.dann import DANN, discriminator, domain_confusion
from safda.nn.network import Network


@register("mada")
class MADA(Method):
    """D_k reads B's output times the probability that C gives to class k; F and B work against all K of them.

    Σ_k of DANN's loss on ŷ_k·B(φ), behind one reversal. As in the authors' code, the probabilities pass a gradient to
    C too.

    Pei, Cao, Long, Wang: Multi-adversarial domain adaptation. AAAI 2018. The authors weigh every discriminator's loss
    by 0.3, for D as for F; here D learns at full weight and 0.3 is what reaches F, B and C. K discriminators of two
    hidden layers are large: at 31 classes 65 million weights, in place of DANN's 2 million. SAF meets it in F's
    features and C.
    """

    paper = "Pei et al., AAAI 2018"
    cost = 27.0

    @dataclass(frozen=True)
    class Knobs(DANN.Knobs):
        """Multi-adversarial domain adaptation."""

        weight: float = knob(
            0.3, "final weight λ_D of what reaches F, B and C", low=0.0, high=100.0, search=(0.03, 2.0, "log")
        )

    knobs: Knobs

    def build(self, net: Network) -> None:
        """Make D_1 to D_K."""
        knobs = self.knobs
        self.discriminators = nn.ModuleList(
            discriminator(net.embedding_dim, knobs.width, knobs.dropout) for _ in range(net.classes)
        )

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return the sum of all discriminators' losses."""
        weight = self.knobs.at(batch.progress)
        shares = batch.logits.softmax(1).unsqueeze(2).unbind(1)
        scores = [d(reverse(p * batch.embedding, weight)) for d, p in zip(self.discriminators, shares, strict=True)]
        return {"mada": len(scores) * domain_confusion(self, batch, torch.cat(scores, 1))}
