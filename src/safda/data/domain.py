"""A domain: inputs, and for a source or for scoring their labels.

There are two kinds, since picture files have no input size before a network has said one: a :class:`Domain` gives
batches, an :class:`ImageDomain` does not. :func:`safda.extraction.for_network` makes the first of the second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safda.data.files import ImageFiles
from safda.errors import SafdaError

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none of its own

#: Uniform numbers that each sample of a training batch may use: ten tries at a crop, and a flip.
UNIFORMS_PER_SAMPLE = 41


class StoredSamples(Protocol):
    """Samples that stay on disk."""

    def __len__(self) -> int: ...

    def take(self, rows: Tensor) -> Self:
        """Return these samples alone, as unread as before."""

    def fingerprint(self) -> str:
        """Return a digest of all samples."""


class LazyInputs(StoredSamples, Protocol):
    """Samples that stay on disk and are read when asked for."""

    @property
    def shape(self) -> Sequence[int]:
        """How many samples, and the shape of one."""

    @property
    def dtype(self) -> torch.dtype:
        """The type that a batch comes in."""

    def __getitem__(self, rows: Tensor, /) -> Tensor: ...

    def augmented(self, rows: Tensor, uniforms: NDArray[np.float64]) -> Tensor:
        """Return these rows as training sees them; ``uniforms`` are uniform numbers, a line for each row."""


@dataclass(frozen=True)
class _Samples:
    """What both kinds of domain have; :class:`Domain` says what it is."""

    name: str
    inputs: Tensor | StoredSamples
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    ids: tuple[str, ...] | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    known_labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def in_memory(self) -> bool:
        """Whether a batch costs no reading."""
        return isinstance(self.inputs, Tensor)

    def take(self, rows: Tensor) -> Self:
        """Return a domain of these samples alone; what stays on disk is not read for it."""
        inputs = self.inputs[rows] if isinstance(self.inputs, Tensor) else self.inputs.take(rows)
        labels, known = (None if each is None else each[rows] for each in (self.labels, self.known_labels))
        ids = None if self.ids is None else tuple(self.ids[row] for row in rows.tolist())
        return replace(self, inputs=inputs, labels=labels, ids=ids, known_labels=known)

    def unlabelled(self) -> Self:
        """Drop the labels: what a training target goes through at the door."""
        return replace(self, labels=None, classes=(), known_labels=None)

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


@dataclass(frozen=True)
class Domain(_Samples):
    """Samples from one place, which come in batches.

    Attributes:
        name: what the user calls it: a path, or the name of an embedded domain.
        inputs: all samples, first dimension counts them; vectors are features already.
        labels: class numbers, or None for an unlabelled domain.
        classes: the classes' names; empty for an unlabelled domain.
        ids: a name for each sample; its row number where nothing better is known.
        skipped: what could not be used: (id, why).
        known_labels: of a training target, the classes of those few samples that a user has labelled for it, −1 of all
            others; None if there are none, as usual. Only :func:`safda.data.labels.with_known_labels` sets it.
    """

    inputs: Tensor | LazyInputs

    def blank(self) -> Tensor:
        """Return a sample of zeros, of this domain's shape and type."""
        return torch.zeros(tuple(self.inputs.shape[1:]), dtype=self.inputs.dtype)

    def batch(self, rows: Tensor, uniforms: NDArray[np.float64] | None = None) -> Tensor:
        """Return the inputs of these rows; with ``uniforms``, as training sees them."""
        if uniforms is None or isinstance(self.inputs, Tensor):
            return self.inputs[rows]
        return self.inputs.augmented(rows, uniforms)


@dataclass(frozen=True)
class ImageDomain(_Samples):
    """Pictures as they are on disk, whatever their sizes."""

    inputs: ImageFiles


#: What a user may name: only some of it comes in batches as it is.
AnyDomain: TypeAlias = Domain | ImageDomain


def _bytes(values: Tensor) -> Any:
    return np.ascontiguousarray(values.numpy()).data
