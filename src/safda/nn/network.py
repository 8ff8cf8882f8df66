"""The network that methods adapt: F (backbone), B (bottleneck) and C (classifier), and the one way through it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from safda.nn.backbones import Backbone, make_backbone
from safda.nn.heads import Bottleneck, FeatureScaling, make_classifier
from safda.recipe import NetworkKnobs


class Encoded(NamedTuple):
    """What the network makes of inputs.

    Attributes:
        features: φ, what B and SAF see: F's output, scaled as the recipe says.
        projected: B's linear layer of φ, before its norm.
        embedding: B(φ).
        logits: C(B(φ)).
    """

    features: Tensor
    projected: Tensor
    embedding: Tensor
    logits: Tensor


class Network(nn.Module):
    """F, B and C.

    Args:
        knobs: sizes, and which backbone.
        sample: one input, to know its shape.
        classes: number of classes K.
        backbone: a network to use as F in place of the one that the knobs name.
    """

    def __init__(self, knobs: NetworkKnobs, sample: Tensor, classes: int, backbone: nn.Module | None = None) -> None:
        super().__init__()
        self._knobs, self.classes, self.embedding_dim = knobs, classes, knobs.bottleneck_width
        self.input_shape = tuple(sample.shape)
        with torch.random.fork_rng(devices=[], enabled=knobs.frozen):
            # What a frozen one would draw is not used: the heads begin alike, whoever made the features.
            self.backbone, self.backbone_dim = make_backbone(knobs, sample, backbone)
        self.centring, self.feature_dim = self._new_scaling()
        self.bottleneck, self.classifier = self.new_bottleneck(), self.new_classifier()

    def _new_scaling(self) -> tuple[nn.Module, int]:
        knobs = self._knobs
        if knobs.features == "as-is" and not knobs.components:
            return nn.Identity(), self.backbone_dim
        scaling = FeatureScaling(self.backbone_dim, knobs.features, knobs.components)
        return scaling, scaling.outputs

    def new_bottleneck(self) -> Bottleneck:
        """Make a fresh network of B's shape, from feature to embedding."""
        return Bottleneck(self.feature_dim, self.embedding_dim, self._knobs.dropout, self._knobs.norm == "per-domain")

    def new_classifier(self) -> nn.Module:
        """Make a fresh network of C's shape, from embedding to logits."""
        knobs = self._knobs
        return make_classifier(
            self.embedding_dim, knobs.classifier_width, self.classes, knobs.dropout, knobs.classifier_init
        )

    def encode(self, inputs: Tensor, sources: int = 0) -> Encoded:
        """Send inputs through F, B and C.

        Args:
            inputs: pictures, features or what else F takes.
            sources: how many of the rows, the first ones, are a training batch's source, or mixes with it.
        """
        features, projected = self.project(inputs)
        embedding = self.bottleneck.finish(projected, sources)
        return Encoded(features, projected, embedding, self.classifier(embedding))

    def project(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return φ, and B's linear layer of it: the first half of :meth:`encode`."""
        features = self.centring(self.backbone(inputs))
        return features, self.bottleneck.linear(features)

    def as_floats(self, inputs: Tensor) -> Tensor:
        """Return inputs that can be mixed and mean the same: pictures of 8 bits normalised, others as they are."""
        if inputs.dtype == torch.uint8 and isinstance(self.backbone, Backbone):
            return self.backbone.normalised(inputs)
        return inputs

    @torch.no_grad()
    def evaluation_logits(self, projected: Tensor) -> Tensor:
        """C∘B as it would answer in use: nothing dropped, normalised by running statistics."""
        heads = (self.bottleneck, self.classifier)
        for module in heads:
            module.eval()
        logits: Tensor = self.classifier(self.bottleneck.finish(projected))
        for module in heads:
            module.train(self.training)
        return logits
