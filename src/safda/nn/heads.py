"""What stands on a backbone: centring, B (bottleneck) and C (classifier)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn
from torch.nn import functional as F


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
        per_domain: in training, normalise source rows by their own statistics, and mixes of both domains by theirs;
            those that are kept for later, and the scale and offset that all share, are then the target's.
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
            sources: how many of the rows, the first ones, are a training batch's source, or mixes with it.
        """
        return cast(Tensor, self.dropout(F.relu(self._normalised(projected, sources))))

    def set_statistics(self, mean: Tensor, variance: Tensor) -> None:
        """Replace what evaluation normalises by."""
        self.norm.get_buffer("running_mean").copy_(mean)
        self.norm.get_buffer("running_var").copy_(variance)

    def _normalised(self, projected: Tensor, sources: int) -> Tensor:
        norm = self.norm
        if self.source_norm is not None and sources > 1:
            source = self.source_norm(projected[:sources]) * norm.weight + norm.bias
            rest = projected[sources:]
            return torch.cat([source, self._normalised(rest, 0)]) if len(rest) else source
        if isinstance(norm, nn.BatchNorm1d) and norm.training and len(projected) == 1:
            return F.batch_norm(projected, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
        return cast(Tensor, norm(projected))


def moments(batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and variance of each dimension, in double precision.

    >>> mean, variance = moments([torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 0.0]])])
    >>> mean.tolist(), variance.tolist()
    ([2.0, 0.0], [1.0, 0.0])
    """
    count, total, squares = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for batch in batches:
        rows = batch.to(total)
        count, total, squares = count + len(rows), total + rows.sum(0), squares + rows.square().sum(0)
    mean = total / count
    return mean, squares / count - mean.square()


def standard_scale(mean: Tensor, variance: Tensor) -> Tensor:
    """Return what gives each dimension unit variance; nothing of one that does not vary, which tells nothing.

    >>> standard_scale(torch.tensor([1.0, 5.0]), torch.tensor([4.0, 0.0])).tolist()
    [0.5, 0.0]
    """
    varies = variance > _LEAST_VARIANCE * mean.square()
    return torch.where(varies, variance.clamp_min(1e-30).rsqrt(), 0)


def signed_root(features: Tensor) -> Tensor:
    """Return square roots that keep their sign: in counts and activations, few large values would outshout the rest.

    Power normalisation: Perronnin et al., ECCV 2010.

    >>> signed_root(torch.tensor([4.0, -9.0])).tolist()
    [2.0, -3.0]
    """
    return features.sign() * features.abs().sqrt()


class FeatureScaling(nn.Module):
    """Features as B learns fastest from them: scaled, centred, and turned to their principal components.

    Batch norm would take the mean away in any case, but only after it has swamped the gradient. Most directions of a
    wide feature hardly vary, and each costs as much of a step as any other.

    Args:
        inputs: size of a feature.
        kind: ``"centred"``: each of length one, then centred, and of unit variance on average; ``"rooted"``: the same
            of their signed square roots; ``"standardised"``: each dimension centred and of unit variance; ``"as-is"``:
            as they come, but centred where they are turned.
        components: how many principal components of both domains together to keep; 0: all, unturned.
    """

    def __init__(self, inputs: int, kind: str = "centred", components: int = 0) -> None:
        super().__init__()
        self.kind, self.components = kind, min(components, inputs)
        self.outputs = self.components or inputs
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs) if kind == "standardised" else torch.tensor(1.0))
        if self.components:
            self.register_buffer("directions", torch.eye(inputs)[:, : self.components].clone())

    def learn(self, batches: Iterable[Tensor], some: Tensor) -> None:
        """Take mean and scale from all features of both domains, and the principal components from some of them."""
        mean, variance = moments(self._of_length(batch.double()) for batch in batches)
        self.mean.copy_(mean)
        if self.kind in ("centred", "rooted"):
            self.scale.fill_((len(mean) / variance.sum().clamp_min(1e-12)).sqrt())
        elif self.kind == "standardised":
            self.scale.copy_(standard_scale(mean, variance))
        if self.components:
            directions = principal_directions(self._scaled(some.to(self.mean)).cpu(), self.components)
            self.get_buffer("directions").copy_(directions)

    def _of_length(self, features: Tensor) -> Tensor:
        if self.kind == "rooted":
            features = signed_root(features)
        return F.normalize(features) if self.kind in ("centred", "rooted") else features

    def _scaled(self, features: Tensor) -> Tensor:
        return (self._of_length(features) - self.mean) * self.scale

    def forward(self, features: Tensor) -> Tensor:
        """Scale, centre and turn."""
        scaled = self._scaled(features)
        return scaled @ self.get_buffer("directions") if self.components else scaled


_LEAST_VARIANCE = 1e-12  # of a dimension, beside its mean squared: less is rounding


def principal_directions(rows: Tensor, count: int) -> Tensor:
    """Return the directions in which centred rows vary most, one a column; with few rows, the last ones are zero.

    >>> rows = torch.tensor([[3.0, 0.1, 0.0], [-3.0, 0.1, 0.0], [0.0, -0.2, 0.0]])
    >>> principal_directions(rows, 1).abs().round(decimals=3).flatten().tolist()
    [1.0, 0.0, 0.0]
    """
    known = min(count, *rows.shape)
    found = PCA(known, random_state=0).fit(rows.numpy()).components_
    return F.pad(torch.from_numpy(found).float().T, (0, count - known))


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
