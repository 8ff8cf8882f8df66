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
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from safda.data import AnyDomain, Domain, ImageDomain
from safda.data.images import decode
from safda.data.labels import OTHER
from safda.data.loader import ProgressCallback
from safda.data.pixels import Transform
from safda.io import disk_errors, write_text
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
    page, style, script = (_asset(f"label.{kind}") for kind in ("html", "css", "js"))
    policy = f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {_digest(script)}"
    parts = {"policy": policy, "style": style, "script": script, "data": _within_html(data)}
    head, *pieces = page.split("@")
    marks, rest = pieces[::2], pieces[1::2]
    return head + "".join(parts[mark] + text for mark, text in zip(marks, rest, strict=True))


def _asset(name: str) -> str:
    return resources.files("safda.report").joinpath("assets", name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    """Return what a policy allows an inline script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _within_html(data: Any) -> str:
    """Return JSON in which nothing can end the element that it stands in."""
    return json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


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
            yield {"picture": _data_uri(pixels.permute(1, 2, 0), "JPEG")}
        else:
            yield _of_numbers(target, target.batch(torch.tensor([row]))[0])


def _of_numbers(target: Domain, sample: Tensor) -> dict[str, Any]:
    if sample.ndim == 3:
        return {"picture": _data_uri(_as_pixels(sample), "PNG"), "pixels": True}
    values = [round(value, 6) for value in sample.flatten()[:_MOST_VALUES].tolist()]
    first = ", ".join(f"{value:.4g}" for value in values[:_MOST_TOLD])
    reach = f"{sample.numel()} numbers from {float(sample.min()):.4g} to {float(sample.max()):.4g}"
    return {"values": values, "told": f"{reach}; the first ones are {first}"}


def _as_pixels(sample: Tensor) -> Tensor:
    """Bring a c×h×w sample to bytes, dark to light over what it reaches."""
    values = sample.float().permute(1, 2, 0)
    span = float(values.max() - values.min()) or 1.0
    return ((values - values.min()) / span * 255).round().to(torch.uint8)


def _data_uri(pixels: Tensor, kind: str) -> str:
    content = io.BytesIO()
    array = np.ascontiguousarray(pixels.numpy())
    Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array).save(content, kind, quality=_QUALITY)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(content.getvalue()).decode()}"
