"""Domain-adversarial network (Ganin & Lempitsky, ICML 2015): a discriminator that tells the domains apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase, RampedWeight, reverse
from safda.nn.heads import Dropout
from safda.nn.network import Network


@register("dann")
class DANN(Method):
    """D reads B's output and says which domain it is from; F and B work against it.

    Ganin, Lempitsky: Unsupervised domain adaptation by backpropagation. ICML 2015.
    """

    paper = "Ganin & Lempitsky, ICML 2015"
    cost = 1.8

    @dataclass(frozen=True)
    class Knobs(RampedWeight):
        """Domain-adversarial network."""

        weight: float = knob(
            1.0, "final weight λ_D of what reaches F and B", low=0.0, high=100.0, search=(0.1, 2.0, "log")
        )
        width: int = knob(1024, "hidden size of the discriminator", low=1, high=65536)
        dropout: float = knob(0.5, "dropout in the discriminator", low=0.0, high=0.99)

    knobs: Knobs

    def build(self, net: Network) -> None:
        """Make D."""
        self.discriminator = discriminator(net.embedding_dim, self.knobs.width, self.knobs.dropout)

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Binary cross-entropy of source against target, behind one reversal."""
        scores = self.discriminator(reverse(batch.embedding, self.knobs.at(batch.progress))).squeeze(1)
        return {self.name: domain_confusion(self, batch, scores)}


def discriminator(
    inputs: int, width: int, dropout: float, linear: Callable[[int, int], nn.Module] = nn.Linear
) -> nn.Sequential:
    """Two hidden layers and one score: positive says source.

    Args:
        inputs: size of what it reads.
        width: size of its hidden layers.
        dropout: share of entries that are dropped.
        linear: makes a layer of so many inputs and outputs.
    """
    return nn.Sequential(
        linear(inputs, width),
        nn.ReLU(),
        Dropout(dropout),
        linear(width, width),
        nn.ReLU(),
        Dropout(dropout),
        linear(width, 1),
    )


def domain_confusion(method: Method, batch: Batch, scores: Tensor, weights: Tensor | None = None) -> Tensor:
    """A discriminator's loss, its accuracy logged: both domains count alike, whatever their sizes.

    Args:
        method: whose discriminator it is.
        batch: the step's tensors.
        scores: one per row, or several; positive says source.
        weights: one per row, of mean one within each domain.
    """
    source, target = batch.split(scores)
    losses = torch.cat([F.softplus(-source), F.softplus(target)])  # −log σ(s) and −log(1 − σ(s))
    if weights is not None:
        losses = losses * weights
    loss_source, loss_target = batch.split(losses)
    with torch.no_grad():
        batch.log(method, domain_accuracy=((source > 0).float().mean() + (target < 0).float().mean()) / 2)
    return (loss_source.mean() + loss_target.mean()) / 2
