"""Multi-adversarial domain adaptation (Pei et al., AAAI 2018): a discriminator for each class."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

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

    Σ_k of DANN's loss on ŷ_k·B(φ), behind one reversal. The probabilities pass a gradient to C too, which the paper
    minimises over; in the authors' code that gradient is multiplied by zero.

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
        each_class = partial(ParallelLinear, net.classes)
        self.discriminators = discriminator(net.embedding_dim, knobs.width, knobs.dropout, each_class)

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return the sum of all discriminators' losses."""
        shares = batch.logits.softmax(1).T.unsqueeze(2)
        scores = self.discriminators(reverse(shares * batch.embedding, self.knobs.at(batch.progress)))
        return {"mada": len(shares) * domain_confusion(self, batch, scores.squeeze(2).T)}


class ParallelLinear(nn.Module):
    """Several linear layers side by side, in one batched product: from k×n×inputs to k×n×outputs.

    Each begins as torch's own do.

    >>> ParallelLinear(3, 5, 2)(torch.zeros(3, 7, 5)).shape
    torch.Size([3, 7, 2])
    """

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, 1, outputs).uniform_(-bound, bound))

    def forward(self, rows: Tensor) -> Tensor:
        """Put the rows of each layer through it."""
        return torch.baddbmm(self.bias, rows, self.weight)
