"""Conditional domain-adversarial network (Long et al., NeurIPS 2018): the discriminator sees predictions too."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from safda.adversaries.base import Adversary, AdversaryOutput, JointBatch, Site, reverse
from safda.adversaries.dann import discriminator, domain_confusion


class CDAN(Adversary):
    """D reads the outer product of B's output and C's probabilities; with ``entropy``, sure samples count more.

    Args:
        site: sizes and makers.
        entropy: weigh samples by 1 + e^−H, normalised within each domain (CDAN+E).
        width: hidden size of the discriminator.
        dropout: its dropout.
        widest_product: an outer product of more entries than this is replaced by a random projection.
        projection: size of that projection.
    """

    def __init__(
        self,
        site: Site,
        *,
        entropy: bool = False,
        width: int = 1024,
        dropout: float = 0.5,
        widest_product: int = 4096,
        projection: int = 1024,
    ) -> None:
        super().__init__()
        self.entropy = entropy
        inputs = site.embedding_dim * site.classes
        self.projected = inputs > widest_product
        if self.projected:
            inputs = projection
            self.register_buffer("project_embedding", torch.randn(site.embedding_dim, projection))
            self.register_buffer("project_probability", torch.randn(site.classes, projection))
        self.discriminator = discriminator(inputs, width, dropout)

    def forward(self, batch: JointBatch, weight: float, progress: float) -> AdversaryOutput:
        """DANN's loss on the multilinear map; the probabilities pass no gradient."""
        probability = batch.logits.detach().softmax(1)
        joint = reverse(self._multilinear(batch.embedding, probability), weight)
        scores = self.discriminator(joint).squeeze(1)
        return domain_confusion(batch, scores, self._certainty(batch, probability) if self.entropy else None)

    def _multilinear(self, embedding: Tensor, probability: Tensor) -> Tensor:
        if not self.projected:
            return (probability.unsqueeze(2) * embedding.unsqueeze(1)).flatten(1)
        left: Tensor = embedding @ self.get_buffer("project_embedding")
        right: Tensor = probability @ self.get_buffer("project_probability")
        return left * right / math.sqrt(left.shape[1])

    @staticmethod
    def _certainty(batch: JointBatch, probability: Tensor) -> Tensor:
        entropy = torch.special.entr(probability).sum(1)
        return torch.cat([part / part.mean() for part in batch.split(1 + torch.exp(-entropy))])
