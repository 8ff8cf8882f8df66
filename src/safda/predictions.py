"""What a classifier says of a domain: of a run, or of an exported model where there is no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safda.io import write_table


@dataclass(frozen=True)
class Predictions:
    """What a classifier says of a domain.

    Attributes:
        ids: a name for each sample.
        classes: all class names, in the order of the columns of ``logits``.
        logits: n×K.
        embedding: B's output, n×width.
        skipped: what could not be read: (id, why).
    """

    ids: tuple[str, ...]
    classes: tuple[str, ...]
    logits: NDArray[np.float32]
    embedding: NDArray[np.float32]
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """The probability of each class, n×K."""
        shifted = np.exp(self.logits - self.logits.max(1, keepdims=True))
        probabilities: NDArray[np.float32] = shifted / shifted.sum(1, keepdims=True)
        return probabilities

    @property
    def labels(self) -> list[str]:
        """The most probable class of each sample."""
        return [self.classes[k] for k in self.logits.argmax(1)]

    @property
    def confidence(self) -> NDArray[np.float32]:
        """Its probability."""
        highest: NDArray[np.float32] = self.probabilities.max(1)
        return highest

    def ranked(self, most: int) -> list[list[tuple[str, float]]]:
        """Return for each sample its most probable classes and their probabilities, the first one first."""
        probabilities = self.probabilities
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, :most]
        return [
            [(self.classes[k], float(of_one[k])) for k in ks]
            for ks, of_one in zip(best.tolist(), probabilities, strict=True)
        ]

    def table(self, all_probabilities: bool = False) -> dict[str, list[Any]]:
        """Return columns: id, class, confidence and, on request, one column a class."""
        columns: dict[str, list[Any]] = {
            "id": list(self.ids),
            "class": self.labels,
            "confidence": self.confidence.tolist(),
        }
        if all_probabilities:
            columns.update({f"p({c})": p.tolist() for c, p in zip(self.classes, self.probabilities.T, strict=True)})
        return columns

    def write(
        self, path: str | Path, all_probabilities: bool = False, more: Mapping[str, list[Any]] | None = None
    ) -> None:
        """Write ``.csv``, ``.jsonl`` or ``.parquet``, whole or not at all; ``more`` has further columns."""
        write_table(Path(path), {**self.table(all_probabilities), **(more or {})})
