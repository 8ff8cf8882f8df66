"""Where pictures meet a network: in its input size, and for a frozen one as features that are computed once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from safda.data import AnyDomain, Domain, ImageDomain, is_image_data, load_domain
from safda.data.arrays import to_npz
from safda.data.cache import cached_features
from safda.data.images import TransformedImages
from safda.data.loader import ProgressCallback
from safda.data.pixels import Transform
from safda.data.settings import writable_cache
from safda.errors import SafdaError
from safda.model import AdaptationModel
from safda.nn.backbones import Backbone, check_backbone, image_config, make_backbone
from safda.nn.weights import structure_digest_of
from safda.recipe import NetworkKnobs, Recipe


def precompute(
    data: Any, recipe: Recipe, progress: ProgressCallback | None = None, out: Path | None = None
) -> dict[str, int]:
    """Fill the feature cache with a domain's pictures, and return how many there were and how many it lacked.

    Args:
        data: a domain of pictures.
        recipe: names the backbone; a frozen run with the same one then finds all features there.
        progress: called with (done, total) as it goes on.
        out: a ``.npz`` file for the features too, with labels, class names and the pictures' paths.
    """
    network = replace(recipe.network, frozen=True)
    if is_image_data(data):
        check_backbone(network)  # before any picture is opened
    pictures = load_domain(data, progress=progress)
    if not isinstance(pictures, ImageDomain):
        raise SafdaError(f"{pictures.name}: is not a domain of pictures; its features are what it holds")
    domain = for_network(pictures, image_transform(network))
    backbone, width = make_backbone(network, domain.blank())
    computed = 0

    def counting(done: int, of: int) -> None:
        nonlocal computed
        computed = done
        if progress:
            progress(done, of)

    features = cached_features(domain, extractor(backbone), structure_digest_of(backbone), width, counting)
    if out:
        to_npz(out, features)
    return {"pictures": len(domain), "computed": computed, "width": width, "skipped": len(domain.skipped)}


def for_network(domain: AnyDomain, transform: Transform, cache_decoded: bool = False) -> Domain:
    """Return a domain that gives batches: of pictures as a network wants them, of anything else as it is."""
    if isinstance(domain, Domain):
        return domain
    inputs = TransformedImages(domain.inputs, transform, writable_cache("decoded") if cache_decoded else None)
    return Domain(domain.name, inputs, domain.labels, domain.classes, domain.ids, domain.skipped, domain.known_labels)


def image_transform(network: NetworkKnobs, given: nn.Module | None = None) -> Transform:
    """Return the transform of the backbone that is named, or of the given one."""
    config = image_config(network.backbone, given)
    side = network.image_size or config.side
    return Transform(side, config.crop, config.interpolation, config.squash, network.crop_scale)


def frozen_features(model: AdaptationModel, domain: Domain, progress: ProgressCallback | None = None) -> Domain:
    """Return a domain of features in place of one of pictures, where the backbone is frozen."""
    backbone = model.backbone
    if not isinstance(backbone, Backbone) or not backbone.frozen:
        return domain
    key = structure_digest_of(backbone)
    # What the layers of a user's own network do with each other is in its code, and in no key.
    return cached_features(domain, extractor(backbone), key, model.backbone_dim, progress, doubt=backbone.given)


def extractor(backbone: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a function from pictures to features, without gradients."""
    device = next(backbone.parameters()).device

    @torch.inference_mode()
    def extract(images: Tensor) -> Tensor:
        features: Tensor = backbone(images.to(device))
        return features

    return extract
