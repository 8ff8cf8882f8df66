"""F, B and C: backbone, bottleneck, classifier; and the few layers that torch lacks."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from safda.errors import SafdaError, nearest
from safda.weights import load_backbone


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
    """

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float], frozen: bool) -> None:
        super().__init__()
        self.network = network.requires_grad_(not frozen)
        self.frozen = frozen
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))

    def train(self, mode: bool = True) -> Backbone:
        """Go into training mode, unless frozen."""
        super().train(mode and not self.frozen)
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


def make_backbone(
    name: str,
    sample: Tensor,
    pretrained: bool,
    weights: str = "",
    frozen: bool = False,
    given: nn.Module | None = None,
) -> tuple[nn.Module, int]:
    """Make F for inputs like ``sample`` (one of them) and tell its feature size.

    A vector needs no backbone: it is a feature already.

    Args:
        name: small-cnn, or a model that timm knows.
        sample: one input; of 8 bits, it is a picture that F normalises.
        pretrained: start from timm's weights.
        weights: start from this file instead.
        frozen: never train it.
        given: a network to use in place of the named one.
    """
    if sample.ndim == 1:
        return nn.Identity(), sample.shape[0]
    if given is not None:
        backbone = given
    elif name == "small-cnn":
        backbone = SmallCNN(sample.shape[0])
    else:
        backbone = _timm_backbone(name, sample, pretrained and not weights)
    if weights:
        load_backbone(backbone, Path(weights), _head_of(backbone))
    if sample.dtype == torch.uint8:
        backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if sample.dtype == torch.uint8 or frozen:
        _, mean, std = picture_config(name, backbone)
        backbone = Backbone(backbone, mean, std, frozen)
    one = sample.unsqueeze(0)
    with torch.no_grad():
        features = backbone.eval()(one if one.dtype == torch.uint8 else one.float())
    if features.ndim != 2:
        raise SafdaError(f"the backbone must give n×d features, not {features.ndim} dimensions")
    return backbone.train(), features.shape[1]


def picture_config(name: str, given: nn.Module | None = None) -> tuple[int, Sequence[float], Sequence[float]]:
    """Tell what pictures a backbone was made for: their side, and mean and standard deviation of each channel.

    >>> picture_config("small-cnn")
    (32, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    """
    if isinstance(given, SmallCNN) or (given is None and name == "small-cnn"):
        return 32, (0.5,) * 3, (0.5,) * 3
    timm = _timm_with(name if given is None else None)
    if given is None:
        known = timm.get_pretrained_cfg(name)
        config = timm.data.resolve_data_config(pretrained_cfg=known.to_dict() if known else {})
    else:
        config = timm.data.resolve_model_data_config(given)
    return config["input_size"][-1], config["mean"], config["std"]


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


def _timm_backbone(name: str, sample: Tensor, pretrained: bool) -> nn.Module:
    timm = _timm_with(name)
    # A transformer's positions belong to one size of picture; a CNN takes any and knows no such argument.
    fixed = getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False)
    size = {"img_size": tuple(sample.shape[1:])} if fixed else {}
    try:
        model: nn.Module = timm.create_model(
            name, pretrained=pretrained, num_classes=0, in_chans=sample.shape[0], **size
        )
        return model
    except Exception as error:  # timm and its hub client raise many kinds
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SafdaError(
            f"network.backbone = {name!r} could not be made ({first}); offline, give a file as network.weights, "
            "or set network.pretrained = false"
        ) from error


def guard_torchvision() -> None:
    """Let torchvision import beside a torch whose build it was not compiled for.

    Its Python half registers shapes for two of its own C++ operators, and fails where the C++ half did not load.
    Declaring their schemas is enough for transforms, models and timm, none of which call them.
    """
    with _GUARD:  # threads that decode pictures may come here together
        try:
            import torchvision
        except RuntimeError:
            for operator in ("nms", "qnms"):
                torch.library.define(
                    f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )
            import torchvision  # noqa: F401


_GUARD = threading.Lock()


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
