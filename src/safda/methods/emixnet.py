"""E-MixNet (Zhong et al., AAAI 2021): MDD, and sure target samples mixed with distant source samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Phase
from safda.methods.mdd import MDD


@register("e-mixnet")
class EMixNet(MDD):
    """Beside MDD's loss, C∘B∘F learns mixes of two distant samples, x̃ = w·x_s + (1 − w)·x_t, and labels mixed alike.

    x_t is a target sample of which C is sure, with C's own answer for a label; x_s is the source sample of the batch
    whose embedding has the least cosine with its own. The loss −ỹᵀ log softmax(C(x̃)) counts where C is sure of x_t,
    and is a proxy of what the theory calls the combined risk.

    Zhong, Fang, Liu, Lu, Yuan, Zhang: How does the combined risk affect the performance of unsupervised domain
    adaptation approaches? AAAI 2021. The authors announced their code and released none. w = 0.6 is what SAF's authors
    say of it; that it falls to the source, the threshold, the weight, cross-entropy as the loss and the search within
    the batch are our reading, not theirs. Inputs are mixed: on arrays, the features. SAF meets it in F's features and
    C.
    """

    paper = "Zhong et al., AAAI 2021"
    cost = 2.0
    passes = 2

    @dataclass(frozen=True)
    class Knobs(MDD.Knobs):
        """E-MixNet."""

        mix_weight: float = knob(1.0, "weight of the loss of mixes", low=0.0, high=100.0, search=(0.05, 2.0, "log"))
        share: float = knob(0.6, "w, the source sample's part in a mix", low=0.0, high=1.0)
        threshold: float = knob(0.8, "how probable C's answer must be", low=0.0, high=1.0)

    knobs: Knobs

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """MDD's loss and that of mixes."""
        return {**super().losses(batch, phase), "e-mixnet_mixes": self.knobs.mix_weight * self._mixes(batch)}

    def _mixes(self, batch: Batch) -> Tensor:
        knobs, net = self.knobs, batch.net
        confidence, answers = batch.target.logits.detach().softmax(1).max(1)
        source, target = batch.split(F.normalize(batch.embedding.detach()))
        distant = (target @ source.T).argmin(1)
        source, target = batch.split(net.as_floats(batch.inputs))
        mixes = torch.lerp(target, source[distant], knobs.share)
        log_p = net.encode(mixes, len(mixes)).logits.log_softmax(1)  # all of them, sure or not: processes must do alike
        of_source, of_target = (F.nll_loss(log_p, y, reduction="none") for y in (batch.labels[distant], answers))
        sure = (confidence >= knobs.threshold).to(log_p)
        batch.log(self, sure=sure.mean())
        return (torch.lerp(of_target, of_source, knobs.share) * sure).mean()
