"""Margin disparity discrepancy (Zhang et al., ICML 2019): a second classifier that seeks to disagree."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase, RampedWeight, reverse
from safda.nn.network import Network


@register("mdd")
class MDD(Method):
    """D is a twin of C. It agrees with C on the source, disagrees on the target, and F and B work against it.

    Zhang, Liu, Long, Jordan: Bridging theory and algorithm for domain adaptation. ICML 2019.
    """

    paper = "Zhang et al., ICML 2019"
    cost = 1.4

    @dataclass(frozen=True)
    class Knobs(RampedWeight):
        """Margin disparity discrepancy."""

        margin: float = knob(4.0, "γ, the weight of D's source term", low=0.0, high=100.0, search=(1.0, 8.0, "log"))

    knobs: Knobs

    def build(self, net: Network) -> None:
        """Make D, in C's shape."""
        self.twin = net.new_classifier()

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """L_D with its sign mended: γ·CE(D(s), Ĉ(s)) − log(1 − σ_Ĉ(t)(D(t))), behind one reversal."""
        pseudo_source, pseudo_target = batch.split(batch.logits.argmax(1))  # hard, so C gets no gradient
        source, target = batch.split(self.twin_logits(batch))
        loss = self.knobs.margin * F.cross_entropy(source, pseudo_source) - log_one_minus(target, pseudo_target).mean()
        with torch.no_grad():
            batch.log(
                self,
                agrees_on_source=(source.argmax(1) == pseudo_source).float().mean(),
                agrees_on_target=(target.argmax(1) == pseudo_target).float().mean(),
            )
        return {self.name: loss}

    def twin_logits(self, batch: Batch) -> Tensor:
        """D's logits of all rows, behind the reversal."""
        logits: Tensor = self.twin(reverse(batch.embedding, self.knobs.at(batch.progress)))
        return logits


def log_one_minus(logits: Tensor, labels: Tensor) -> Tensor:
    """log(1 − σ_y(z)), exactly: logsumexp over j≠y of z_j minus logsumexp over all j.

    No epsilon, and finite where 1 − σ_y rounds to zero. In float32 or better, also under mixed precision.

    >>> log_one_minus(torch.tensor([[1e4, 0.0, 0.0]]), torch.tensor([0])).item()
    -9999.306640625
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    others = logits.scatter(1, labels.unsqueeze(1), float("-inf"))
    return others.logsumexp(1) - logits.logsumexp(1)
