"""Anything a user may name as a domain, made one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from safda.data import digits
from safda.data.array_files import Arrays
from safda.data.arrays import as_domain
from safda.data.domain import AnyDomain, Domain, ImageDomain
from safda.data.files import read_files
from safda.data.loader import ProgressCallback

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
    if isinstance(what, (str, Path)) and str(what) in EMBEDDED:
        return EMBEDDED[str(what)]()
    found = read_files(what, role, strict=strict, progress=progress)
    if isinstance(found, Arrays):
        return as_domain(found)
    labels = None if found.labels is None else torch.from_numpy(found.labels)
    return ImageDomain(found.name, found.files, labels, found.classes, found.ids, found.skipped)
