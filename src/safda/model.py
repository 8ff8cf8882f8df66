"""F, B, C, D and M together: one module whose forward takes both domains and returns the named losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from safda.adversaries import ADVERSARIES, JointBatch, Site
from safda.nn.backbones import make_backbone
from safda.nn.heads import Bottleneck, Centred, make_classifier
from safda.recipe import Recipe
from safda.saf import SAF, SAFOutput
from safda.schedules import ramp


@dataclass(frozen=True)
class StepOutput:
    """One step's losses and what a person wants to see of it.

    Attributes:
        losses: by name, already weighted; the optimizer's objective is their sum.
        health: numbers to look at, without gradient.
        eta: the mixing weights, or None without SAF.
        target: what C∘B said of the target rows where SAF asked it, as probabilities, or None without SAF.
    """

    losses: dict[str, Tensor]
    health: dict[str, Tensor]
    eta: Tensor | None = None
    target: Tensor | None = None

    @property
    def total(self) -> Tensor:
        """The sum of all losses."""
        return torch.stack(list(self.losses.values())).sum()


class AdaptationModel(nn.Module):
    """The whole network of the paper's figure, as a recipe describes it.

    Args:
        recipe: sizes, method, SAF's variant and the ramps.
        sample: one input, to know its shape.
        classes: number of classes K.
        backbone: a network to use as F in place of the one that the recipe names.
    """

    def __init__(self, recipe: Recipe, sample: Tensor, classes: int, backbone: nn.Module | None = None) -> None:
        super().__init__()
        network = recipe.network
        width = network.bottleneck_width
        self.recipe, self.classes = recipe, classes
        with torch.random.fork_rng(devices=[], enabled=network.frozen):
            # What a frozen one would draw is not used: the heads begin alike, whoever made the features.
            self.backbone, feature_dim = make_backbone(network, sample, backbone)
        self.centring = Centred(feature_dim) if network.features == "centred" else nn.Identity()

        def new_bottleneck() -> Bottleneck:
            return Bottleneck(feature_dim, width, network.dropout, network.norm == "per-domain")

        def new_classifier() -> nn.Module:
            return make_classifier(width, network.classifier_width, classes, network.dropout, network.classifier_init)

        self.bottleneck, self.classifier = new_bottleneck(), new_classifier()
        site = Site(width, classes, new_classifier, new_bottleneck)
        self.adversary = ADVERSARIES[recipe.adversary.name](site, **recipe.adversary.own())
        mixed_dim = feature_dim if recipe.saf.mix_at == "features" else width
        self.saf = SAF(mixed_dim, classes=classes, **recipe.saf.module()) if recipe.saf.enabled else None

    def forward(
        self, source: Tensor, labels: Tensor, target: Tensor, progress: float, spread: Tensor | None = None
    ) -> StepOutput:
        """Algorithm "SAF Training": ε_C, ε_D and ε_M of one step, from one pass of both domains together.

        Args:
            source: inputs of the source batch.
            labels: their classes.
            target: inputs of the target batch.
            progress: t/T.
            spread: labels of the target rows for SAF to use in place of predictions; zeros where none is known.
        """
        recipe = self.recipe
        features = self.features(torch.cat([source, target]))
        projected = self.bottleneck.linear(features)
        embedding = self.bottleneck.finish(projected, len(labels))
        batch = JointBatch(features, embedding, self.classifier(embedding), labels)

        losses = {"classification": F.cross_entropy(batch.split(batch.logits)[0], labels)}
        adversary_weight = ramp(progress, recipe.adversary.weight, recipe.adversary.ramp)
        adversary = self.adversary(batch, adversary_weight, progress)
        losses.update(adversary.losses)
        if self.saf is None:
            return StepOutput(losses, adversary.health)

        fed = slice(None) if self.saf.feed_source else slice(len(labels), None)
        steady = recipe.saf.label_mode == "evaluation"
        logits = self._steady_logits(projected[fed]) if steady else batch.logits[fed]
        mixed = self._mix(self.saf, batch, projected[fed], logits, spread)
        losses["saf"] = ramp(progress, recipe.saf.weight, recipe.saf.ramp) * mixed.loss
        if mixed.self_training is not None:
            extra = recipe.saf.self_training + ramp(progress, recipe.saf.self_training_rise, 1.0)
            losses["self_training"] = extra * mixed.self_training
        said = logits[-len(target) :].detach().softmax(1)
        return StepOutput(losses, adversary.health, mixed.eta.detach(), said)

    def features(self, inputs: Tensor) -> Tensor:
        """Give φ, what B and SAF see: F's output, centred where the recipe says so."""
        features: Tensor = self.centring(self.backbone(inputs))
        return features

    @torch.no_grad()
    def _steady_logits(self, projected: Tensor) -> Tensor:
        """C∘B as it would answer in use: nothing dropped, normalised by running statistics."""
        head = (self.bottleneck, self.classifier)
        for module in head:
            module.eval()
        logits: Tensor = self.classifier(self.bottleneck.finish(projected))
        for module in head:
            module.train(self.training)
        return logits

    def _mix(self, saf: SAF, batch: JointBatch, projected: Tensor, logits: Tensor, spread: Tensor | None) -> SAFOutput:
        """Hand SAF what its variant mixes, with what the step has computed already."""
        if spread is not None and saf.feed_source:
            spread = F.pad(spread, (0, 0, len(batch.labels), 0))  # of source rows nothing is known
        known: dict[str, Any] = {"logits": logits, "spread": spread}
        if saf.mix_at == "bottleneck":
            source, target = batch.split(batch.embedding)
            return saf.forward(target, self.classifier, source_features=source, **known)
        source, target = batch.split(batch.features)
        return saf.forward(
            target,
            lambda features: self.classifier(self.bottleneck(features)),
            source_features=source,
            projected=(projected, lambda mixed: self.classifier(self.bottleneck.finish(mixed))),
            **known,
        )

    def predict(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Give the adapted classifier's logits and the embedding B(F(x)); for use in evaluation mode."""
        features = self.features(inputs)
        embedding = self.bottleneck(features)
        return self.adversary.predict(features, embedding, self.classifier(embedding)), embedding
