"""Conditional domain-adversarial network (Long et al., NeurIPS 2018): the discriminator sees predictions too."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase, reverse
from safda.methods.dann import DANN, discriminator, domain_confusion
from safda.nn.network import Network


@register("cdan")
class CDAN(Method):
    """D reads the outer product of B's output and C's probabilities; with ``entropy``, sure samples count more.

    Long, Cao, Wang, Jordan: Conditional adversarial domain adaptation. NeurIPS 2018.
    """

    paper = "Long et al., NeurIPS 2018"
    cost = 2.1

    @dataclass(frozen=True)
    class Knobs(DANN.Knobs):
        """Conditional domain-adversarial network."""

        entropy: bool = knob(False, "weigh samples by 1 + e^−H, normalised within each domain")
        widest_product: int = knob(4096, "project outer products wider than this", low=1, high=10**9)
        projection: int = knob(1024, "size of the random projection", low=1, high=65536)

    knobs: Knobs

    def build(self, net: Network) -> None:
        """Make D, and the random projection of a product that is too wide."""
        inputs, knobs = net.embedding_dim * net.classes, self.knobs
        self.projected = inputs > knobs.widest_product
        if self.projected:
            inputs = knobs.projection
            self.register_buffer("project_embedding", torch.randn(net.embedding_dim, inputs))
            self.register_buffer("project_probability", torch.randn(net.classes, inputs))
        self.discriminator = discriminator(inputs, knobs.width, knobs.dropout)

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """DANN's loss on the multilinear map; the probabilities pass no gradient."""
        probability = batch.logits.detach().softmax(1)
        joint = reverse(self._multilinear(batch.embedding, probability), self.knobs.at(batch.progress))
        scores = self.discriminator(joint).squeeze(1)
        weights = _certainty(batch, probability) if self.knobs.entropy else None
        return {self.name: domain_confusion(self, batch, scores, weights)}

    def _multilinear(self, embedding: Tensor, probability: Tensor) -> Tensor:
        if not self.projected:
            return (probability.unsqueeze(2) * embedding.unsqueeze(1)).flatten(1)
        left: Tensor = embedding @ self.get_buffer("project_embedding")
        right: Tensor = probability @ self.get_buffer("project_probability")
        return left * right / math.sqrt(left.shape[1])


@register("cdan+e")
class CDANE(CDAN):
    """CDAN with entropy weights."""

    cost = 2.1

    @dataclass(frozen=True)
    class Knobs(CDAN.Knobs):
        """CDAN with entropy weights."""

        entropy: bool = knob(True, "weigh samples by 1 + e^−H, normalised within each domain")


def certainty(probability: Tensor) -> Tensor:
    """Return the weight 1 + e^−H of each row's prediction, divided by their mean: sure samples count more."""
    weights = 1 + torch.exp(-torch.special.entr(probability).sum(1))
    return weights / weights.mean()


def _certainty(batch: Batch, probability: Tensor) -> Tensor:
    return torch.cat([certainty(part) for part in batch.split(probability)])
