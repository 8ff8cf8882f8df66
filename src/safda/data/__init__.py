"""Domains: where samples come from. Anything a user may name as one goes through :func:`load_domain`."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from safda.data import digits
from safda.data.arrays import ARRAYS, from_arrays
from safda.data.domain import AnyDomain, Domain, ImageDomain, ImageFiles
from safda.data.loader import ProgressCallback
from safda.data.sampler import EpochSampler, mixed_seed
from safda.errors import SafdaError, first_line, nearest

if TYPE_CHECKING:
    from safda.data.inspection import Inspected
    from safda.data.layouts import Listing

#: Domains that need no file, by name.
EMBEDDED: dict[str, Callable[[], Domain]] = {
    "digits-rendered": digits.rendered,
    "digits-handwritten": digits.handwritten,
}


def load_domain(
    what: Any, role: str = "data", *, strict: bool = False, progress: ProgressCallback | None = None
) -> AnyDomain:
    """Make a domain of whatever names one.

    Args:
        what: an embedded domain's name; the path of a folder of pictures, of a list of them, of a ``.csv`` or
            ``.parquet`` manifest, of a picture, or of a ``.npz`` or ``.npy`` file; several paths of pictures; a
            domain; an n×d array; or a pair (features, labels).
        role: what to call an array, or several pictures, in errors: source, target, …
        strict: make an error of files that cannot be used, instead of skipping them.
        progress: called with (done, total) while pictures are opened for the first time.

    >>> len(load_domain("digits-handwritten"))
    1797
    """
    if isinstance(what, AnyDomain):
        return what
    if isinstance(what, (list, tuple)) and what and all(isinstance(each, (str, Path)) for each in what):
        return _load_listed_images(role, what, strict, progress)
    if isinstance(what, tuple) and len(what) == 2:
        return from_arrays(role, *what)
    if not isinstance(what, (str, Path)):
        return from_arrays(role, what)
    if str(what) in EMBEDDED:
        return EMBEDDED[str(what)]()
    path = Path(what)
    _require_file_or_folder(path)
    if path.suffix in ARRAYS and not path.is_dir():
        return ARRAYS[path.suffix](path)
    return _load_images(path, strict, progress)


def is_image_data(what: Any) -> bool:
    """Return whether something that is there names pictures, without opening any of them."""
    if not isinstance(what, (str, Path)) or not os.path.exists(what):
        return False
    return os.path.isdir(what) or Path(what).suffix not in ARRAYS


def _require_file_or_folder(path: Path) -> None:
    """Make sure that there is something that ends: a device does not."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise SafdaError(f"{path}: no such file, folder or embedded domain{nearest(str(path), EMBEDDED)}") from None
    except (OSError, ValueError) as error:
        raise SafdaError(f"{path}: cannot be read: {first_line(error)}") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISFIFO(mode)):
        raise SafdaError(f"{path}: is neither a file nor a folder, but a device or a socket")


def _load_images(path: Path, strict: bool, progress: ProgressCallback | None) -> ImageDomain:
    """Make a domain of a folder, a list or a manifest of pictures, or of one picture."""
    from safda.data.inspection import NOT_AN_IMAGE, inspect, inspect_all
    from safda.data.layouts import LAYOUTS, find_images

    listing = find_images(path)
    if listing is not None:
        return _readable_images(listing, inspect_all(listing.name, listing.files, listing.ids, progress), strict)
    if inspect(path).problem == NOT_AN_IMAGE:  # its content tells, whatever it is called
        known = ", ".join((*ARRAYS, *(suffix for layout in LAYOUTS.values() for suffix in layout.suffixes)))
        raise SafdaError(
            f"{path}: is not a domain; a domain is a folder, a picture, one of {known}, or {', '.join(EMBEDDED)}"
        )
    return _load_listed_images(str(path), [path], strict, progress)


def _load_listed_images(
    name: str, paths: Sequence[str | Path], strict: bool, progress: ProgressCallback | None
) -> ImageDomain:
    """Make a domain of pictures that were named one by one."""
    from safda.data.inspection import inspect_each
    from safda.data.layouts import listed_images

    listing = listed_images(name, [Path(each) for each in paths])
    about = inspect_each(listing.files, progress)
    if len(about) == 1 and about[0].problem:
        raise SafdaError(f"{paths[0]}: cannot be used: {about[0].problem}")
    return _readable_images(listing, about, strict)


def _readable_images(listing: Listing, about: Sequence[Inspected], strict: bool) -> ImageDomain:
    """Make a domain of those files that can be read."""
    name = listing.name
    skipped = (*listing.skipped, *((i, a.problem) for i, a in zip(listing.ids, about, strict=True) if a.problem))
    good = [row for row, each in enumerate(about) if not each.problem]
    if strict and skipped:
        first, why = skipped[0]
        raise SafdaError(f"{name}: {len(skipped)} files or folders cannot be used, the first is {first} ({why})")
    if not good:
        first = f"the first is {listing.ids[0]} ({about[0].problem})"
        raise SafdaError(f"{name}: none of its {len(about)} files is a picture that can be read, {first}")
    inputs = ImageFiles(
        tuple(listing.files[row] for row in good),
        tuple(about[row].digest for row in good),
        tuple(about[row].size for row in good),
        tuple(about[row].traits for row in good),
    )
    ids = tuple(listing.ids[row] for row in good)
    if listing.labels is None:
        return ImageDomain(name, inputs, None, (), ids, skipped)
    labels = [listing.labels[row] for row in good]
    classes = tuple(each for each in listing.classes if each in set(labels))
    number = {each: k for k, each in enumerate(classes)}
    return ImageDomain(name, inputs, torch.tensor([number[each] for each in labels]), classes, ids, skipped)


__all__ = [
    "EMBEDDED",
    "AnyDomain",
    "Domain",
    "EpochSampler",
    "ImageDomain",
    "from_arrays",
    "is_image_data",
    "load_domain",
    "mixed_seed",
]
