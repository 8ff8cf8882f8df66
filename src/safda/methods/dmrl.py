"""Dual mixup regularized learning (Wu et al., ECCV 2020): DANN, and mixes within each domain and between them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Phase, reverse
from safda.methods.dann import DANN
from safda.methods.mixup import draw_beta, mates_within, mixed


@register("dmrl")
class DMRL(DANN):
    """DANN, and two regularisers by mixes x̃ = w·x + (1 − w)·x′ of inputs, w ~ Beta(0.2, 0.2).

    Category mixup, within each domain: of the source, cross-entropy with both labels, weighed by w and 1 − w; of the
    target, the mean of |softmax(C(x̃)) − softmax(w·C(x) + (1 − w)·C(x′))|. Domain mixup, between the domains: D is to
    find w in a mix of a source and a target sample, behind DANN's reversal.

    Wu, Inkpen, El-Roby: Dual mixup regularized learning for adversarial domain adaptation. ECCV 2020. The authors'
    released code lets D tell mixes of the source from mixes of the target, in place of mixes between the domains, and
    starts DANN's own loss an epoch late; all their weights are 1. It draws one w for a batch, here each sample has its
    own: where all rows have the same, B's batch norm takes away the very thing that D is to find. On arrays, inputs are
    the features. SAF meets it in F's features and C.
    """

    paper = "Wu et al., ECCV 2020"
    cost = 3.7
    passes = 3

    @dataclass(frozen=True)
    class Knobs(DANN.Knobs):
        """Dual mixup regularized learning."""

        source_mix: float = knob(1.0, "weight of category mixup in the source", low=0.0, high=100.0)
        target_mix: float = knob(1.0, "weight of category mixup in the target", low=0.0, high=100.0)
        domain_mix: float = knob(1.0, "weight of domain mixup", low=0.0, high=100.0)
        beta: float = knob(0.2, "w ~ Beta(beta, beta)", low=0.01, high=100.0, search=(0.1, 2.0, "log"))

    knobs: Knobs

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """DANN's loss and those of mixes."""
        return {**super().losses(batch, phase), **self._category(batch), "dmrl_domain": self._domain(batch)}

    def _category(self, batch: Batch) -> dict[str, Tensor]:
        knobs, labels, sources = self.knobs, batch.labels, len(batch.labels)
        inputs, mates = batch.net.as_floats(batch.inputs), mates_within(batch)
        w = draw_beta(knobs.beta, len(inputs), batch.logits)
        source, target = batch.split(batch.net.encode(mixed(inputs, inputs[mates], w), sources).logits)
        first, second = (F.cross_entropy(source, y, reduction="none") for y in (labels, labels[mates[:sources]]))
        wanted = batch.split(mixed(batch.logits, batch.logits[mates], w))[1]
        return {
            "dmrl_source": knobs.source_mix * mixed(first, second, w[:sources]).mean(),
            "dmrl_target": knobs.target_mix * (target.softmax(1) - wanted.softmax(1)).abs().mean(),
        }

    def _domain(self, batch: Batch) -> Tensor:
        source, target = batch.split(batch.net.as_floats(batch.inputs))
        pairs = min(len(source), len(target))
        w = draw_beta(self.knobs.beta, pairs, batch.logits)
        embedding = batch.net.encode(mixed(source[:pairs], target[:pairs], w), pairs).embedding
        scores = self.discriminator(reverse(embedding, self.knobs.at(batch.progress))).squeeze(1)
        return self.knobs.domain_mix * mixed(F.softplus(-scores), F.softplus(scores), w).mean()
