"""Maximum classifier discrepancy (Saito et al., CVPR 2018): where two classifiers disagree, features must move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase
from safda.nn.network import Encoded, Network

_A, _B, _C = "learn the source", "part", "meet"


@register("mcd")
class MCD(Method):
    """Three optimizer steps an iteration, for C and a second classifier C₂ of its shape.

    A: everything learns the source. B: both classifiers learn the source and part on the target, F and B fixed.
    C, several times: F and B bring them together on the target, both classifiers fixed. They answer together.

    Saito, Watanabe, Ushiku, Harada: Maximum classifier discrepancy for unsupervised domain adaptation. CVPR 2018. The
    authors' classifiers for pictures hold the bottleneck too; here B belongs to the features, with F. SAF meets it in
    step A, with C.
    """

    paper = "Saito et al., CVPR 2018"
    cost = 7.6
    passes = 6

    @dataclass(frozen=True)
    class Knobs:
        """Maximum classifier discrepancy."""

        weight: float = knob(
            1.0,
            "weight of the discrepancy, a mean over samples and classes",
            low=0.0,
            high=1e4,
            search=(0.3, 30, "log"),
        )
        repeats: int = knob(4, "how often step C is made", low=1, high=100)

    knobs: Knobs

    def build(self, net: Network) -> None:
        """Make C₂."""
        self.second = net.new_classifier()

    def phases(self, progress: float) -> Sequence[Phase]:
        """Steps A, B and C."""
        classifiers, features = ("classifier.", f"methods.{self.name}."), ("backbone.", "bottleneck.")
        return (
            Phase(_A),
            Phase(_B, trains=classifiers, supervised=False),
            Phase(_C, trains=features, times=self.knobs.repeats, supervised=False),
        )

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return the step's losses; C's own cross-entropy is there already where everything learns the source."""
        source, target = batch.split(self.second(batch.embedding))
        second = {"mcd_second": F.cross_entropy(source, batch.labels)}
        if phase.name == _A:
            return second
        discrepancy = self.knobs.weight * (batch.target.logits.softmax(1) - target.softmax(1)).abs().mean()
        if phase.name == _C:
            batch.log(self, discrepancy=discrepancy)
            return {"mcd_meet": discrepancy}
        return {**second, "mcd_first": F.cross_entropy(batch.source.logits, batch.labels), "mcd_part": -discrepancy}

    def predict(self, net: Network, encoded: Encoded) -> Tensor:
        """Return the sum of both classifiers' logits."""
        logits: Tensor = self.second(encoded.embedding)
        return encoded.logits + logits
