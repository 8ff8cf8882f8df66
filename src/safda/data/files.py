"""What a path names, before it becomes a domain: arrays, or picture files. numpy and Pillow alone, no torch."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from safda.data.array_files import ARRAYS, Arrays, checked_arrays
from safda.data.pixels import content_digest
from safda.errors import SafdaError, first_line, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from safda.data.inspection import Inspected
    from safda.data.layouts import Listing
    from safda.data.loader import ProgressCallback

#: Domains that need no file; :data:`safda.data.EMBEDDED` makes them.
EMBEDDED_NAMES = ("digits-rendered", "digits-handwritten")

Picture = TypeVar("Picture")


@dataclass(frozen=True)
class ImageFiles:
    """Picture files, of which no batch can be made before a network says in what size.

    Attributes:
        paths: where they are.
        digests: of each file's content.
        sizes: width and height of each, upright.
        traits: what was odd about each and is put right in reading.
    """

    paths: tuple[Path, ...]
    digests: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    traits: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: Tensor) -> ImageFiles:
        """Return these pictures alone."""
        numbers = rows.tolist()
        return ImageFiles(
            tuple(self.paths[row] for row in numbers),
            tuple(self.digests[row] for row in numbers),
            tuple(self.sizes[row] for row in numbers),
            tuple(self.traits[row] for row in numbers),
        )

    def fingerprint(self) -> str:
        """Return a digest of all contents, in order."""
        return hashlib.sha256("".join(self.digests).encode()).hexdigest()[:32]

    def decoded(self, row: int, decode: Callable[[IO[bytes]], Picture]) -> Picture:
        """Read one picture, and make sure that it is still the one that was inspected."""
        path = self.paths[row]
        try:
            content = path.read_bytes()
            if content_digest(content) != self.digests[row]:  # its features would be kept as another picture's
                raise SafdaError(f"{path}: has changed since it was first opened; start again")
            return decode(io.BytesIO(content))
        except SafdaError:
            raise
        except Exception as error:  # decoders raise whatever the damage makes them stumble over
            raise SafdaError(f"{path}: could be read before and cannot now ({first_line(error)})") from None


@dataclass(frozen=True)
class Images:
    """Picture files that can be read, and what there is beside them.

    Attributes:
        name: what the user calls them.
        files: the pictures.
        labels: class numbers, or None.
        classes: the classes' names.
        ids: a name for each picture.
        skipped: what could not be used: (id, why).
    """

    name: str
    files: ImageFiles
    labels: NDArray[np.int64] | None
    classes: tuple[str, ...]
    ids: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]

    def __len__(self) -> int:
        return len(self.files)


def read_files(
    what: Any, role: str = "data", *, strict: bool = False, progress: ProgressCallback | None = None
) -> Arrays | Images:
    """Read arrays, or find pictures; arguments are those of :func:`safda.data.load_domain`."""
    if isinstance(what, (list, tuple)) and what and all(isinstance(each, (str, Path)) for each in what):
        return _listed_images(role, what, strict, progress)
    if isinstance(what, tuple) and len(what) == 2:
        return checked_arrays(role, *what)
    if not isinstance(what, (str, Path)):
        return checked_arrays(role, what)
    path = Path(what)
    _require_file_or_folder(path)
    if path.suffix in ARRAYS and not path.is_dir():
        return ARRAYS[path.suffix](path)
    return _images(path, strict, progress)


def is_image_data(what: Any) -> bool:
    """Return whether something that is there names pictures, without opening any of them."""
    if not isinstance(what, (str, Path)) or not os.path.exists(what):
        return False
    if Path(what).suffix == ".csv":
        from safda.data.layouts import find_images

        find_images(Path(what))  # says at once where it is no list of pictures
    return os.path.isdir(what) or Path(what).suffix not in ARRAYS


def _require_file_or_folder(path: Path) -> None:
    """Make sure that there is something that ends: a device does not."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        hint = nearest(str(path), EMBEDDED_NAMES)
        raise SafdaError(f"{path}: no such file, folder or embedded domain{hint}") from None
    except (OSError, ValueError) as error:
        raise SafdaError(f"{path}: cannot be read: {first_line(error)}") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISFIFO(mode)):
        raise SafdaError(f"{path}: is neither a file nor a folder, but a device or a socket")


def _images(path: Path, strict: bool, progress: ProgressCallback | None) -> Images:
    """Find the pictures of a folder, a list or a manifest, or take one picture."""
    from safda.data.inspection import NOT_AN_IMAGE, inspect, inspect_all
    from safda.data.layouts import LAYOUTS, find_images

    listing = find_images(path)
    if listing is not None:
        return _readable_images(listing, inspect_all(listing.name, listing.files, listing.ids, progress), strict)
    if inspect(path).problem == NOT_AN_IMAGE:  # its content tells, whatever it is called
        known = ", ".join((*ARRAYS, *(suffix for layout in LAYOUTS.values() for suffix in layout.suffixes)))
        raise SafdaError(
            f"{path}: is not a domain; a domain is a folder, a picture, one of {known}, or {', '.join(EMBEDDED_NAMES)}"
        )
    return _listed_images(str(path), [path], strict, progress)


def _listed_images(name: str, paths: Sequence[str | Path], strict: bool, progress: ProgressCallback | None) -> Images:
    """Take pictures that were named one by one."""
    from safda.data.inspection import inspect_each
    from safda.data.layouts import listed_images

    listing = listed_images(name, [Path(each) for each in paths])
    about = inspect_each(listing.files, progress)
    if len(about) == 1 and about[0].problem:
        raise SafdaError(f"{paths[0]}: cannot be used: {about[0].problem}")
    return _readable_images(listing, about, strict)


def _readable_images(listing: Listing, about: Sequence[Inspected], strict: bool) -> Images:
    """Keep those files that can be read."""
    name = listing.name
    skipped = (*listing.skipped, *((i, a.problem) for i, a in zip(listing.ids, about, strict=True) if a.problem))
    good = [row for row, each in enumerate(about) if not each.problem]
    if strict and skipped:
        first, why = skipped[0]
        raise SafdaError(f"{name}: {len(skipped)} files or folders cannot be used, the first is {first} ({why})")
    if not good:
        first = f"the first is {listing.ids[0]} ({about[0].problem})"
        raise SafdaError(f"{name}: none of its {len(about)} files is a picture that can be read, {first}")
    files = ImageFiles(
        tuple(listing.files[row] for row in good),
        tuple(about[row].digest for row in good),
        tuple(about[row].size for row in good),
        tuple(about[row].traits for row in good),
    )
    ids = tuple(listing.ids[row] for row in good)
    if listing.labels is None:
        return Images(name, files, None, (), ids, skipped)
    labels = [listing.labels[row] for row in good]
    classes = tuple(each for each in listing.classes if each in set(labels))
    number = {each: k for k, each in enumerate(classes)}
    return Images(name, files, np.array([number[each] for each in labels], dtype=np.int64), classes, ids, skipped)
