"""The contract that every adversarial (or other domain-aligning) method keeps.

A method is one :class:`Adversary` in one file. It is built for a :class:`Site` (the sizes at hand and a maker of
classifiers), and at each step reads a :class:`JointBatch` and answers with named losses. It knows nothing of SAF,
of the optimizer or of the loop.

Room is left on purpose: a method may own any number of classifiers (``site.make_classifier``) or
discriminators, may penalise the embedding directly, may weigh a distance by ``weight`` instead of reversing
a gradient, may act in stages (``progress``), and may answer for the target itself (``predict``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Site:
    """What a method is built for.

    Attributes:
        embedding_dim: size of B's output.
        classes: number of classes K.
        make_classifier: makes a fresh network of C's shape, from embedding to logits.
        make_bottleneck: makes a fresh network of B's shape, from feature to embedding.
    """

    embedding_dim: int
    classes: int
    make_classifier: Callable[[], nn.Module]
    make_bottleneck: Callable[[], nn.Module]


@dataclass(frozen=True)
class JointBatch:
    """One step's tensors, source rows first, then target rows, as they went through the network together.

    Attributes:
        features: φ = F(x).
        embedding: B(φ).
        logits: C(B(φ)).
        labels: the source rows' labels; there are as many source rows as labels.
    """

    features: Tensor
    embedding: Tensor
    logits: Tensor
    labels: Tensor

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Part a tensor of all rows into source and target."""
        sources = len(self.labels)
        return rows[:sources], rows[sources:]


@dataclass(frozen=True)
class AdversaryOutput:
    """A method's answer to one step.

    Attributes:
        losses: each is added to the step's total as it is, so a method weighs its own.
        health: numbers that tell a person whether the game is balanced; no gradient flows from them.
    """

    losses: dict[str, Tensor]
    health: dict[str, Tensor] = field(default_factory=dict)


class Adversary(nn.Module):
    """Base of all methods. A subclass defines ``__init__(site, **its own knobs)`` and ``forward``."""

    def forward(self, batch: JointBatch, weight: float, progress: float) -> AdversaryOutput:
        """Give this step's losses.

        Args:
            batch: the step's tensors.
            weight: λ_D at this step. Methods with a gradient reversal hand it to :func:`reverse`.
            progress: t/T, for methods that act in stages.
        """
        raise NotImplementedError(f"{type(self).__name__} must define forward")

    def predict(self, features: Tensor, embedding: Tensor, logits: Tensor) -> Tensor:
        """Logits that the adapted classifier answers with; C's own unless a method has better ones."""
        return logits


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * -ctx.weight, None


def reverse(rows: Tensor, weight: float) -> Tensor:
    """Gradient reversal: the identity forwards, times −weight backwards.

    >>> x = torch.ones(3, requires_grad=True)
    >>> reverse(x, 0.5).sum().backward()
    >>> x.grad
    tensor([-0.5000, -0.5000, -0.5000])
    """
    reversed_rows: Tensor = _Reverse.apply(rows, weight)  # type: ignore[no-untyped-call]
    return reversed_rows
