"""Batch norm over all processes."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn


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


def _sum_over_processes(values: Tensor) -> Tensor:
    return cast(Tensor, _SumOverProcesses.apply(values))  # type: ignore[no-untyped-call]


class SynchronisedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm over all processes, on any device; torch's own is for GPUs only."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least two dimensions, got {input.ndim}")

    def forward(self, rows: Tensor) -> Tensor:
        """Normalise by the statistics of every process's rows together."""
        if not self.training or not dist.is_initialized() or dist.get_world_size() == 1:
            return super().forward(rows)
        over, shape = [d for d in range(rows.ndim) if d != 1], [1, -1] + [1] * (rows.ndim - 2)
        local = torch.cat([rows.sum(over), rows.new_tensor([rows.numel() / rows.shape[1]])])
        total = _sum_over_processes(local)
        count = total[-1].detach()
        mean = total[:-1] / count
        centred = rows - mean.view(shape)  # squares of what lies far from zero would lose their digits
        variance = _sum_over_processes(centred.square().sum(over)) / count
        if self.running_mean is not None and self.running_var is not None and self.momentum is not None:
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(variance * count / (count - 1), self.momentum)
                if self.num_batches_tracked is not None:
                    self.num_batches_tracked.add_(1)
        scale = (variance + self.eps).rsqrt()
        if self.affine:
            scale = scale * self.weight
        normed: Tensor = centred * scale.view(shape)
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
