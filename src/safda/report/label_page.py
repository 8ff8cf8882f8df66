"""A page on which a person labels samples by keyboard: one file, that asks nothing of any network.

What comes from elsewhere (names of classes and samples) is in it as JSON, and the page's script shows it as text. A
policy within the page lets no other script run, and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from safda.data import AnyDomain, Domain, ImageDomain
from safda.data.images import decode
from safda.data.labels import OTHER
from safda.data.loader import ProgressCallback
from safda.data.pixels import Transform
from safda.io import disk_errors, write_text
from safda.report.page import asset, digest, json_in_html
from safda.report.thumbnails import pixels_of
from safda.text import csv_cell, printable

_SIDE = 256  # pixels of a picture's short side
_QUALITY = 80  # of a JPEG
_MOST_VALUES = 64  # of a row of numbers that are drawn
_MOST_TOLD = 8  # … and that are written out


def write_label_page(
    path: Path,
    columns: Mapping[str, Sequence[Any]],
    classes: Sequence[str],
    previews: Sequence[Mapping[str, Any]],
    file: str = "labels.csv",
) -> None:
    """Write the page, whole or not at all.

    Args:
        path: where to.
        columns: the list of samples, as :func:`safda.evaluation.survey.label_list` gives it.
        classes: names of the classes.
        previews: what is to be seen of each sample, from :func:`previews_of`.
        file: what to call the list that the page saves.
    """
    content = label_page(columns, classes, previews, file)
    with disk_errors(path):
        write_text(path, content)


def label_page(
    columns: Mapping[str, Sequence[Any]],
    classes: Sequence[str],
    previews: Sequence[Mapping[str, Any]],
    file: str = "labels.csv",
) -> str:
    """Return the page's HTML; the arguments are those of :func:`write_label_page`.

    >>> page = label_page({"id": ["a"], "label": [""]}, ["cat", "</script>"], [{}])
    >>> page.count("</script>"), "https://" in page
    (2, False)
    """
    others = [name for name in columns if name != "label"]
    rows = zip(*(columns[name] for name in others), strict=True)
    samples = [
        {"name": printable(name), "label": label, "cells": [str(csv_cell(cell)) for cell in row], **preview}
        for name, label, row, preview in zip(columns["id"], columns["label"], rows, previews, strict=True)
    ]
    data = {
        "key": _key(columns["id"], classes),
        "file": file,
        "other": OTHER,
        "columns": others,
        "classes": [{"name": printable(name), "value": csv_cell(name)} for name in classes],
        "samples": samples,
    }
    page, style, script = (asset(f"label.{kind}") for kind in ("html", "css", "js"))
    policy = f"default-src 'none'; img-src data:; style-src '{digest(style)}'; script-src '{digest(script)}'"
    parts = {"policy": policy, "style": style, "script": script, "data": str(json_in_html(data))}
    head, *pieces = page.split("@")
    marks, rest = pieces[::2], pieces[1::2]
    return head + "".join(parts[mark] + text for mark, text in zip(marks, rest, strict=True))


def _key(ids: Sequence[str], classes: Sequence[str]) -> str:
    """Return what a browser remembers a list by."""
    return hashlib.sha256(json.dumps([list(ids), list(classes)]).encode()).hexdigest()[:16]


# ----------------------------------------------------------------------------------------------- what is to be seen


def previews_of(
    target: AnyDomain, rows: Sequence[int], progress: ProgressCallback | None = None
) -> list[dict[str, Any]]:
    """Return what a person can see of some samples: the picture or, of a row of numbers, the first ones of it.

    Args:
        target: where they are from.
        rows: which ones.
        progress: called with (done, total) as pictures are read.
    """
    found = []
    for preview in _previews(target, rows):
        found.append(preview)
        if progress:
            progress(len(found), len(rows))
    return found


def _previews(target: AnyDomain, rows: Sequence[int]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if isinstance(target, ImageDomain):
            pixels = decode(target.inputs.paths[row], Transform(_SIDE, crop=1.0))
            yield {"picture": _data_uri(pixels_of(pixels), "JPEG")}
        else:
            yield _of_numbers(target, target.batch(torch.tensor([row]))[0])


def _of_numbers(target: Domain, sample: Tensor) -> dict[str, Any]:
    if sample.ndim == 3:
        return {"picture": _data_uri(pixels_of(sample), "PNG"), "pixels": True}
    values = [round(value, 6) for value in sample.flatten()[:_MOST_VALUES].tolist()]
    first = ", ".join(f"{value:.4g}" for value in values[:_MOST_TOLD])
    reach = f"{sample.numel()} numbers from {float(sample.min()):.4g} to {float(sample.max()):.4g}"
    return {"values": values, "told": f"{reach}; the first ones are {first}"}


def _data_uri(pixels: NDArray[np.uint8], kind: str) -> str:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind, quality=_QUALITY)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(content.getvalue()).decode()}"
