"""F, B and C: backbone, bottleneck, classifier; and the few layers that torch lacks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from safda.errors import SafdaError, SafdaWarning, nearest
from safda.nn.vision import guard_torchvision
from safda.recipe import Network
from safda.weights import hub_file, load_backbone


class Dropout(nn.Dropout):
    """Dropout with a cheaper mask on the CPU (``benchmarks/step.py`` compares).

    torch draws one double per element there; 16 random bits are as good. Elsewhere it is torch's own.
    """

    def forward(self, rows: Tensor) -> Tensor:
        """Zero a share p of the entries and scale the rest."""
        if not self.training or self.p == 0 or rows.device.type != "cpu":
            return super().forward(rows)
        bits = torch.empty((rows.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        sixteen = bits.view(torch.int16)[: rows.numel()].view(rows.shape)
        kept = sixteen >= round(self.p * 65536) - 32768
        return rows * kept.to(rows.dtype).div_(1 - self.p)


class Bottleneck(nn.Module):
    """B: Linear · BatchNorm · ReLU · Dropout, in two halves, since SAF can mix between them.

    A single row in training has no variance: the running statistics stand in.

    Args:
        inputs: size of a feature.
        width: size of an embedding.
        dropout: share of entries that are dropped.
        per_domain: in training, normalise source rows by their own statistics; those that are kept for later, and
            the scale and offset that both domains share, are then the target's.
    """

    def __init__(self, inputs: int, width: int, dropout: float, per_domain: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width)
        self.norm: nn.Module = nn.BatchNorm1d(width)
        self.source_norm = nn.BatchNorm1d(width, affine=False, track_running_stats=False) if per_domain else None
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.linear.weight, std=0.005)
        nn.init.constant_(self.linear.bias, 0.1)

    def forward(self, features: Tensor) -> Tensor:
        """From feature to embedding."""
        return self.finish(self.linear(features))

    def finish(self, projected: Tensor, sources: int = 0) -> Tensor:
        """All that follows the linear layer.

        Args:
            projected: what it gave.
            sources: how many of the rows, the first ones, are a training batch's source.
        """
        return cast(Tensor, self.dropout(F.relu(self._normalised(projected, sources))))

    def _normalised(self, projected: Tensor, sources: int) -> Tensor:
        norm = self.norm
        if self.source_norm is not None and 1 < sources < len(projected):
            source = self.source_norm(projected[:sources]) * norm.weight + norm.bias
            return torch.cat([source, self._normalised(projected[sources:], 0)])
        if len(projected) == 1 and isinstance(norm, nn.BatchNorm1d):
            return F.batch_norm(projected, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
        return cast(Tensor, norm(projected))


def unit_moments(batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Give mean and variance of each dimension, over features made of length one, in double precision.

    >>> mean, variance = unit_moments([torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0], [0.0, 3.0], [4.0, 0.0]])])
    >>> mean.tolist(), variance.tolist()
    ([0.5, 0.5], [0.25, 0.25])
    """
    count, total, squares = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for batch in batches:
        rows = F.normalize(batch.to(total))
        count, total, squares = count + len(rows), total + rows.sum(0), squares + rows.square().sum(0)
    mean = total / count
    return mean, squares / count - mean.square()


class Centred(nn.Module):
    """Features as B learns fastest from them: each of length one, then centred, and of unit variance on average.

    Batch norm would take the mean away in any case, but only after it has swamped the gradient.
    """

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("scale", torch.tensor(1.0))

    def learn(self, batches: Iterable[Tensor]) -> None:
        """Take mean and scale from all features that there are."""
        mean, variance = unit_moments(batches)
        self.mean.copy_(mean)
        self.scale.fill_((len(mean) / variance.sum().clamp_min(1e-12)).sqrt())

    def forward(self, features: Tensor) -> Tensor:
        """Scale and centre."""
        return (F.normalize(features) - self.mean) * self.scale


def make_classifier(inputs: int, width: int, classes: int, dropout: float, init: str) -> nn.Sequential:
    """C: Linear · ReLU · Dropout · Linear."""
    network = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), Dropout(dropout), nn.Linear(width, classes))
    for layer in network:
        if isinstance(layer, nn.Linear):
            if init == "xavier":
                nn.init.xavier_normal_(layer.weight)
            else:
                nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
    return network


class SmallCNN(nn.Sequential):
    """Three convolutions for small pictures, trained from scratch."""

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

    Args:
        network: from n×3×h×w to n×d.
        mean: of each channel, where white is 1.
        std: likewise.
        frozen: whether it learns nothing.
        fixed_norm: whether batch norm keeps its statistics while the rest learns: those of a small batch are too rough
            to replace what a network was trained with.
    """

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
        """Let it learn nothing from now on, or all."""
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
        return cast(Tensor, self.network(self._normalised(inputs) if inputs.dtype == torch.uint8 else inputs))

    def _normalised(self, pictures: Tensor) -> Tensor:
        """Normalise line by line of pixels: an inner loop over three channels takes four times as long."""
        width = pictures.shape[3]
        lines = pictures.permute(0, 2, 3, 1).flatten(2).float()
        lines.sub_(255 * self.mean.repeat(width)).mul_(1 / (255 * self.std.repeat(width)))
        return lines.view(*lines.shape[:2], width, -1).permute(0, 3, 1, 2)


def make_backbone(network: Network, sample: Tensor, given: nn.Module | None = None) -> tuple[nn.Module, int]:
    """Make F for inputs like ``sample`` (one of them) and tell its feature size.

    A vector needs no backbone: it is a feature already.

    Args:
        network: names it: small-cnn or a model that timm knows, its weights, and whether it is frozen.
        sample: one input; of 8 bits, it is a picture that F normalises.
        given: a network to use in place of the named one.
    """
    if sample.ndim == 1:
        return nn.Identity(), sample.shape[0]
    if given is not None:
        backbone = given
    elif network.backbone == "small-cnn":
        backbone = SmallCNN(sample.shape[0])
    else:
        backbone = _timm_backbone(network, sample)
    if network.weights:
        load_backbone(backbone, Path(network.weights), _head_of(backbone))
    if sample.dtype == torch.uint8:
        backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if sample.dtype == torch.uint8 or network.frozen:
        config = picture_config(network.backbone, backbone)
        backbone = Backbone(backbone, config.mean, config.std, network.frozen, network.backbone_norm == "fixed")
    one = sample.unsqueeze(0)
    with torch.no_grad():
        features = backbone.eval()(one if one.dtype == torch.uint8 else one.float())
    if features.ndim != 2:
        raise SafdaError(f"the backbone must give n×d features, not {features.ndim} dimensions")
    return backbone.train(), features.shape[1]


class PictureConfig(NamedTuple):
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


def picture_config(name: str, given: nn.Module | None = None) -> PictureConfig:
    """Tell what pictures a backbone was made for, by its own configuration.

    >>> picture_config("small-cnn").side
    32
    """
    if isinstance(given, SmallCNN) or (given is None and name == "small-cnn"):
        return PictureConfig(32, 0.875, "bilinear", False, (0.5,) * 3, (0.5,) * 3)
    timm = _timm_with(name if given is None else None)
    if given is None:
        config = timm.data.resolve_data_config(pretrained_cfg=_pretrained_config(name).to_dict())
    else:
        config = timm.data.resolve_model_data_config(given)
    return PictureConfig(
        config["input_size"][-1],
        config["crop_pct"],
        config["interpolation"],
        config["crop_mode"] == "squash",
        tuple(config["mean"]),
        tuple(config["std"]),
    )


def full_name(network: Network) -> str:
    """Name a backbone with the tag of its weights, as timm completes it.

        >>> from safda.nn.vision import guard_torchvision
    from safda.recipe import Network
        >>> full_name(Network(backbone="tf_efficientnet_lite0")), full_name(Network())
        ('tf_efficientnet_lite0.in1k', 'small-cnn')
    """
    if network.backbone == "small-cnn":
        return network.backbone
    tag = _pretrained_config(network.backbone).tag
    return ".".join(filter(None, (network.backbone.split(".")[0], tag)))


def check_backbone(network: Network) -> None:
    """Find out in a moment whether a backbone and its weights can be had; warn where its name means several.

    Raises:
        SafdaError: if they cannot: there is no such model, no such file, or no connection to where timm has them.
    """
    name, pretrained = network.backbone, network.pretrained and not network.weights
    if name == "small-cnn":
        if pretrained:
            raise SafdaError(
                "network.backbone = 'small-cnn' has no pretrained weights; 'recipe = digits' trains it from scratch"
            )
        return
    config = _pretrained_config(name)
    _warn_of_other_weights(network)
    if network.weights and not Path(network.weights).is_file():
        raise SafdaError(f"network.weights = '{network.weights}': no such file")
    if pretrained:
        hub_file(name, config.hf_hub_id)


def _warn_of_other_weights(network: Network) -> None:
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
        hint = nearest(name, ["small-cnn", *known])
        hint = hint if "mean" in hint else ""
        raise SafdaError(f"network.backbone = {name!r} is neither small-cnn nor a model that timm knows{hint}")
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


def _timm_backbone(network: Network, sample: Tensor) -> nn.Module:
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
        raise SafdaError(f"network.backbone = {name!r} could not be made: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


class _SumOverProcesses(torch.autograd.Function):
    """All processes' sum; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


class SynchronisedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm over all processes, on any device; torch's own is for GPUs only."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least two dimensions, got {input.ndim}")

    def forward(self, rows: Tensor) -> Tensor:
        """Normalise by the statistics of every process's rows together."""
        if not self.training or not dist.is_initialized() or dist.get_world_size() == 1:
            return super().forward(rows)
        over = [d for d in range(rows.ndim) if d != 1]
        local = torch.cat([rows.sum(over), rows.square().sum(over), rows.new_tensor([rows.numel() / rows.shape[1]])])
        total = cast(Tensor, _SumOverProcesses.apply(local))  # type: ignore[no-untyped-call]
        count = total[-1].detach()
        mean, square = total[:-1].div(count).chunk(2)
        variance = square - mean.square()
        if self.running_mean is not None and self.running_var is not None and self.momentum is not None:
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(variance * count / (count - 1), self.momentum)
                if self.num_batches_tracked is not None:
                    self.num_batches_tracked.add_(1)
        shape = [1, -1] + [1] * (rows.ndim - 2)
        scale = (variance + self.eps).rsqrt()
        if self.affine:
            scale = scale * self.weight
        normed: Tensor = (rows - mean.view(shape)) * scale.view(shape)
        return normed + self.bias.view(shape) if self.affine else normed


def synchronise_batch_norm(module: nn.Module, device: torch.device) -> nn.Module:
    """Replace every batch norm by one that counts all processes' rows; names and weights stay."""
    if device.type == "cuda":
        return cast(nn.Module, nn.SyncBatchNorm.convert_sync_batchnorm(module))  # type: ignore[no-untyped-call]
    for name, child in module.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            synchronised = SynchronisedBatchNorm(
                child.num_features, child.eps, child.momentum, child.affine, child.track_running_stats
            )
            synchronised.load_state_dict(child.state_dict())
            setattr(module, name, synchronised)
        else:
            synchronise_batch_norm(child, device)
    return module
