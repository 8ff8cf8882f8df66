"""Generate to adapt (Sankaranarayanan et al., CVPR 2018): from an embedding, a picture of the source can be drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from safda.errors import SafdaError
from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase, standing_still
from safda.nn.network import Network


@register("gta")
class GTA(Method):
    """G draws a source-like picture from an embedding, its class and noise; D tells drawn from real, and the class.

    A target sample has a class of its own, the K+1st. D learns: source pictures are real and of class y, drawn ones are
    not real. G learns that those drawn from the source be taken for real and of class y. F and B learn, beside C's
    cross-entropy, that D finds the class in what is drawn from the source, and takes for real what is drawn from the
    target: −log D(G(t)), so the target's embeddings must hold what a source picture is drawn of.

    Sankaranarayanan, Balaji, Castillo, Chellappa: Generate to adapt: aligning domains using generative adversarial
    networks. CVPR 2018. The authors update D, G, C and F one after the other, each with Adam of its own; here it is one
    step of one optimizer, in which each learns from its own losses and stands still in the others'. Pictures must be
    square, of 8 to 64 pixels a side and a power of two, and looked at by a backbone that learns. SAF meets it in F's
    features and C.
    """

    paper = "Sankaranarayanan et al., CVPR 2018"
    cost = 29.0
    pictures_only = True

    @dataclass(frozen=True)
    class Knobs:
        """Generate to adapt."""

        weight: float = knob(0.1, "weight of what D teaches F and B", low=0.0, high=100.0, search=(0.01, 1.0, "log"))
        target: float = knob(0.3, "the target's part in that", low=0.0, high=100.0, search=(0.03, 3.0, "log"))
        noise: int = knob(512, "size of the generator's noise", low=1, high=65536)
        width: int = knob(64, "channels of the first layer of D and of the last of G", low=1, high=4096)

    knobs: Knobs

    def build(self, net: Network) -> None:
        """Make G and D, for the size of the pictures."""
        channels, height, width = net.input_shape
        doublings = round(math.log2(width))
        if height != width or 2**doublings != width or not 8 <= width <= 64:
            raise SafdaError(
                f"gta draws square pictures of 8, 16, 32 or 64 pixels a side, not {height}×{width}; "
                "set network.image_size, or take another method"
            )
        self._classes = net.classes
        self.generator = generator(
            net.embedding_dim + net.classes + 1 + self.knobs.noise, self.knobs.width, channels, doublings
        )
        self.discriminator = discriminator(channels, self.knobs.width, net.classes + 1)

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return the losses of D, of G, and of F and B."""
        codes = batch.split(self._codes(batch))
        embeddings = batch.split(batch.embedding)
        drawn = [_drawn(self.generator, code, each.detach()) for code, each in zip(codes, embeddings, strict=True)]
        judge, draw = standing_still(self.discriminator), standing_still(self.generator)
        score, classes = _parted(judge(drawn[0]))
        _, found = _parted(judge(_drawn(draw, codes[0], embeddings[0])))
        taken, _ = _parted(judge(_drawn(draw, codes[1], embeddings[1])))
        adapt = F.cross_entropy(found, batch.labels) + self.knobs.target * F.softplus(-taken).mean()
        batch.log(self, taken_for_real=torch.sigmoid(taken).mean())
        return {
            "gta_tell": self._tell(batch, [each.detach() for each in drawn]),
            "gta_draw": F.softplus(-score).mean() + F.cross_entropy(classes, batch.labels),
            "gta": self.knobs.weight * adapt,
        }

    def _tell(self, batch: Batch, drawn: Sequence[Tensor]) -> Tensor:
        real = _in_range(batch.source.inputs).to(batch.embedding)
        score, classes = _parted(self.discriminator(real))
        loss = F.softplus(-score).mean() + F.cross_entropy(classes, batch.labels)
        for pictures in drawn:
            loss = loss + F.softplus(_parted(self.discriminator(pictures))[0]).mean()
        return loss

    def _codes(self, batch: Batch) -> Tensor:
        """Return what G gets beside an embedding: noise, and the class, the target's being one of its own."""
        like = batch.embedding
        targets = batch.labels.new_full((len(batch.target.rows),), self._classes)
        classes = F.one_hot(torch.cat([batch.labels, targets]), self._classes + 1)
        noise = torch.randn(len(like), self.knobs.noise, device=like.device, dtype=like.dtype)
        return torch.cat([noise, classes.to(like)], 1)


def generator(inputs: int, width: int, channels: int, doublings: int) -> nn.Sequential:
    """From n×inputs×1×1 to pictures of 2^doublings pixels a side, in [−1, 1]."""
    sizes = [width * 2**k for k in reversed(range(doublings - 1))]
    layers: list[nn.Module] = [nn.ConvTranspose2d(inputs, sizes[0], 2, bias=False)]
    for before, after in zip(sizes, [*sizes[1:], channels], strict=True):
        layers += [nn.BatchNorm2d(before), nn.ReLU(), nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False)]
    return nn.Sequential(*layers, nn.Tanh())


def discriminator(channels: int, width: int, outputs: int) -> nn.Sequential:
    """From pictures to outputs: a score, positive for real, and the classes' logits."""
    sizes = [channels, width, 2 * width, 4 * width, 2 * width]
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.LeakyReLU(0.2), nn.MaxPool2d(2)]
    layers[-1] = nn.AdaptiveMaxPool2d(1)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(sizes[-1], outputs))


def _drawn(draw: Callable[[Tensor], Tensor], code: Tensor, embedding: Tensor) -> Tensor:
    return draw(torch.cat([code, embedding], 1)[..., None, None])


def _parted(outputs: Tensor) -> tuple[Tensor, Tensor]:
    return outputs[:, 0], outputs[:, 1:]


def _in_range(pictures: Tensor) -> Tensor:
    """Pictures of 8 bits, or from 0 to 1, in [−1, 1] as G draws them."""
    return pictures / 127.5 - 1 if pictures.dtype == torch.uint8 else 2 * pictures - 1
