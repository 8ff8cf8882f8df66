"""Pictures on disk, decoded when a batch asks for them.

A picture becomes an input in two stages. The first depends on nothing but the file and the network: upright, in RGB,
the short side a little more than the network's (256 for 224). The second cuts the input out of it: the centre, or for
training a random part at a random scale, flipped or not, as uniform numbers say that the caller drew. So a cache of
the first stage changes no result, and neither does the number of workers. Both give 8-bit pixels: the network
normalises a whole batch in one go.
"""

from __future__ import annotations

import itertools
import math
import os
import zlib
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safda.data import pixels
from safda.data.files import ImageFiles
from safda.data.pixels import Pixels, Transform
from safda.errors import SafdaError
from safda.nn.vision import guard_torchvision

_CROP_ATTEMPTS = 10


@dataclass(frozen=True)
class TransformedImages:
    """Picture files as a network's inputs.

    Attributes:
        files: the pictures.
        transform: what the network makes of them.
        cache: where decoded pictures are kept, if anywhere.
        part_of: the pictures that these are some of, and which: what is decoded is kept with the whole, and not twice.
    """

    files: ImageFiles
    transform: Transform
    cache: Path | None = None
    part_of: tuple[TransformedImages, Tensor] | None = field(default=None, compare=False, repr=False)

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
        return replace(self, files=self.files.take(rows), cache=None, part_of=(self, rows))

    def fingerprint(self) -> str:
        """Return a digest of all contents, in order."""
        return self.files.fingerprint()

    def _batch(self, rows: Tensor, uniforms: NDArray[np.float64] | None) -> Tensor:
        side = self.transform.side
        batch = np.empty((len(rows), side, side, 3), dtype=np.uint8)
        for i, row in enumerate(rows.tolist()):
            image = self._decoded(row)
            if uniforms is None:
                batch[i] = pixels.center_crop(image.permute(1, 2, 0).numpy(), side)
            else:
                batch[i] = _random_resized_crop(image, self.transform, uniforms[i]).permute(1, 2, 0).numpy()
        return torch.from_numpy(batch).permute(0, 3, 1, 2)  # channels last in memory: the faster way through a CNN

    @cached_property
    def _store(self) -> DecodedStore | None:
        if self.cache is None:
            return None
        key = f"{self.fingerprint()}-{self.transform.key}"
        return DecodedStore(self.cache, key, [self.transform.resized_size(size) for size in self.files.sizes])

    def _decoded(self, row: int) -> Tensor:
        if self.part_of is not None:
            whole, rows = self.part_of
            return whole._decoded(int(rows[row]))
        store = self._store
        kept = store.get(row) if store else None
        if kept is not None:
            return kept
        image = self.files.decoded(row, lambda file: decode(file, self.transform))
        if store:
            store.put(row, image)
        return image


def decode(file: Path | IO[bytes], transform: Transform) -> Tensor:
    """Read one picture: upright, RGB, 8 bits, resized as asked; 3×h×w, channels last in memory."""
    return torch.from_numpy(pixels.decode(file, transform, _resized)).permute(2, 0, 1)


def _resized(image: Pixels, height: int, width: int, interpolation: str) -> Pixels:
    """Resize as :func:`safda.data.pixels.resized` does, and faster."""
    smaller = resize(torch.from_numpy(image).permute(2, 0, 1), height, width, interpolation)
    array: Pixels = smaller.permute(1, 2, 0).numpy()
    return array


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


# ---------------------------------------------------------------------------------------------- cutting inputs


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
