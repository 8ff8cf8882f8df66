"""Joint adaptation network (Long et al., ICML 2017): embeddings and predictions are alike together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase, reverse
from safda.methods.kernels import gaussian_kernels, mean_discrepancy, squared_distances
from safda.nn.network import Network

_PREDICTION_WIDTH = 0.92  # σ of the kernel of predictions, as its authors have it
_THETA_RATE = 0.1  # the authors let θ learn at a tenth of the rate of other new layers


@register("jan")
class JAN(Method):
    """MMD² by the product of a kernel of B's outputs and one of C's probabilities; both domains get its gradient.

    The first is DAN's sum of five, the second exp(−d²/2σ²) with σ = 0.92. With ``adversarial`` (JAN-A) each layer goes
    through a linear map θ first, which begins as the identity and learns to make the discrepancy larger.

    Long, Zhu, Wang, Jordan: Deep transfer learning with joint adaptation networks. ICML 2017. The paper estimates in
    linear time, its authors' later library over all pairs unless told otherwise. SAF meets it in F's features and C.
    """

    paper = "Long et al., ICML 2017"
    cost = 1.0

    @dataclass(frozen=True)
    class Knobs:
        """Joint adaptation network."""

        weight: float = knob(1.0, "weight of the discrepancy", low=0.0, high=1e4, search=(0.1, 10.0, "log"))
        estimate: str = knob("quadratic", "over all pairs, or over neighbours", choices=("quadratic", "linear"))
        adversarial: bool = knob(False, "let a map of each layer learn to tell the domains apart")

    knobs: Knobs

    def build(self, net: Network) -> None:
        """Make the maps θ, where there are any."""
        if self.knobs.adversarial:
            self.theta = nn.ModuleList(nn.Linear(size, size) for size in (net.embedding_dim, net.classes))
            for layer in self.theta.children():
                nn.init.eye_(layer.get_parameter("weight"))
                nn.init.zeros_(layer.get_parameter("bias"))

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return the weighted discrepancy."""
        layers = [batch.embedding, batch.logits.softmax(1)]
        if self.knobs.adversarial:  # two reversals: θ climbs, and what is before it still descends, at full weight
            layers = [
                reverse(theta(reverse(rows, 1 / _THETA_RATE)), _THETA_RATE)
                for theta, rows in zip(self.theta, layers, strict=True)
            ]
        embedding, prediction = layers
        kernel = gaussian_kernels(embedding) * torch.exp(-squared_distances(prediction) / (2 * _PREDICTION_WIDTH**2))
        loss = mean_discrepancy(kernel, len(batch.labels), self.knobs.estimate == "linear")
        return {"jan": self.knobs.weight * loss}
