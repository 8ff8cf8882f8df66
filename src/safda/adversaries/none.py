"""No alignment at all: source-only training."""

from __future__ import annotations

from safda.adversaries.base import Adversary, AdversaryOutput, JointBatch, Site


class NoAdversary(Adversary):
    """Adds no loss: the classifier learns from the source alone."""

    def __init__(self, site: Site) -> None:
        super().__init__()

    def forward(self, batch: JointBatch, weight: float, progress: float) -> AdversaryOutput:
        """Give no losses."""
        return AdversaryOutput({})
