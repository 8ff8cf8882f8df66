"""Adversarial discriminative domain adaptation (Tzeng et al., CVPR 2017): the target gets an encoder of its own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from safda.data import Domain
from safda.data.loader import ProgressCallback, evaluation_batches
from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase
from safda.methods.dann import discriminator, domain_confusion
from safda.nn.heads import moments
from safda.nn.network import Network

_LEARN, _TELL, _FOOL = "learn the source", "tell apart", "fool"


@register("adda")
class ADDA(Method):
    """Two stages. First F, B and C learn the source; then F and B stay as they are for the source, and so does C.

    The network's own F and B go on as the target's encoder, from the same weights. Two optimizer steps an iteration:
    D learns to tell the source's embedding from the target's, then the target's encoder to be taken for the source,
    −log D(t), with inverted labels and no reversal. C answers for the target with its encoder. On arrays, or with a
    frozen backbone, the encoder is B. The source's encoder is a copy that stands still, and batch norm in its B has the
    statistics of the whole source at the time of the parting; only dropout falls on both domains alike.

    Tzeng, Hoffman, Saenko, Darrell: Adversarial discriminative domain adaptation. CVPR 2017. The authors train each
    stage for as many steps, the second at a fifth of the learning rate, with Adam; here the learning rate is the
    recipe's, and what reaches the encoder is weighed by a fifth. Where ``network.norm`` is ``"joint"``, the source's
    rows have a part in the statistics by which the target's are normalised. SAF does not go with it.
    """

    paper = "Tzeng et al., CVPR 2017"
    cost = 1.7
    passes = 2
    excludes: ClassVar[Mapping[str, str]] = {
        "saf": "SAF trains C on the target's features, and ADDA lets C stand still by then"
    }

    @dataclass(frozen=True)
    class Knobs:
        """Adversarial discriminative domain adaptation."""

        pretraining: float = knob(0.5, "share of the steps that learn the source", low=0.01, high=0.99)
        weight: float = knob(
            0.2,
            "weight of what reaches the target's encoder; for SGD: AdamW's steps are as long at any but 0",
            low=0.0,
            high=100.0,
            search=(0.02, 2.0, "log"),
        )
        width: int = knob(500, "hidden size of the discriminator", low=1, high=65536)

    knobs: Knobs

    def build(self, net: Network) -> None:
        """Make D, and room for the source's encoder."""
        self.discriminator = discriminator(net.embedding_dim, self.knobs.width, dropout=0.0)
        self.source_backbone: nn.Module = copy.deepcopy(net.backbone).requires_grad_(False)
        self.source_bottleneck = copy.deepcopy(net.bottleneck).requires_grad_(False)
        self._parted = False

    def setup(self, net: Network, source: Domain, target: Domain, progress: ProgressCallback | None = None) -> None:
        """Remember where the source's statistics are to come from."""
        self._copy: Callable[[], None] = lambda: self._copy_encoder(net, source)  # net holds this: not as an attribute

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of a copy what holds the network and the source: it is for the training in this process alone."""
        return {name: value for name, value in vars(self).items() if name != "_copy"}

    def refresh_every(self, steps: int, steps_per_epoch: float) -> int:
        """Part when the source has been learnt."""
        return math.ceil(self.knobs.pretraining * steps)

    def refresh(self) -> None:
        """Part, once."""
        if not self._parted:
            self._copy()
            self._parted = True

    @torch.no_grad()
    def _copy_encoder(self, net: Network, source: Domain) -> None:
        self.source_backbone.load_state_dict(net.backbone.state_dict())
        self.source_bottleneck.load_state_dict(net.bottleneck.state_dict())
        training, device = net.training, next(net.parameters()).device
        net.eval()
        projected = (net.project(inputs.to(device))[1].cpu() for inputs in evaluation_batches(source))
        self.source_bottleneck.set_statistics(*moments(projected))
        net.train(training)

    def phases(self, progress: float) -> Sequence[Phase]:
        """One step in the first stage, two in the second."""
        if not self._parted:
            return (Phase(_LEARN),)
        return (
            Phase(_TELL, trains=(f"methods.{self.name}.discriminator.",), supervised=False),
            Phase(_FOOL, trains=("backbone.", "bottleneck."), supervised=False),
        )

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return the loss of D, or of the target's encoder."""
        if phase.name == _LEARN:
            return {}
        if phase.name == _FOOL:
            scores = self.discriminator(batch.target.embedding).squeeze(1)
            return {"adda_fool": self.knobs.weight * F.softplus(-scores).mean()}
        both = torch.cat([self._source_embedding(batch), batch.target.embedding.detach()])
        return {"adda": domain_confusion(self, batch, self.discriminator(both).squeeze(1))}

    @torch.no_grad()
    def _source_embedding(self, batch: Batch) -> Tensor:
        for part in (self.source_backbone, self.source_bottleneck):
            part.eval()
        self.source_bottleneck.dropout.train()  # or D would know the target by its zeros
        embedding: Tensor = self.source_bottleneck(batch.net.centring(self.source_backbone(batch.source.inputs)))
        return embedding

    def training_state(self) -> dict[str, Tensor]:
        """Which stage it is."""
        return {"parted": torch.tensor(self._parted)}

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on in that stage."""
        self._parted = bool(state["parted"])
