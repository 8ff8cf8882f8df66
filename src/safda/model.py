"""The network and its methods together: one module whose forward takes both domains and returns the named losses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from safda.data import Domain
from safda.data.loader import ProgressCallback, evaluation_batches
from safda.errors import SafdaError
from safda.methods import METHODS
from safda.methods.base import Batch, Method, Phase, overrides
from safda.nn.network import Encoded, Network
from safda.recipe import NetworkKnobs, Recipe

_JOINT = Phase()
_LABEL_WEIGHT = 1.0  # a labelled target sample in a batch counts as so many of the source's


@dataclass(frozen=True)
class StepOutput:
    """One step's losses and what is left of it.

    Attributes:
        losses: by name, already weighted; the optimizer's objective is their sum.
        metrics: numbers to look at, without gradient.
        kept: by method, what it will observe once the step is made.
    """

    losses: dict[str, Tensor]
    metrics: dict[str, Tensor]
    kept: dict[str, dict[str, Tensor]]

    @cached_property
    def total(self) -> Tensor:
        """The sum of all losses."""
        return torch.stack(list(self.losses.values())).sum()


class AdaptationModel(Network):
    """The whole network of the paper's figure, as a recipe describes it: F, B, C and what each method adds.

    Args:
        recipe: sizes, and methods with their knobs.
        sample: one input, to know its shape.
        classes: number of classes K.
        backbone: a network to use as F in place of the one that the recipe names.
        given: methods that were made already, by name; the others are made here.
    """

    def __init__(
        self,
        recipe: Recipe,
        sample: Tensor,
        classes: int,
        backbone: nn.Module | None = None,
        given: Mapping[str, Method] | None = None,
    ) -> None:
        super().__init__(recipe.network, sample, classes, backbone)
        self.methods = nn.ModuleDict()
        for name in recipe.of_methods:
            method = (given or {}).get(name) or METHODS[name]()
            if method.pictures_only and (sample.ndim == 1 or recipe.network.frozen):
                raise SafdaError(
                    f"methods: {name!r} needs pictures and a backbone that learns, not arrays or features of a frozen "
                    "one; take another method"
                )
            method.knobs = recipe.of_methods[name]
            method.build(self)
            self.methods[name] = method
        self.recipe, self.is_set_up = recipe, False
        self._lead_name = _lead_name(self.methods_by_name)

    @property
    def methods_by_name(self) -> dict[str, Method]:
        """The methods of the run, in the order in which their losses are computed."""
        return cast(dict[str, Method], dict(self.methods.items()))

    def use(self, recipe: Recipe) -> None:
        """Go on by another recipe of the same network and methods."""
        self.recipe = recipe
        for name, method in self.methods_by_name.items():
            method.knobs = recipe.of_methods[name]

    def adopt(self, heads: AdaptationModel) -> None:
        """Take over all but the backbone from a model that was trained on this one's features."""
        for name in ("centring", "bottleneck", "classifier", "methods"):
            setattr(self, name, getattr(heads, name))
        for name in ("feature_dim", "embedding_dim", "recipe", "is_set_up", "_knobs", "_lead_name"):
            setattr(self, name, getattr(heads, name))

    def setup(self, source: Domain, target: Domain, progress: ProgressCallback | None = None) -> None:
        """Let every method look at both domains."""
        for method in self.methods_by_name.values():
            method.setup(self, source, target, progress)
        self.is_set_up = True

    def phases(self, progress: float) -> Sequence[Phase]:
        """Return the optimizer steps of an iteration."""
        return self.methods_by_name[self._lead_name].phases(progress) if self._lead_name else (Phase(),)

    def forward(
        self,
        source: Tensor,
        labels: Tensor,
        target: Tensor,
        rows: Tensor,
        progress: float,
        phase: Phase = _JOINT,
        target_labels: Tensor | None = None,
    ) -> StepOutput:
        """Algorithm "SAF Training": ε_C, ε_D and ε_M of one step, from one pass of both domains together.

        Args:
            source: inputs of the source batch.
            labels: their classes.
            target: inputs of the target batch.
            rows: which samples these are, of the source and then of the target.
            progress: t/T, as the methods count it.
            phase: which of the iteration's optimizer steps this is for.
            target_labels: classes of target rows that a user has labelled, −1 for all others; None without any.
        """
        inputs = torch.cat([source, target])
        encoded = self.encode(inputs, len(labels))
        methods = self.methods_by_name
        batch = Batch(self, methods, labels, rows, inputs, *encoded, progress, target_labels)
        losses = {"classification": self._source_loss(batch)} if phase.supervised else {}
        if phase.supervised and target_labels is not None:
            losses["target_labels"] = self._target_loss(batch, target_labels)
        for method in methods.values():
            if phase.supervised or method.name == self._lead_name:
                own = method.losses(batch, phase)
                if not losses.keys().isdisjoint(own):
                    raise ValueError(f"{method.name} names a loss that another has: {', '.join(own)}")
                losses.update(own)
        return StepOutput(losses, batch.metrics, batch.kept)

    def _source_loss(self, batch: Batch) -> Tensor:
        own = (method.source_loss(batch) for method in batch.methods.values())
        loss = next((loss for loss in own if loss is not None), None)
        return F.cross_entropy(batch.source.logits, batch.labels) if loss is None else loss

    def _target_loss(self, batch: Batch, labels: Tensor) -> Tensor:
        """Cross-entropy of what is answered for labelled target rows; each counts as so many of the source's."""
        every = (batch.features, batch.projected, batch.embedding, batch.logits)
        logits = self.answer(Encoded(*(batch.split(values)[1] for values in every)))
        total = F.cross_entropy(logits, labels, ignore_index=-1, reduction="sum")
        return _LABEL_WEIGHT * total / len(batch.labels)

    def predict(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the adapted classifier's logits and the embedding B(F(x)); for use in evaluation mode."""
        encoded = self.encode(inputs)
        return self.answer(encoded), encoded.embedding

    @torch.no_grad()
    def encode_domains(self, source: Domain, target: Domain) -> Encoded:
        """Send all samples of both domains through F, B and C, the source's rows first; for use in evaluation mode.

        Where each domain is normalised by itself, the source is normalised as it was in training, by its own
        statistics. Inference mode would not do: auxiliary classifiers learn from what this gives.
        """
        device = next(self.parameters()).device
        parts = [
            self.project(inputs.to(device)) for domain in (source, target) for inputs in evaluation_batches(domain)
        ]
        features, projected = (torch.cat(part) for part in zip(*parts, strict=True))
        embedding = self.bottleneck.finish(projected, len(source))
        return Encoded(features, projected, embedding, self.classifier(embedding))

    def answer(self, encoded: Encoded) -> Tensor:
        """Return the logits to answer with: C's, or those of a method that answers in its place."""
        answers = (method.predict(self, encoded) for method in self.methods_by_name.values())
        return next((logits for logits in answers if logits is not None), encoded.logits)


def require_memory(knobs: NetworkKnobs, shape: Sequence[int], classes: int, copies: int = 1) -> None:
    """Refuse a network whose B and C alone need more memory than there is, before the machine comes to a stand.

    Args:
        knobs: with the widths.
        shape: of an input; the features themselves, where it is a row of numbers.
        classes: number of classes K.
        copies: how often the weights are held.
    """
    features = shape[0] if len(shape) == 1 else 0
    width, hidden = knobs.bottleneck_width, knobs.classifier_width
    need = 4 * (copies * (features * width + width * hidden + hidden * classes) + math.prod(shape))
    there = psutil.virtual_memory().available + psutil.swap_memory().free
    if need > there:
        raise SafdaError(
            f"network.bottleneck_width = {width} and network.classifier_width = {hidden}, with inputs of shape "
            f"{tuple(shape)}, need {need / 1e9:,.1f} GB of memory, and {there / 1e9:,.1f} GB are free; choose smaller"
        )


def has_phases(recipe: Recipe) -> bool:
    """Return whether a method makes several optimizer steps an iteration, or trains in stages."""
    return any(METHODS[name].phases is not Method.phases for name in recipe.of_methods)


def _lead_name(methods: Mapping[str, Method]) -> str | None:
    """Return the name of the one method that says how an iteration goes, if any does."""
    leads = [name for name, method in methods.items() if overrides(method, "phases")]
    if len(leads) > 1:
        names = " and ".join(leads)
        raise SafdaError(f"methods: {names} each want a say in how an iteration goes; name one of them")
    return leads[0] if leads else None
