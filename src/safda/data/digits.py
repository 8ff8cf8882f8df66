"""Two embedded domains of digits: drawn from fonts, and written by hand. 16×16 grey, no download."""

from __future__ import annotations

import math
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from safda.data.domain import Domain

SIDE = 16
_CANVAS_SIDE = 64  # glyphs are drawn at this size and then reduced
_CLASSES = tuple("0123456789")
_FONTS = (
    *(f"DejaVuSans{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}.ttf" for style in ("", "-Bold", "-Oblique")),
    *(f"DejaVuSerif{style}.ttf" for style in ("", "-Bold", "-Italic")),
    *(f"STIXGeneral{style}.ttf" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmr10.ttf", "cmb10.ttf", "cmss10.ttf", "cmtt10.ttf"),
)


@lru_cache(maxsize=1)
def rendered(per_class: int = 200) -> Domain:
    """Labelled digits drawn from the fonts that ship with matplotlib, with random pose, stroke and noise."""
    rng = np.random.default_rng(20220128)
    labels = np.tile(np.arange(10), per_class)
    images = np.stack([_draw(str(digit), rng) for digit in labels])
    return Domain("digits-rendered", torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels), _CLASSES)


@lru_cache(maxsize=1)
def handwritten() -> Domain:
    """The 1,797 handwritten digits in scikit-learn, enlarged from 8×8."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    small = torch.from_numpy(images.astype(np.float32) / 16).view(-1, 1, 8, 8)
    inputs = F.interpolate(small, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    return Domain("digits-handwritten", inputs, torch.from_numpy(labels.astype(np.int64)), _CLASSES)


def _draw(digit: str, rng: np.random.Generator) -> np.ndarray:
    """Draw one glyph: a font, a stroke width, a rotation, a shear and a size, then noise."""
    from PIL import Image, ImageDraw

    font = _font(_FONTS[rng.integers(len(_FONTS))])
    canvas = Image.new("L", (_CANVAS_SIDE, _CANVAS_SIDE))
    centre = _CANVAS_SIDE / 2
    ImageDraw.Draw(canvas).text(
        (centre, centre), digit, fill=255, font=font, anchor="mm", stroke_width=int(rng.integers(0, 3))
    )
    angle, shear = math.radians(rng.uniform(-15, 15)), rng.uniform(-0.25, 0.25)
    width, height = rng.uniform(0.75, 1.3), rng.uniform(0.85, 1.2)
    shift = rng.uniform(-4, 4, size=2)
    cos, sin = math.cos(angle), math.sin(angle)
    pose = np.array([[cos / width, (sin + shear) / width], [-sin / height, cos / height]])
    offset = centre - pose @ (centre + shift)
    posed = canvas.transform(
        canvas.size, Image.Transform.AFFINE, (*pose[0], offset[0], *pose[1], offset[1]), Image.Resampling.BILINEAR
    )
    reduced = np.asarray(posed.resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float32) / 255
    noisy = reduced * rng.uniform(0.6, 1.0) + rng.normal(0, rng.uniform(0, 0.1), reduced.shape)
    return np.clip(noisy, 0, 1).astype(np.float32)


@cache
def _font(file: str):  # type: ignore[no-untyped-def]  # Pillow ships no types for it everywhere
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / file), size=60)
