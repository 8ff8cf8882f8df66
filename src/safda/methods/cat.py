"""Cluster alignment with a teacher (Deng et al., ICCV 2019): classes are clusters, and meet across domains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from safda.data import Domain
from safda.data.loader import ProgressCallback
from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase
from safda.methods.kernels import squared_distances
from safda.nn.network import Network


@register("cat")
class CAT(Method):
    """Rides on another method, or stands alone: samples of a class attract each other, others repel up to a margin.

    With d the mean squared difference of two logits' entries, each domain's loss is the mean over pairs of d where the
    classes are the same and max(0, m − d) where they are not; a third loss is the mean of d between the two domains'
    centres of a class, over classes that both batches hold. The source's classes are its labels, the target's what the
    teacher says: the average of C's predictions of a sample over the passes, Z ← α·Z + (1 − α)·p (temporal ensembling).

    Deng, Luo, Zhu: Cluster alignment with a teacher for unsupervised domain adaptation. ICCV 2019. The authors' code,
    for digits, has for a teacher a second pass of the same network, and m = 30 on SVHN → MNIST; its features are the
    logits, as here. Its weight is zero for an eighth of the run, and then w·e^(−10·(1 − u)), u rising from 0 to 1 in
    another quarter. SAF meets it in F's features and C, beside whatever it rides on.
    """

    paper = "Deng et al., ICCV 2019"
    cost = 1.1
    rides = True

    @dataclass(frozen=True)
    class Knobs:
        """Cluster alignment with a teacher."""

        weight: float = knob(1.0, "final weight of all three losses", low=0.0, high=100.0, search=(0.01, 1.0, "log"))
        margin: float = knob(30.0, "m, beyond which other classes need not be", low=0.0, high=1e6)
        average: float = knob(0.6, "α, the past's part in what the teacher says", low=0.0, high=0.999)
        start: float = knob(0.125, "share of T after which it begins", low=0.0, high=1.0)
        rise: float = knob(0.25, "share of T in which it comes to its final weight", low=0.001, high=1.0)

        def at(self, progress: float) -> float:
            """Return the weight at progress t/T."""
            if progress < self.start:
                return 0.0
            return self.weight * math.exp(-10 * (1 - min(1.0, (progress - self.start) / self.rise)))

    knobs: Knobs

    def setup(self, net: Network, source: Domain, target: Domain, progress: ProgressCallback | None = None) -> None:
        """Make room for the teacher's word on every target sample."""
        self._said = torch.zeros(len(target), net.classes)

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return the weighted sum of the three."""
        rows, logits = batch.target.rows, batch.target.logits
        self._said = self._said.to(logits.device)
        said = torch.lerp(logits.detach().softmax(1).to(self._said), self._said[rows], self.knobs.average)
        batch.keep(self, rows=rows, said=said)
        classes = (batch.labels, said.argmax(1))
        within = [
            clustering(side, own, self.knobs.margin)
            for side, own in zip(batch.split(batch.logits), classes, strict=True)
        ]
        between = meeting(batch.split(batch.logits), classes)
        return {"cat": self.knobs.at(batch.progress) * (within[0] + within[1] + between)}

    def observe(self, seen: Mapping[str, Tensor]) -> None:
        """Remember what the teacher says."""
        if seen:
            self._said[seen["rows"]] = seen["said"]

    def training_state(self) -> dict[str, Tensor]:
        """What the teacher says of every target sample."""
        return {"said": self._said}

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        self._said = state["said"]


def clustering(rows: Tensor, classes: Tensor, margin: float) -> Tensor:
    """Return the mean over all pairs: near where the classes are the same, at least the margin apart where not."""
    distance = squared_distances(rows) / rows.shape[1]
    same = classes.unsqueeze(0) == classes.unsqueeze(1)
    return torch.where(same, distance, F.relu(margin - distance)).mean()


def meeting(sides: tuple[Tensor, Tensor], classes: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean distance of both domains' centres of a class, over classes that both have."""
    members = [F.one_hot(own, side.shape[1]).to(side) for side, own in zip(sides, classes, strict=True)]
    source, target = ((m.T @ side) / m.sum(0).clamp_min(1).unsqueeze(1) for m, side in zip(members, sides, strict=True))
    shared = (members[0].sum(0) * members[1].sum(0) > 0).to(source)
    return ((source - target).square().mean(1) * shared).sum() / shared.sum().clamp_min(1)
