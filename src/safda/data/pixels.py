"""One picture file as pixels of 8 bits, with Pillow and numpy alone: upright, in RGB, resized and cut.

Whoever predicts with an exported model does here, without torch, what a run does with it: :func:`resized` gives the
very pixels of torchvision's resize.
"""

from __future__ import annotations

import hashlib
import math
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

Image.init()
# Memory of 32 MB or more goes back to the system when it is freed; of smaller blocks, each thread would keep its share.
Image.core.set_block_size(2**26)  # type: ignore[attr-defined]
_WANTED = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "DIB", "TGA", "ICO", "QOI")
#: What is read, as far as this build of Pillow can. Formats that would start another program, such as EPS, stay out.
FORMATS = tuple(name for name in _WANTED if name in Image.OPEN)
#: Pixels of a huge picture: it takes as much memory as all others that are decoded at a time.
HUGE = 2**26
_STRIP = 2**20  # pixels of a transparent picture that are laid on white together
_MAX_ASPECT_RATIO = 4  # the long side at most this many times the short one asked for: a strip must not fill the memory

# What is wrong with a file is told in one place, by inspection. Threads decode, and only a filter of the whole process
# is one for all of them; what Pillow says of our calls, such as that one will go, still comes through.
for _category in (UserWarning, Image.DecompressionBombWarning):
    warnings.filterwarnings("ignore", category=_category, module=r"PIL\.")

#: A picture of 8 bits, h×w×3.
Pixels: TypeAlias = NDArray[np.uint8]
#: Called with pixels, height, width and interpolation.
Resize: TypeAlias = Callable[[Pixels, int, int, str], Pixels]


@dataclass(frozen=True)
class Transform:
    """How a picture becomes an input, as the backbone was trained.

    Attributes:
        side: width and height of an input.
        crop: its share of the picture's short side, once that is resized.
        interpolation: how it is resized: bilinear or bicubic.
        squash: whether its sides are resized alike, whatever their ratio.
        scale: the least share of its area in a training crop.
    """

    side: int
    crop: float = 0.875
    interpolation: str = "bilinear"
    squash: bool = False
    scale: float = 0.08

    @property
    def short_side(self) -> int:
        """The short side after the first stage: 256 for 224, with the usual crop."""
        return math.floor(self.side / self.crop)

    @property
    def key(self) -> str:
        """A name for files of what it makes, which training crops are not."""
        return f"{self.side}-{self.short_side}-{self.interpolation}{'-squash' if self.squash else ''}"

    def resized_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return width and height of a picture after the first stage."""
        short, (least, most) = self.short_side, sorted(size)
        if self.squash:
            return short, short
        other = int(short * most / least)
        if other > _MAX_ASPECT_RATIO * short:
            short, other = max(1, int(short * _MAX_ASPECT_RATIO * short / other)), _MAX_ASPECT_RATIO * short
        return (short, other) if size[0] <= size[1] else (other, short)


def decode(file: Path | IO[bytes], transform: Transform, resize: Resize | None = None) -> Pixels:
    """Read one picture: upright, RGB, 8 bits, resized as asked; h×w×3.

    A JPEG is decoded at a half, a quarter or an eighth of its size where that is still large enough. A huge picture of
    another format is averaged over blocks of pixels first, down to twice the size or more.

    Args:
        file: the picture.
        transform: says in what size.
        resize: who resizes; by default :func:`resized`.
    """
    with Image.open(file, formats=FORMATS) as image:
        size = image.size
        image.draft("RGB", (transform.short_side, transform.short_side))
        with decoding(image):
            width, height = transform.resized_size(upright_size(size, image))
            picture = to_rgb(image)
            if image.width * image.height > HUGE:
                picture = picture.reduce(max(1, min(picture.size) // (2 * transform.short_side)))
            pixels = np.array(picture)  # a copy, since torch warns of memory that is Pillow's and read-only
            return (resize or resized)(pixels, height, width, transform.interpolation)


class PixelBudget:
    """So many pixels may be decoded at once, by all threads together; a picture of more waits until it is alone.

    Args:
        pixels: how many.
    """

    def __init__(self, pixels: int) -> None:
        self._total = self._left = pixels
        self._changed = threading.Condition()

    @contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for a picture, and hold it."""
        taken = min(pixels, self._total)
        with self._changed:
            self._changed.wait_for(lambda: taken <= self._left)
            self._left -= taken
        try:
            yield
        finally:
            with self._changed:
                self._left += taken
                self._changed.notify_all()


_PIXELS = PixelBudget(HUGE)  # of all readers of this process; each pixel takes some 12 bytes


@contextmanager
def decoding(image: Any) -> Iterator[None]:
    """Wait until there is room for a picture's pixels; when done with them, let them go."""
    with _PIXELS.take(image.width * image.height), closing(image):
        yield


def upright_size(size: tuple[int, int], image: Any) -> tuple[int, int]:
    """Return a picture's width and height once EXIF's rotation is undone."""
    width, height = size
    return (height, width) if orientation(image) in (5, 6, 7, 8) else (width, height)


def orientation(image: Any) -> int:
    """Return EXIF's orientation, 2 to 8; 1 is upright. To find it in a PNG, all of it is decoded."""
    value = image.getexif().get(0x0112, 1)
    return value if value in range(2, 9) else 1


def to_rgb(image: Any) -> Any:
    """Turn a picture of any mode into upright RGB: the first frame, on white where it is transparent."""
    if orientation(image) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":
        image = Image.fromarray(_to_uint8(np.asarray(image)))
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        return _on_white(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _on_white(image: Any) -> Any:
    """Lay a picture on white, some rows at a time: at once it would take four times its memory."""
    whole = Image.new("RGB", image.size)
    rows = max(1, _STRIP // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height))).convert("RGBA")
        white = Image.new("RGBA", strip.size, "white")
        whole.paste(Image.alpha_composite(white, strip).convert("RGB"), (0, top))
    return whole


def _to_uint8(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Bring deeper pixels to 8 bits: whole numbers are 16 bits deep, fractions reach from 0 to 1."""
    if values.dtype.kind == "f":
        values = np.nan_to_num(values, posinf=0, neginf=0) * (255 if np.nanmax(values) <= 1 else 1)
    elif values.dtype.itemsize == 2 or values.max() > 255:
        values = values / 257
    return np.clip(np.round(values), 0, 255).astype(np.uint8)


def content_digest(content: bytes) -> str:
    """Return what a file's content is known by."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


# ----------------------------------------------------------------------------------------------- resizing and cutting


def center_crop(pixels: Pixels, side: int) -> Pixels:
    """Cut the middle out of a picture, side×side×3; where it is too small, there is black around it.

    >>> center_crop(np.arange(1, 13, dtype=np.uint8).reshape(1, 4, 3), 2)[..., 0].tolist()    # of 1×4 pixels
    [[4, 7], [0, 0]]
    """
    height, width = pixels.shape[:2]
    if height < side or width < side:
        around = [(lack // 2, (lack + 1) // 2) for lack in (max(0, side - height), max(0, side - width))]
        pixels = np.pad(pixels, [*around, (0, 0)])
    top, left = (round((length - side) / 2) for length in pixels.shape[:2])
    return pixels[top : top + side, left : left + side]


def resized(pixels: Pixels, height: int, width: int, interpolation: str) -> Pixels:
    """Resize a picture without aliasing, pixel for pixel as torchvision does, in whole numbers of 16 bits."""
    columns = _resized_rows(pixels.swapaxes(0, 1), width, interpolation)
    return _resized_rows(columns.swapaxes(0, 1), height, interpolation)


def _resized_rows(rows: Pixels, count: int, interpolation: str) -> Pixels:
    """Resize along the first axis: each new row is a weighted sum of some old ones, rounded."""
    if len(rows) == count:
        return rows
    numbers, weights, precision = _weights(len(rows), count, interpolation)
    total = np.full((count, *rows.shape[1:]), 1 << (precision - 1), np.int32)
    for number, weight in zip(numbers.T, weights.T, strict=True):
        total += rows[number] * weight[:, None, None]
    rounded: Pixels = np.clip(total >> precision, 0, 255).astype(np.uint8)
    return rounded


@lru_cache(maxsize=64)
def _weights(before: int, after: int, interpolation: str) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    """Return which old rows each new one is made of, with what weights, in units of 2^−precision."""
    scale = before / after
    shrink = max(scale, 1.0)  # a kernel as wide as what it averages over
    kernel, reach = KERNELS[interpolation]
    centers = scale * (np.arange(after) + 0.5)
    first = np.maximum((centers - reach * shrink + 0.5).astype(np.int64), 0)
    last = np.minimum((centers + reach * shrink + 0.5).astype(np.int64), before)
    numbers = first[:, None] + np.arange((last - first).max())
    weights = np.where(numbers < last[:, None], kernel((numbers - centers[:, None] + 0.5) * (1 / shrink)), 0)
    weights /= weights.sum(1, keepdims=True)
    largest = weights.max()
    precision = next((bits for bits in range(22) if int(0.5 + largest * 2 ** (bits + 1)) >= 2**15), 22)
    whole = np.trunc(weights * 2**precision + np.copysign(0.5, weights)).astype(np.int32)
    return np.minimum(numbers, before - 1), whole, precision


def _triangle(x: NDArray[np.float64]) -> NDArray[np.float64]:
    heights: NDArray[np.float64] = np.maximum(1 - np.abs(x), 0)
    return heights


def _cubic(x: NDArray[np.float64], a: float = -0.5) -> NDArray[np.float64]:
    """Keys' cubic, with the steepness that Pillow and torchvision have."""
    x = np.abs(x)
    near, far = ((a + 2) * x - (a + 3)) * x**2 + 1, a * (((x - 5) * x + 8) * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0))


#: Interpolation → its kernel, and how many old rows it reaches to each side.
KERNELS: dict[str, tuple[Callable[[NDArray[np.float64]], NDArray[np.float64]], int]] = {
    "bilinear": (_triangle, 1),
    "bicubic": (_cubic, 2),
}
