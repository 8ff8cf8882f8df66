"""A domain: inputs, and for a source or for scoring their labels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safda.errors import SafdaError

#: Uniform numbers that each sample of a training batch may use: ten tries at a crop, and a flip.
UNIFORMS_PER_SAMPLE = 41


class LazyInputs(Protocol):
    """Samples that stay on disk and are read when asked for."""

    @property
    def shape(self) -> Sequence[int]:
        """How many samples, and the shape of one."""

    @property
    def dtype(self) -> torch.dtype:
        """The type that a batch comes in."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Tensor, /) -> Tensor: ...

    def augmented(self, rows: Tensor, uniforms: NDArray[np.float64]) -> Tensor:
        """Return these rows as training sees them; ``uniforms`` are uniform numbers, a line for each row."""

    def take(self, rows: Tensor) -> LazyInputs:
        """Return these samples alone, as unread as before."""

    def fingerprint(self) -> str:
        """Return a digest of all samples."""


@dataclass(frozen=True)
class Domain:
    """Samples from one place.

    Attributes:
        name: what the user calls it: a path, or the name of an embedded domain.
        inputs: all samples, first dimension counts them; vectors are features already.
        labels: class numbers, or None for an unlabelled domain.
        classes: the classes' names; empty for an unlabelled domain.
        ids: a name for each sample; its row number where nothing better is known.
        skipped: what could not be used: (id, why).
    """

    name: str
    inputs: Tensor | LazyInputs
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    ids: tuple[str, ...] | None = None
    skipped: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def in_memory(self) -> bool:
        """Whether a batch costs no reading."""
        return isinstance(self.inputs, Tensor)

    def blank(self) -> Tensor:
        """Return a sample of zeros, of this domain's shape and type."""
        return torch.zeros(tuple(self.inputs.shape[1:]), dtype=self.inputs.dtype)

    def batch(self, rows: Tensor, uniforms: NDArray[np.float64] | None = None) -> Tensor:
        """Return the inputs of these rows; with ``uniforms``, as training sees them."""
        if uniforms is None or isinstance(self.inputs, Tensor):
            return self.inputs[rows]
        return self.inputs.augmented(rows, uniforms)

    def take(self, rows: Tensor) -> Domain:
        """Return a domain of these samples alone; what stays on disk is not read for it."""
        inputs = self.inputs[rows] if isinstance(self.inputs, Tensor) else self.inputs.take(rows)
        labels = None if self.labels is None else self.labels[rows]
        ids = None if self.ids is None else tuple(self.ids[row] for row in rows.tolist())
        return replace(self, inputs=inputs, labels=labels, ids=ids)

    def unlabelled(self) -> Domain:
        """Drop the labels: what a training target goes through at the door."""
        return replace(self, labels=None, classes=())

    def labelled(self, purpose: str) -> tuple[Tensor, tuple[str, ...]]:
        """Return labels and class names, or say that there are none."""
        if self.labels is None:
            raise SafdaError(f"{self.name}: has no labels, and {purpose} needs them")
        return self.labels, self.classes

    def fingerprint(self) -> str:
        """Return a digest of inputs and labels, to tell whether data have changed since a run began."""
        if isinstance(self.inputs, Tensor):
            digest = hashlib.sha256(str((tuple(self.inputs.shape), self.classes)).encode())
            digest.update(_bytes(self.inputs))
        else:
            digest = hashlib.sha256(f"{self.inputs.fingerprint()} {self.classes}".encode())
        if self.labels is not None:
            digest.update(_bytes(self.labels))
        return digest.hexdigest()[:32]


def _bytes(values: Tensor) -> Any:
    return np.ascontiguousarray(values.numpy()).data
