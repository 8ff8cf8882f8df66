"""Labels that a person gives of a few target samples: ``labels.csv``, and how they get to a training target.

A target's own labels are dropped at the door. :func:`with_known_labels` is the one other way in, for labels that a user
has named for this very purpose.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from safda.data.domain import AnyDomain
from safda.data.layouts import PATH_COLUMNS
from safda.errors import SafdaError, SafdaWarning, nearest
from safda.io import csv_delimiter, read_csv
from safda.text import csv_cell

OTHER = "(other)"  #: what a person says of a sample that is of none of the classes
_COLUMNS = "a list of labels has columns 'id' and 'label', as 'safda label' writes them"
_MOST_COMPARED = 5000  # names that a misspelt one is compared with


@dataclass(frozen=True)
class LabelList:
    """What ``labels.csv`` holds.

    Attributes:
        name: the file.
        ids: the samples.
        labels: what each is said to be; empty where nothing was said.
        columns: all columns, by name: those of the sampling design too.
    """

    name: str
    ids: tuple[str, ...]
    labels: tuple[str, ...]
    columns: Mapping[str, list[str]]

    @property
    def given(self) -> dict[str, str]:
        """Sample → label, where there is one."""
        return {each: label for each, label in zip(self.ids, self.labels, strict=True) if label}


def is_label_list(what: Any) -> bool:
    """Return whether something names a list of labels, and not a domain: a ``.csv`` with ids in place of paths."""
    if not isinstance(what, (str, Path)) or Path(what).suffix != ".csv" or not os.path.isfile(what):
        return False
    with open(what, encoding="utf-8-sig", errors="replace") as file:
        first = file.readline(4096)
    names = [name.strip().strip('"') for name in first.split(csv_delimiter(first))]
    return "id" in names and not set(PATH_COLUMNS) & set(names)


def read_labels(path: str | Path) -> LabelList:
    """Read a list of labels, each sample once."""
    columns = read_csv(Path(path), _COLUMNS)
    for name in ("id", "label"):
        if name not in columns:
            raise SafdaError(f"{path}: has no column {name!r}{nearest(name, columns)}")
    ids = columns["id"]
    if len(set(ids)) < len(ids):
        twice = next(each for number, each in enumerate(ids) if each in ids[:number])
        raise SafdaError(f"{path}: {twice!r} is there more than once; keep one of its lines")
    return LabelList(str(path), tuple(ids), tuple(label.strip() for label in columns["label"]), columns)


def sample_rows(wanted: Sequence[str], ids: Sequence[str], where: str) -> list[int]:
    """Return the row of each sample that is named, by its id or as a ``.csv`` file has it.

    >>> sample_rows(["b", "'=c"], ["a", "b", "=c"], "labels.csv")
    [1, 2]
    """
    rows = {**{csv_cell(each): row for row, each in enumerate(ids)}, **{each: row for row, each in enumerate(ids)}}
    unknown = [each for each in wanted if each not in rows]
    if unknown:
        more = f" (nor are {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        hint = nearest(unknown[0], ids if len(ids) <= _MOST_COMPARED else ())
        hint = hint if "mean" in hint else ""
        raise SafdaError(f"{where}: no sample of the target is called {unknown[0]!r}{more}{hint}")
    return [rows[each] for each in wanted]


def class_numbers(labels: Sequence[str], classes: Sequence[str], where: str) -> list[int]:
    """Return the number of each class that is named; −1 for :data:`OTHER`.

    >>> class_numbers(["dog", "(other)"], ["cat", "dog"], "labels.csv")
    [1, -1]
    """
    numbers = {
        OTHER: -1,
        **{csv_cell(name): k for k, name in enumerate(classes)},
        **{name: k for k, name in enumerate(classes)},
    }
    unknown = next((label for label in labels if label not in numbers), None)
    if unknown is not None:
        raise SafdaError(f"{where}: label {unknown!r} is no class of the source{nearest(unknown, [*classes, OTHER])}")
    return [numbers[label] for label in labels]


def with_known_labels(
    target: AnyDomain, given: Mapping[str, str], classes: Sequence[str], where: str = "target_labels"
) -> AnyDomain:
    """Return a target of which some labels are known; there is no other way for a target's labels to get anywhere.

    Args:
        target: an unlabelled domain.
        given: sample → class, by their names.
        classes: names of the source's classes.
        where: to begin an error with.

    >>> from safda.data import Domain
    >>> target = Domain("target", torch.zeros(3, 2))
    >>> with_known_labels(target, {"1": "dog"}, ["cat", "dog"]).known_labels
    tensor([-1,  1, -1])
    """
    ids = target.ids or tuple(map(str, range(len(target))))
    known = torch.full((len(target),), -1)
    numbers = class_numbers(list(given.values()), classes, where)
    known[sample_rows(list(given), ids, where)] = torch.tensor(numbers, dtype=torch.int64)
    if not (known >= 0).any():
        raise SafdaError(f"{where}: holds no label of a class; fill in the column 'label'")
    if -1 in numbers:
        told = f"{where}: {numbers.count(-1)} samples are of none of the classes, and teach nothing"
        warnings.warn(told, SafdaWarning, stacklevel=2)
    return replace(target, known_labels=known)


def known_labels(target: AnyDomain, classes: Sequence[str]) -> dict[str, str]:
    """Return what is known of a target, sample → class: what :func:`with_known_labels` takes."""
    if target.known_labels is None:
        return {}
    ids = target.ids or tuple(map(str, range(len(target))))
    return {ids[row]: classes[k] for row, k in enumerate(target.known_labels.tolist()) if k >= 0}
