"""What a run said of its target, read from its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safda.data.labels import class_numbers, sample_rows
from safda.errors import SafdaError
from safda.io import read_csv
from safda.text import csv_cell
from safda.training.checkpoint import RunFolder


@dataclass(frozen=True)
class Answers:
    """What a run said of its target, as its ``predictions.csv`` has it.

    Attributes:
        columns: id, class, confidence and, where there is one to compare with, source_only, as texts.
        confidence: how sure the classifier is of each sample.
        predicted: class numbers.
        source_only: class numbers that a classifier gives which only learned the source; None where there is none.
        learned: whether the run has learned a sample's label.
    """

    columns: Mapping[str, list[str]]
    confidence: NDArray[np.float64]
    predicted: NDArray[np.int64]
    source_only: NDArray[np.int64] | None
    learned: NDArray[np.bool_]

    @property
    def ids(self) -> list[str]:
        """A name for each sample."""
        return self.columns["id"]

    @property
    def changed(self) -> NDArray[np.bool_] | None:
        """Whether source only answers otherwise."""
        return None if self.source_only is None else self.predicted != self.source_only


def read_answers(run: RunFolder) -> Answers:
    """Read what a run said of its target."""
    path, data = run.path / "predictions.csv", run.data
    if not path.is_file():
        raise SafdaError(f"{path}: is not there; 'safda resume {run.path}' writes it where it never was")
    columns = read_csv(path, "it has columns 'id', 'class' and 'confidence'")
    if not {"id", "class", "confidence"} <= columns.keys() or len(columns["id"]) != data["target"]["samples"]:
        raise SafdaError(f"{path}: is damaged: it is not what the run said of its target")
    predicted, source_only = (
        np.array(class_numbers(columns[name], data["classes"], str(path))) if name in columns else None
        for name in ("class", "source_only")
    )
    assert predicted is not None
    learned = np.zeros(len(predicted), bool)
    learned[sample_rows([csv_cell(each) for each in data.get("target_labels", ())], columns["id"], str(path))] = True
    return Answers(columns, _numbers(columns["confidence"], str(path)), predicted, source_only, learned)


def _numbers(cells: Sequence[str], where: str) -> NDArray[np.float64]:
    try:
        values = np.array([float(each) for each in cells])
    except ValueError:
        values = np.array([np.nan])
    if not ((values >= 0) & (values <= 1)).all():
        raise SafdaError(f"{where}: is damaged: a confidence is not between 0 and 1")
    return values
