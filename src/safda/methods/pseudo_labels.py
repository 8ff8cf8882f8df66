"""Pseudo-labels of target samples: what C∘B says of them, soft or hard, sharpened, aligned, propagated.

A method that needs them lists ``"pseudo_labels"`` in its ``requires`` and asks ``batch.methods["pseudo_labels"]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from safda.data import Domain
from safda.data.loader import ProgressCallback
from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, mean_over_processes
from safda.methods.propagation import LabelPropagation, PropagationKnobs, propagation_graph
from safda.nn.network import Network

_PRIOR_RATE = 0.01  # the running mean of predictions looks back about a hundred steps
_LEAST_PRIOR = 1e-4  # a class that is never predicted must not take every sample at once

# Prior → the power of class shares in the answers that a run was begun with. Answers that are wrong gather in a few
# classes, so shares are more uneven there than in truth: their square roots are often nearer.
_PRIORS = {"uniform": 0.0, "initial": 1.0, "tempered": 0.5}


@register("pseudo_labels")
class PseudoLabels(Method):
    """ŷ of target samples, in the order: predict, propagate, sharpen, align, and for hard ones take the argmax.

    It adds no loss. With propagation, it remembers the latest prediction of every target sample, and lets them spread
    over the graph of :class:`~safda.methods.propagation.LabelPropagation` twice in a pass over the target; so a step
    costs the same however many samples there are.
    """

    rides = True
    cost = 1.0

    @dataclass(frozen=True)
    class Knobs:
        """Pseudo-labels; all but kind and mode is not in the paper."""

        kind: str = knob("soft", "probabilities, or one-hot", choices=("soft", "hard"))
        mode: str = knob(
            "training",
            "C∘B with dropout and batch statistics (the paper), or as it would answer in use",
            choices=("training", "evaluation"),
        )
        gradient: bool = knob(False, "let pseudo-labels pass a gradient back into C∘B, in training mode")
        temperature: float = knob(1.0, "sharpen: raise to the power 1/temperature, and normalise", low=0.01, high=10.0)
        distribution_alignment: float = knob(
            0.0,
            "divide by a running mean of them to this power, and normalise: 1 makes classes as frequent as the prior",
            low=0.0,
            high=1.0,
        )
        prior: str = knob(
            "uniform",
            "what it makes of class frequencies: all alike, as in the answers that the run was begun with, or between",
            choices=tuple(_PRIORS),
        )
        hold: float = knob(
            0.0,
            "with propagation: share of T in which labels that a run was begun with are kept, before its own take over",
            low=0.0,
            high=1.0,
        )
        propagation: PropagationKnobs = field(default_factory=PropagationKnobs)

    knobs: Knobs

    def build(self, net: Network) -> None:
        """Make room for the running mean, and for the prior where it is not uniform."""
        self._graph: LabelPropagation | None = None
        self._warm_started = False
        if self.knobs.distribution_alignment:
            self.register_buffer("prior", torch.full((net.classes,), 1 / net.classes))
            if _PRIORS[self.knobs.prior]:
                self.register_buffer("initial_prior", torch.full((net.classes,), 1 / net.classes))

    def setup(self, net: Network, source: Domain, target: Domain, progress: ProgressCallback | None = None) -> None:
        """Make the graph over which labels propagate, where they do."""
        if self.knobs.propagation.neighbours:
            self._graph = propagation_graph(source, target, self.knobs.propagation, progress)
            self._predictions = torch.zeros(len(target), net.classes)
            self._propagated = torch.zeros(len(target), net.classes)

    def warm_start(self, probabilities: Tensor) -> None:
        """Begin with what a classifier says of every sample."""
        if self._graph:
            self._predictions, self._warm_started = probabilities.clone(), True
            self.refresh()
        if self.knobs.distribution_alignment and _PRIORS[self.knobs.prior]:
            self.get_buffer("initial_prior").copy_(probabilities.mean(0))

    def of(self, batch: Batch, with_source: bool = False) -> tuple[Tensor, Tensor]:
        """Return ŷ and the logits they were made of, of the target rows; ``with_source``, of all rows.

        Source rows get theirs like the target's, by prediction; where they propagate, nothing reaches them.
        """
        fed = slice(None) if with_source else slice(len(batch.labels), None)
        if self.knobs.mode == "evaluation":
            logits = batch.net.evaluation_logits(batch.projected[fed])
        else:
            logits = batch.logits[fed]
        labels = (logits if self.knobs.gradient else logits.detach()).softmax(1)
        if self._graph:
            rows = batch.target.rows
            if not self._warm_started or batch.progress >= self.knobs.hold:
                batch.keep(self, rows=rows, predictions=logits[-len(rows) :].softmax(1))
            self._propagated = self._propagated.to(labels.device)
            propagated = F.pad(self._propagated[rows], (0, 0, len(labels) - len(rows), 0))
            labels = torch.where(propagated.sum(1, keepdim=True) > 0, propagated, labels)
        return _with_known(self._transformed(labels), batch.target_labels), logits

    def _transformed(self, labels: Tensor) -> Tensor:
        if self.knobs.temperature != 1:
            labels = _sharpened(labels, self.knobs.temperature)
        if self.knobs.distribution_alignment:
            labels = self._aligned(labels)
        if self.knobs.kind == "hard":
            return F.one_hot(labels.argmax(1), labels.shape[1]).to(labels.dtype)
        return labels

    def _aligned(self, labels: Tensor) -> Tensor:
        """Distribution alignment: no class grows only because it was frequent already."""
        prior = self.get_buffer("prior")
        if self.training:
            prior.lerp_(mean_over_processes(labels.mean(0)).to(prior.dtype), _PRIOR_RATE)
        strength = self.knobs.distribution_alignment
        aligned = labels / prior.clamp_min(_LEAST_PRIOR) ** strength
        power = _PRIORS[self.knobs.prior]
        if power:
            aligned = aligned * self.get_buffer("initial_prior").clamp_min(_LEAST_PRIOR) ** (power * strength)
        return _normalised(aligned)

    def observe(self, seen: Mapping[str, Tensor]) -> None:
        """Remember what the classifier says of the step's samples."""
        if self._graph and seen:
            self._predictions[seen["rows"].cpu()] = seen["predictions"].to(self._predictions)

    def refresh_every(self, steps: int, steps_per_epoch: float) -> int:
        """Propagate twice in a pass; before the first time too few have been seen, and predictions serve."""
        return max(1, int(steps_per_epoch / 2)) if self._graph else 0

    def refresh(self) -> None:
        """Let predictions propagate over the graph."""
        if self._graph:
            self._propagated = self._graph.propagate(self._predictions, self.knobs.propagation.alpha)

    def training_state(self) -> dict[str, Tensor]:
        """What was predicted last, and what became of it."""
        return {"predictions": self._predictions, "labels": self._propagated.cpu()} if self._graph else {}

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        if self._graph:
            self._predictions, self._propagated = state["predictions"], state["labels"]


def _with_known(labels: Tensor, known: Tensor | None) -> Tensor:
    """Return pseudo-labels in which those of the last rows that a user has given are what he says."""
    if known is None:
        return labels
    known = F.pad(known, (len(labels) - len(known), 0), value=-1)
    given = F.one_hot(known.clamp_min(0), labels.shape[1]).to(labels.dtype)
    return torch.where(known.unsqueeze(1) >= 0, given, labels)


def _sharpened(labels: Tensor, temperature: float) -> Tensor:
    """Return ŷ^(1/T), of sum 1: by logarithms, since a power of many small shares may be zero for all of them.

    >>> _sharpened(torch.tensor([[0.75, 0.25, 0.0]]), 0.5)
    tensor([[0.9000, 0.1000, 0.0000]])
    """
    logs = labels.clamp_min(torch.finfo(labels.dtype).tiny).log() / temperature  # of zeros, gradients are zero
    return logs.masked_fill(labels == 0, -torch.inf).softmax(1)


def _normalised(labels: Tensor) -> Tensor:
    return labels / labels.sum(1, keepdim=True)
