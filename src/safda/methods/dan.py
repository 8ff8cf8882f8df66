"""Deep adaptation network (Long et al., ICML 2015): kernels cannot tell the domains' embeddings apart."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase
from safda.methods.kernels import gaussian_kernels, mean_discrepancy


@register("dan")
class DAN(Method):
    """MMD² of source and target by a sum of five Gaussian kernels, of B's output and of C's logits, added up.

    MMD² = E k(s, s′) + E k(t, t′) − 2·E k(s, t), over pairs of different samples; kernels are as wide as 1/8 to 2 times
    the batch's mean squared distance. Both domains get its gradient.

    Long, Cao, Wang, Jordan: Learning transferable features with deep adaptation networks. ICML 2015. The paper learns
    each kernel's weight and estimates in linear time; its authors' later library adds the kernels up, compares
    embeddings alone, and can estimate over all pairs, though its own script of DAN does not. Here kernels add up, and
    the other two are knobs. SAF meets it in F's features and C.
    """

    paper = "Long et al., ICML 2015"
    cost = 1.1

    @dataclass(frozen=True)
    class Knobs:
        """Deep adaptation network."""

        weight: float = knob(1.0, "weight of the discrepancy", low=0.0, high=1e4, search=(0.1, 10.0, "log"))
        estimate: str = knob("quadratic", "over all pairs, or over neighbours", choices=("quadratic", "linear"))
        logits: bool = knob(True, "compare the logits too")

    knobs: Knobs

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return the weighted discrepancy."""
        sources, linear = len(batch.labels), self.knobs.estimate == "linear"
        loss = mean_discrepancy(gaussian_kernels(batch.embedding), sources, linear)
        if self.knobs.logits:
            loss = loss + mean_discrepancy(gaussian_kernels(batch.logits), sources, linear)
        return {"dan": self.knobs.weight * loss}
