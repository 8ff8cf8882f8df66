"""Domain-adversarial network (Ganin & Lempitsky, ICML 2015): a discriminator that tells the domains apart."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from safda.adversaries.base import Adversary, AdversaryOutput, JointBatch, Site, reverse


class DANN(Adversary):
    """D reads B's output and says which domain it is from; F and B work against it.

    Args:
        site: sizes and makers.
        width: hidden size of the discriminator.
        dropout: its dropout.
    """

    def __init__(self, site: Site, *, width: int = 1024, dropout: float = 0.5) -> None:
        super().__init__()
        self.discriminator = discriminator(site.embedding_dim, width, dropout)

    def forward(self, batch: JointBatch, weight: float, progress: float) -> AdversaryOutput:
        """Binary cross-entropy of source against target, behind one reversal."""
        scores = self.discriminator(reverse(batch.embedding, weight)).squeeze(1)
        return domain_confusion(batch, scores)


def discriminator(inputs: int, width: int, dropout: float) -> nn.Sequential:
    """Two hidden layers and one score: positive says source."""
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, 1),
    )


def domain_confusion(batch: JointBatch, scores: Tensor, weights: Tensor | None = None) -> AdversaryOutput:
    """A discriminator's loss and health: both domains count alike, whatever their sizes.

    Args:
        batch: the step's tensors.
        scores: one per row; positive says source.
        weights: one per row, of mean one within each domain.
    """
    source, target = batch.split(scores)
    losses = torch.cat([F.softplus(-source), F.softplus(target)])  # −log σ(s) and −log(1 − σ(s))
    if weights is not None:
        losses = losses * weights
    loss_source, loss_target = batch.split(losses)
    with torch.no_grad():
        accuracy = ((source > 0).float().mean() + (target < 0).float().mean()) / 2
    return AdversaryOutput({"adversary": (loss_source.mean() + loss_target.mean()) / 2}, {"domain_accuracy": accuracy})
