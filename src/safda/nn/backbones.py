"""F: backbones, from pictures to features: timm's, a small one of our own, or one that is given."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from safda.errors import SafdaError, SafdaWarning, first_line, nearest
from safda.nn.vision import guard_torchvision
from safda.nn.weights import hub_file, load_backbone
from safda.recipe import NetworkKnobs
from safda.registry import Registry


class ImageConfig(NamedTuple):
    """What pictures a backbone was made for.

    Attributes:
        side: width and height of an input.
        crop: the input's share of the picture's short side, once that is resized.
        interpolation: how it is resized: bilinear or bicubic.
        squash: whether its sides are resized alike, whatever their ratio.
        mean: of each channel, where white is 1.
        std: likewise.
    """

    side: int
    crop: float
    interpolation: str
    squash: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]


class BackboneFactory(Protocol):
    """What is registered as a backbone: usually the network's class itself."""

    @property
    def image_config(self) -> ImageConfig:
        """What pictures it is made for."""

    def __call__(self, channels: int) -> nn.Module:
        """Make the network, from n×channels×h×w to n×d."""


#: Backbones beside timm's, by name; another package adds its own by an entry point of the group ``safda.backbones``.
BACKBONES: Registry[BackboneFactory] = Registry("backbone", "safda.nn.backbones")


@BACKBONES.register("small-cnn")
class SmallCNN(nn.Sequential):
    """Three convolutions for small pictures, trained from scratch."""

    image_config = ImageConfig(32, 0.875, "bilinear", False, (0.5,) * 3, (0.5,) * 3)

    def __init__(self, channels: int) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in ((channels, 16), (16, 32), (32, 64)):
            layers += [
                nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        super().__init__(*layers, nn.Flatten())
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a third faster on the CPU


class Backbone(nn.Module):
    """F for pictures of 8 bits: normalises a whole batch in one go, then looks at it.

    A frozen one stays as it is, batch norm's statistics included, and lets features that it made before pass.

    Attributes:
        given: whether a user has handed the network over, so that no name tells what it is.

    Args:
        network: from n×3×h×w to n×d.
        mean: of each channel, where white is 1.
        std: likewise.
        frozen: whether it learns nothing.
        fixed_norm: whether batch norm keeps its statistics while the rest learns: those of a small batch are too rough
            to replace what a network was trained with.
    """

    given = False

    def __init__(
        self, network: nn.Module, mean: Sequence[float], std: Sequence[float], frozen: bool, fixed_norm: bool = False
    ) -> None:
        super().__init__()
        self.network, self.fixed_norm = network, fixed_norm
        self.freeze(frozen)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))

    def freeze(self, frozen: bool = True) -> None:
        """Freeze its weights, or let them learn again."""
        self.frozen = frozen
        self.network.requires_grad_(not frozen)

    def train(self, mode: bool = True) -> Backbone:
        """Go into training mode, unless frozen."""
        super().train(mode and not self.frozen)
        if self.fixed_norm:
            for module in self.network.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        """From pictures to features."""
        if inputs.ndim == 2:
            return inputs
        return cast(Tensor, self.network(self.normalised(inputs) if inputs.dtype == torch.uint8 else inputs))

    def normalised(self, images: Tensor) -> Tensor:
        """Return pictures of 8 bits as the network takes them."""
        width = images.shape[3]  # line by line of pixels: an inner loop over three channels takes four times as long
        lines = images.permute(0, 2, 3, 1).flatten(2).float()
        lines.sub_(255 * self.mean.repeat(width)).mul_(1 / (255 * self.std.repeat(width)))
        return lines.view(*lines.shape[:2], width, -1).permute(0, 3, 1, 2)


def make_backbone(network: NetworkKnobs, sample: Tensor, given: nn.Module | None = None) -> tuple[nn.Module, int]:
    """Make F for inputs like ``sample`` (one of them) and tell its feature size.

    A vector needs no backbone: it is a feature already.

    Args:
        network: names it: a registered one or a model that timm knows, its weights, and whether it is frozen.
        sample: one input; of 8 bits, it is a picture that F normalises.
        given: a network to use in place of the named one.
    """
    if sample.ndim == 1:
        return nn.Identity(), sample.shape[0]
    if given is not None:
        backbone = given
    elif network.backbone in BACKBONES:
        backbone = BACKBONES[network.backbone](sample.shape[0])
    else:
        backbone = _timm_backbone(network, sample)
    if network.weights:
        load_backbone(backbone, Path(network.weights), _head_of(backbone), network.backbone)
    if sample.dtype == torch.uint8:
        backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if sample.dtype == torch.uint8 or network.frozen:
        config = image_config(network.backbone, backbone)
        backbone = Backbone(backbone, config.mean, config.std, network.frozen, network.backbone_norm == "fixed")
        backbone.given = given is not None
    one = sample.unsqueeze(0)
    try:
        with torch.no_grad():
            features = backbone.eval()(one if one.dtype == torch.uint8 else one.float())
    except RuntimeError as error:
        size = "×".join(map(str, sample.shape))
        raise SafdaError(
            f"the backbone takes no pictures of {size} ({first_line(error)}); choose another network.image_size"
        ) from error
    if features.ndim != 2:
        raise SafdaError(f"the backbone must give n×d features, not {features.ndim} dimensions")
    return backbone.train(), features.shape[1]


def image_config(name: str, given: nn.Module | None = None) -> ImageConfig:
    """Return what pictures a backbone was made for, by its own configuration.

    >>> image_config("small-cnn").side
    32
    """
    ours = BACKBONES[name] if given is None and name in BACKBONES else given
    own = getattr(ours, "image_config", None)
    if isinstance(own, ImageConfig):
        return own
    timm = _timm_with(name if given is None else None)
    if given is None:
        config = timm.data.resolve_data_config(pretrained_cfg=_pretrained_config(name).to_dict())
    else:
        config = timm.data.resolve_model_data_config(given)
    return ImageConfig(
        config["input_size"][-1],
        config["crop_pct"],
        config["interpolation"],
        config["crop_mode"] == "squash",
        tuple(config["mean"]),
        tuple(config["std"]),
    )


def full_name(network: NetworkKnobs) -> str:
    """Return a backbone's name with the tag of its weights, as timm completes it.

    >>> from safda.recipe import NetworkKnobs
    >>> full_name(NetworkKnobs(backbone="tf_efficientnet_lite0")), full_name(NetworkKnobs())
    ('tf_efficientnet_lite0.in1k', 'small-cnn')
    """
    if network.backbone in BACKBONES:
        return network.backbone
    tag = _pretrained_config(network.backbone).tag
    return ".".join(filter(None, (network.backbone.split(".")[0], tag)))


def check_backbone(network: NetworkKnobs) -> None:
    """Find out in a moment whether a backbone and its weights can be had; warn where its name means several.

    Raises:
        SafdaError: if they cannot: there is no such model, no such file, or no connection to where timm has them.
    """
    name, pretrained = network.backbone, network.pretrained and not network.weights
    if name in BACKBONES:
        if pretrained:
            raise SafdaError(
                f"network.backbone = {name!r} has no pretrained weights; 'recipe = digits' trains it from scratch"
            )
        return
    config = _pretrained_config(name)
    _warn_of_other_weights(network)
    if network.weights and not Path(network.weights).is_file():
        raise SafdaError(f"network.weights = '{network.weights}': no such file")
    if pretrained:
        hub_file(name, config.hf_hub_id)


def _warn_of_other_weights(network: NetworkKnobs) -> None:
    timm = _timm_with(network.backbone)
    known = [] if "." in network.backbone else timm.list_pretrained(f"{network.backbone}.*")
    if len(known) < 2 or not (network.pretrained or network.weights):
        return
    others = [name for name in known if name != full_name(network)]
    likely = next((name for name in others if name.endswith(".tv_in1k")), others[0])
    what = "its pictures are cut as for" if network.weights else "timm takes"
    warnings.warn(
        f"network.backbone = {network.backbone!r} has {len(known)} sets of weights, and {what} {full_name(network)}; "
        f"name the one you mean, such as {likely}",
        SafdaWarning,
        stacklevel=2,
    )


def _head_of(backbone: nn.Module) -> tuple[str, ...]:
    """Names of the classifier that a file of weights may hold and a backbone has not."""
    head = getattr(backbone, "pretrained_cfg", {}).get("classifier") or ()
    return (f"{head}.",) if isinstance(head, str) else tuple(f"{name}." for name in head)


def _timm_with(name: str | None) -> Any:
    """Import timm, and make sure that it knows a model."""
    guard_torchvision()
    import timm
    import timm.data

    known = timm.list_models()
    if name is not None and name.split(".")[0] not in known:
        hint = nearest(name, [*BACKBONES, *known])
        hint = hint if "mean" in hint else ""
        ours = ", ".join(BACKBONES)
        raise SafdaError(f"network.backbone = {name!r} is neither {ours} nor a model that timm knows{hint}")
    return timm


def _pretrained_config(name: str) -> Any:
    """What timm knows of a model's weights, which decides how pictures are cut for it; or say that it has none such."""
    timm = _timm_with(name)
    try:
        return timm.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError:
        known = timm.list_pretrained(f"{name.split('.')[0]}.*")
        hint = f"; known: {', '.join(known)}" if known else ""
        raise SafdaError(f"network.backbone = {name!r}: timm has no such weights{hint}") from None


def _timm_backbone(network: NetworkKnobs, sample: Tensor) -> nn.Module:
    name = network.backbone
    timm, config = _timm_with(name), _pretrained_config(name)
    # A transformer's positions belong to one size of picture; a CNN takes any and knows no such argument.
    options: dict[str, Any] = {"img_size": tuple(sample.shape[1:])} if config.fixed_input_size else {}
    if network.pretrained and not network.weights:
        options |= {"pretrained": True, "pretrained_cfg_overlay": {"file": str(hub_file(name, config.hf_hub_id))}}
    try:
        model: nn.Module = timm.create_model(name, num_classes=0, in_chans=sample.shape[0], **options)
        return model
    except Exception as error:  # timm raises many kinds
        raise SafdaError(f"network.backbone = {name!r} could not be made: {first_line(error)}") from error
