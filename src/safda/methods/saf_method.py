"""SAF beside another method in safda's own loop: λ_M, what is mixed, and with which pseudo-labels."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase, RampedWeight, least_over_processes
from safda.methods.eta import EtaKnobs, make_eta
from safda.methods.pseudo_labels import PseudoLabels
from safda.methods.saf import SAF, SAFOutput
from safda.nn.network import Network


@register("saf")
class SAFMethod(Method):
    """λ_M·L_M of :class:`~safda.methods.saf.SAF`, with each row of the paper's ablation table as a knob."""

    paper = "Xu et al., 2022"
    cost = 1.4
    requires = ("pseudo_labels",)
    rides = True

    @dataclass(frozen=True)
    class Knobs(RampedWeight):
        """Shuffle Augmentation of Features; λ_M(t) = weight · tanh(ramp · t/T)."""

        weight: float = knob(0.1, "final weight λ_M of the SAF loss", low=0.0, high=100.0, search=(0.01, 1.0, "log"))
        ramp: float = knob(5.0, "how fast λ_M rises: tanh(ramp · t/T)", low=0.0, high=1e6)
        pairing: str = knob("random", "who meets whom", choices=("random", "reversed"))
        label_scale: float = knob(1.0, "factor on composite labels (released code: 2)", low=0.0, high=100.0)
        keep: str = knob("all", "which samples are mixed, by entropy", choices=("all", "certain", "uncertain"))
        threshold: float = knob(0.5, "certain: entropy at most this fraction of ln K", low=0.0, high=1.0)
        feed_source: bool = knob(False, "mix source samples too")
        mix_at: str = knob("features", "mix φ, or B's output", choices=("features", "bottleneck"))
        eta: EtaKnobs = field(default_factory=EtaKnobs)

    knobs: Knobs

    def build(self, net: Network) -> None:
        """Make M."""
        knobs = self.knobs
        size = net.feature_dim if knobs.mix_at == "features" else net.embedding_dim
        eta = make_eta(size, knobs.eta)
        self.saf = SAF(size, eta=eta, pairing=knobs.pairing, label_scale=knobs.label_scale)

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """λ_M·L_M, from what the step has computed already."""
        pseudo_labels, logits = cast(PseudoLabels, batch.methods["pseudo_labels"]).of(batch, self.knobs.feed_source)
        out = self.mixed(batch, pseudo_labels, logits)
        if len(out.eta):
            batch.log(self, eta_mean=out.eta.mean(), eta_std=out.eta.std(correction=0))
        return {"saf": self.knobs.at(batch.progress) * out.loss}

    def candidates(self, logits: Tensor) -> Tensor:
        """Return row numbers of the samples that may be mixed, by how certain their predictions are.

        Where a process has too few of them for a pair, no process mixes: each waits for all others in batch norm.
        """
        rows = torch.arange(len(logits), device=logits.device)
        if self.knobs.keep == "all":
            return rows
        certain = relative_entropy(logits) <= self.knobs.threshold
        kept = rows[certain if self.knobs.keep == "certain" else ~certain]
        pair = 1 if self.knobs.pairing == "reversed" else 2  # in which a sample may meet itself
        return kept if least_over_processes(len(kept), kept.device) >= pair else kept[:0]

    def evidence(self, batch: Batch, pseudo_labels: Tensor, logits: Tensor) -> Tensor | None:
        """Return what η is made of, for an η of one's own (``benchmarks/etas.py`` has some); None: the features."""
        return None

    def mixed(self, batch: Batch, pseudo_labels: Tensor, logits: Tensor) -> SAFOutput:
        """Mix the samples that may be mixed, with these pseudo-labels, where the recipe says."""
        net = batch.net
        fed = slice(None) if self.knobs.feed_source else slice(len(batch.labels), None)
        given = {
            "pseudo_labels": pseudo_labels,
            "candidates": self.candidates(logits),
            "evidence": self.evidence(batch, pseudo_labels, logits),
        }
        if self.knobs.mix_at == "bottleneck":
            out: SAFOutput = self.saf(batch.embedding[fed], net.classifier, **given)
            return out

        def rest(mixes: Tensor) -> Tensor:
            sources = len(mixes) if self.knobs.feed_source else 0
            logits: Tensor = net.classifier(net.bottleneck.finish(mixes, sources))
            return logits

        out = self.saf(
            batch.features[fed],
            lambda features: rest(net.bottleneck.linear(features)),
            projected=(batch.projected[fed], rest),
            **given,
        )
        return out


def relative_entropy(logits: Tensor) -> Tensor:
    """Entropy of each prediction as a fraction of its maximum, ln K.

    >>> round(relative_entropy(torch.zeros(1, 7)).item(), 4)
    1.0
    """
    log_p = logits.detach().log_softmax(1)
    return -(log_p.exp() * log_p).sum(1) / math.log(logits.shape[1])
