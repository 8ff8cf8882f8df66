"""Small pictures of samples, side by side in one JPEG: a hundred headers would weigh as much as what is in them."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from safda.data import Domain
from safda.data.loader import evaluation_batches

_QUALITY = 72  # of a JPEG


@dataclass(frozen=True)
class ContactSheet:
    """Pictures of a domain, as they are shown small.

    Attributes:
        uri: the picture of them all, as a ``data:`` address.
        columns: how many stand in a line.
        lines: how many of these there are.
        places: row number of a sample → which of them it is.
    """

    uri: str
    columns: int
    lines: int
    places: dict[int, int]


def holds_pictures(domain: Domain) -> bool:
    """Return whether samples are pictures, which can be shown: grey, or in colour."""
    return len(domain.inputs.shape) == 4 and domain.inputs.shape[1] in (1, 3)


def contact_sheet(domain: Domain, rows: Iterable[int], tile: int) -> ContactSheet:
    """Draw some samples of a domain of pictures, as a network sees them.

    Args:
        domain: see :func:`holds_pictures`.
        rows: which samples.
        tile: the side of one, in pixels: a multiple of 8, so that no JPEG block has a share in two of them.
    """
    wanted = sorted(set(rows))
    columns = math.ceil(math.sqrt(len(wanted)))
    lines = math.ceil(len(wanted) / columns)
    sheet = Image.new("RGB", (columns * tile, lines * tile))
    place = 0
    for batch in evaluation_batches(domain.take(torch.tensor(wanted))):
        for picture in batch:
            small = Image.fromarray(pixels_of(picture)).resize((tile, tile), Image.Resampling.BICUBIC, reducing_gap=2.0)
            sheet.paste(small, (place % columns * tile, place // columns * tile))
            place += 1
    content = io.BytesIO()
    sheet.save(content, "JPEG", quality=_QUALITY, subsampling=0)
    uri = f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"
    return ContactSheet(uri, columns, lines, {row: k for k, row in enumerate(wanted)})


def pixels_of(picture: Tensor) -> NDArray[np.uint8]:
    """Return h×w×3 pixels; numbers that are no bytes reach from their least to their largest."""
    values = picture.float().expand(3, -1, -1).permute(1, 2, 0).numpy()
    if picture.dtype != torch.uint8:
        values = (values - values.min()) / (np.ptp(values) or 1.0) * 255
    return np.ascontiguousarray(values.round().astype(np.uint8))
