"""Adaptive feature norm (Xu et al., ICCV 2019): features of a larger norm transfer better, so let norms grow."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase


@register("afn")
class AFN(Method):
    """Stepwise (SAFN): each embedding's norm is to exceed what it is now by Δr. Hard (HAFN): norms are R on average.

    Of each domain, mean (‖h‖ − (‖h‖₀ + Δr))², where ‖h‖₀ is the same norm without gradient, so the loss is always Δr²
    and its gradient says: grow; or (mean ‖h‖ − R)².

    Xu, Li, Yang, Lin: Larger norm more transferable: an adaptive feature norm approach for unsupervised domain
    adaptation. ICCV 2019. Here h is B's output; the authors rescale it in training by √(1 − p) after dropout p, and on
    some tasks add the target's entropy at weight 0.1. SAF meets it in F's features and C.
    """

    paper = "Xu et al., ICCV 2019"
    cost = 1.0

    @dataclass(frozen=True)
    class Knobs:
        """Adaptive feature norm."""

        weight: float = knob(0.05, "weight of each domain's loss", low=0.0, high=100.0, search=(0.005, 0.5, "log"))
        variant: str = knob("stepwise", "SAFN, or HAFN", choices=("stepwise", "hard"))
        step: float = knob(1.0, "Δr, by which norms are to grow", low=0.0, high=1e4, search=(0.1, 3.0, "log"))
        radius: float = knob(25.0, "R, what norms are to be in the hard variant", low=0.0, high=1e6)

    knobs: Knobs

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return the weighted loss of both domains."""
        source, target = batch.split(batch.embedding.norm(dim=1))
        batch.log(self, norm_of_source=source.mean(), norm_of_target=target.mean())
        return {"afn": self.knobs.weight * (self._distance(source) + self._distance(target))}

    def _distance(self, norms: Tensor) -> Tensor:
        if self.knobs.variant == "hard":
            return (norms.mean() - self.knobs.radius).square()
        return (norms - (norms.detach() + self.knobs.step)).square().mean()
