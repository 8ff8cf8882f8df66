"""Pictures on disk, decoded when a batch asks for them.

A picture becomes an input in two stages. The first depends on nothing but the file and the network: upright, in RGB,
the short side a little more than the network's (256 for 224). The second cuts the input out of it: the centre, or for
training a random part at a random scale, flipped or not, as uniform numbers say that the caller drew. So a cache of
the first stage changes no result, and neither does the number of workers. Both give 8-bit pixels: the network
normalises a whole batch in one go.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import os
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from safda.data.domain import HUGE, ImageFiles
from safda.errors import SafdaError, first_line
from safda.nn.vision import guard_torchvision

Image.init()
# Memory of 32 MB or more goes back to the system when it is freed; of smaller blocks, each thread would keep its share.
Image.core.set_block_size(2**26)  # type: ignore[attr-defined]
_WANTED = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "DIB", "TGA", "ICO", "QOI")
#: What is read, as far as this build of Pillow can. Formats that would start another program, such as EPS, stay out.
FORMATS = tuple(name for name in _WANTED if name in Image.OPEN)
_CROP_ATTEMPTS = 10
_STRIP = 2**20  # pixels of a transparent picture that are laid on white together
_MAX_ASPECT_RATIO = 4  # the long side at most this many times the short one asked for: a strip must not fill the memory

warnings.filterwarnings("ignore", module=r"PIL\.")  # what is wrong with a file is told in one place, by inspection
warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to a decoded picture


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


@dataclass(frozen=True)
class TransformedImages:
    """Picture files as a network's inputs.

    Attributes:
        files: the pictures.
        transform: what the network makes of them.
        cache: where decoded pictures are kept, if anywhere.
    """

    files: ImageFiles
    transform: Transform
    cache: Path | None = None

    dtype = torch.uint8

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """How many, and the shape of an input."""
        return len(self.files), 3, self.transform.side, self.transform.side

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the center crops of these pictures, n×3×side×side."""
        return self._batch(rows, None)

    def augmented(self, rows: Tensor, uniforms: NDArray[np.float64]) -> Tensor:
        """Return a random resized crop of each of these pictures."""
        return self._batch(rows, uniforms)

    def take(self, rows: Tensor) -> TransformedImages:
        """Return these pictures alone, none of them decoded."""
        return replace(self, files=self.files.take(rows))

    def fingerprint(self) -> str:
        """Return a digest of all contents, in order."""
        return self.files.fingerprint()

    def _batch(self, rows: Tensor, uniforms: NDArray[np.float64] | None) -> Tensor:
        side = self.transform.side
        batch = np.empty((len(rows), side, side, 3), dtype=np.uint8)
        for i, row in enumerate(rows.tolist()):
            image = self._decoded(row)
            crop = (
                _center_crop(image, side)
                if uniforms is None
                else _random_resized_crop(image, self.transform, uniforms[i])
            )
            batch[i] = crop.permute(1, 2, 0).numpy()
        return torch.from_numpy(batch).permute(0, 3, 1, 2)  # channels last in memory: the faster way through a CNN

    @cached_property
    def _store(self) -> DecodedStore | None:
        if self.cache is None:
            return None
        key = f"{self.fingerprint()}-{self.transform.key}"
        return DecodedStore(self.cache, key, [self.transform.resized_size(size) for size in self.files.sizes])

    def _decoded(self, row: int) -> Tensor:
        store = self._store
        kept = store.get(row) if store else None
        if kept is not None:
            return kept
        path = self.files.paths[row]
        try:
            content = path.read_bytes()
            if content_digest(content) != self.files.digests[row]:  # its features would be kept as another picture's
                raise SafdaError(f"{path}: has changed since it was first opened; start again")
            image = decode(io.BytesIO(content), self.transform)
        except SafdaError:
            raise
        except Exception as error:  # decoders raise whatever the damage makes them stumble over
            raise SafdaError(f"{path}: could be read before and cannot now ({first_line(error)})") from None
        if store:
            store.put(row, image)
        return image


def decode(file: Path | IO[bytes], transform: Transform) -> Tensor:
    """Read one picture: upright, RGB, 8 bits, resized as asked; 3×h×w, channels last in memory.

    A JPEG is decoded at a half, a quarter or an eighth of its size where that is still large enough. A huge picture of
    another format is averaged over blocks of pixels first, down to twice the size or more.
    """
    with Image.open(file, formats=FORMATS) as image:
        size = image.size
        image.draft("RGB", (transform.short_side, transform.short_side))
        with decoding(image):
            width, height = transform.resized_size(upright_size(size, image))
            picture = to_rgb(image)
            if image.width * image.height > HUGE:
                picture = picture.reduce(max(1, min(picture.size) // (2 * transform.short_side)))
            pixels = torch.from_numpy(np.asarray(picture)).permute(2, 0, 1)
            return resize(pixels, height, width, transform.interpolation)


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


def resize(image: Tensor, height: int, width: int, interpolation: str) -> Tensor:
    """Resize 8-bit pixels, without aliasing."""
    if tuple(image.shape[1:]) == (height, width):
        return image
    functional = _torchvision()
    how = functional.InterpolationMode(interpolation)
    resized: Tensor = functional.resize(image, [height, width], interpolation=how, antialias=True)
    return resized


@cache
def _torchvision() -> Any:
    """Return torchvision's functions, imported on first use: whoever brings features never waits for them."""
    guard_torchvision()
    from torchvision.transforms.v2 import functional

    return functional


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


# ---------------------------------------------------------------------------------------------- cutting inputs


def _center_crop(image: Tensor, side: int) -> Tensor:
    crop: Tensor = _torchvision().center_crop(image, [side, side])
    return crop


def _random_resized_crop(image: Tensor, transform: Transform, uniforms: NDArray[np.float64]) -> Tensor:
    """Crop a random part, resize it to the network's input, and flip every other one."""
    top, left, height, width = random_crop_params(image.shape[1], image.shape[2], uniforms, transform.scale)
    crop = image[:, top : top + height, left : left + width]
    crop = resize(crop, transform.side, transform.side, transform.interpolation)
    return crop.flip(2) if uniforms[-1] < 0.5 else crop


def random_crop_params(
    height: int, width: int, uniforms: NDArray[np.float64], scale: float = 0.08
) -> tuple[int, int, int, int]:
    """Draw (top, left, height, width) of 8% (``scale``) to 100% of the area and 3:4 to 4:3, as torchvision's crop does.

    >>> random_crop_params(256, 256, np.full(41, 0.5))
    (34, 34, 188, 188)
    """
    for area, ratio, top, left in uniforms[: 4 * _CROP_ATTEMPTS].reshape(_CROP_ATTEMPTS, 4):
        target = height * width * (scale + (1 - scale) * area)
        aspect = math.exp(math.log(4 / 3) * (2 * ratio - 1))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(top * (height - h + 1)), int(left * (width - w + 1)), h, w
    w, h = min(width, max(1, round(height * 4 / 3))), min(height, max(1, round(width * 4 / 3)))
    return (height - h) // 2, (width - w) // 2, h, w


# -------------------------------------------------------------------------------------- the cache of decoded ones


class DecodedStore:
    """Decoded pictures in one file, each in a place known beforehand, filled as they are first decoded.

    A picture counts as kept once its checksum stands in a second file and fits: a kill at any moment leaves at
    worst a picture that is decoded again. A disk that fills up leaves the rest to be decoded every time.
    """

    def __init__(self, folder: Path, key: str, sizes: list[tuple[int, int]]) -> None:
        self._shapes = [(height, width, 3) for width, height in sizes]
        self._starts = [0, *itertools.accumulate(math.prod(shape) for shape in self._shapes)]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._pixels, self._sums = (_open(folder / f"{key}.{kind}") for kind in ("pixels", "sums"))
        except OSError as error:
            raise SafdaError(f"{folder}: cannot hold the cache of decoded pictures: {error.strerror}") from None
        self._full = False

    def get(self, row: int) -> Tensor | None:
        """Return a picture, or None if it is not there whole."""
        checksum = os.pread(self._sums.fileno(), _CHECKSUM_BYTES, row * _CHECKSUM_BYTES)
        if not any(checksum):
            return None
        pixels = bytearray(os.pread(self._pixels.fileno(), math.prod(self._shapes[row]), self._starts[row]))
        if _checksum(pixels) != checksum:
            return None
        return torch.frombuffer(pixels, dtype=torch.uint8).view(self._shapes[row]).permute(2, 0, 1)

    def put(self, row: int, image: Tensor) -> None:
        """Keep a picture."""
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy()).data
        if self._full or pixels.shape != self._shapes[row]:  # the file is no longer what it was
            return
        try:
            written = os.pwrite(self._pixels.fileno(), pixels, self._starts[row])
            if written == pixels.nbytes:
                os.pwrite(self._sums.fileno(), _checksum(pixels), row * _CHECKSUM_BYTES)
        except OSError:
            self._full = True


_CHECKSUM_BYTES = 4


def _checksum(pixels: Any) -> bytes:
    return (zlib.crc32(pixels) or 1).to_bytes(_CHECKSUM_BYTES, "little")  # 0 stands for "not there"


def _open(path: Path) -> IO[bytes]:
    path.touch()
    return path.open("r+b", buffering=0)
