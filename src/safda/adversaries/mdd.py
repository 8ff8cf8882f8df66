"""Margin disparity discrepancy (Zhang et al., ICML 2019): a second classifier that seeks to disagree."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from safda.adversaries.base import Adversary, AdversaryOutput, JointBatch, Site, reverse


class MDD(Adversary):
    """D is a twin of C. It agrees with C on the source, disagrees on the target, and F and B work against it.

    Args:
        site: sizes and makers.
        margin: γ = e^ϱ, the weight of the source term.
    """

    def __init__(self, site: Site, *, margin: float = 4.0) -> None:
        super().__init__()
        self.margin = margin
        self.twin = site.make_classifier()

    def forward(self, batch: JointBatch, weight: float, progress: float) -> AdversaryOutput:
        """L_D with its sign mended: γ·CE(D(s), Ĉ(s)) − log(1 − σ_Ĉ(t)(D(t))), behind one reversal."""
        pseudo_source, pseudo_target = batch.split(batch.logits.argmax(1))  # hard, so C gets no gradient
        source, target = batch.split(self.twin(reverse(batch.embedding, weight)))
        loss = self.margin * F.cross_entropy(source, pseudo_source) - log_one_minus(target, pseudo_target).mean()
        with torch.no_grad():
            health = {
                "agrees_on_source": (source.argmax(1) == pseudo_source).float().mean(),
                "agrees_on_target": (target.argmax(1) == pseudo_target).float().mean(),
            }
        return AdversaryOutput({"adversary": loss}, health)


def log_one_minus(logits: Tensor, labels: Tensor) -> Tensor:
    """log(1 − σ_y(z)), exactly: logsumexp over j≠y of z_j minus logsumexp over all j.

    No epsilon, and finite where 1 − σ_y rounds to zero. In float32 or better, also under mixed precision.

    >>> log_one_minus(torch.tensor([[1e4, 0.0, 0.0]]), torch.tensor([0])).item()
    -9999.306640625
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    others = logits.scatter(1, labels.unsqueeze(1), float("-inf"))
    return others.logsumexp(1) - logits.logsumexp(1)
