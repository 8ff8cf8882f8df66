"""Domains: where samples come from. Anything a user may name as one goes through :func:`load_domain`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from safda.data import digits
from safda.data.arrays import from_arrays, from_npy, from_npz
from safda.data.domain import Domain, Stream, mixed_seed
from safda.errors import SafdaError, nearest

#: Domains that need no file, by name.
EMBEDDED: dict[str, Callable[[], Domain]] = {
    "digits-rendered": digits.rendered,
    "digits-handwritten": digits.handwritten,
}


def load_domain(
    what: Any, role: str = "data", *, strict: bool = False, watch: Callable[[int, int], None] | None = None
) -> Domain:
    """Make a domain of whatever names one.

    Args:
        what: an embedded domain's name; the path of a folder of pictures, of a list of them, of a ``.csv`` or
            ``.parquet`` manifest, or of a ``.npz`` or ``.npy`` file; a :class:`Domain`; an n×d array; or a pair
            (features, labels).
        role: what to call an array in errors: source, target, …
        strict: make an error of files that cannot be used, instead of skipping them.
        watch: told (done, of how many) while pictures are opened for the first time.

    >>> len(load_domain("digits-handwritten"))
    1797
    """
    if isinstance(what, Domain):
        return what
    if isinstance(what, tuple) and len(what) == 2:
        return from_arrays(role, *what)
    if not isinstance(what, (str, Path)):
        return from_arrays(role, what)
    if str(what) in EMBEDDED:
        return EMBEDDED[str(what)]()
    path = Path(what)
    if path.suffix == ".npz":
        return from_npz(path)
    if path.suffix == ".npy":
        return from_npy(path)
    if not path.exists():
        raise SafdaError(f"{what}: no such file, folder or embedded domain{nearest(str(what), EMBEDDED)}")
    return _pictures(path, strict, watch)


def is_pictures(what: Any) -> bool:
    """Tell whether something names pictures, without opening any of them."""
    return isinstance(what, (str, Path)) and str(what) not in EMBEDDED and Path(what).suffix not in (".npz", ".npy")


def _pictures(path: Path, strict: bool, watch: Callable[[int, int], None] | None) -> Domain:
    """Make a domain of picture files: those that can be read."""
    from safda.data.inspection import inspect_all
    from safda.data.layouts import LISTS, MANIFESTS, find
    from safda.data.pictures import Pictures

    if path.is_file() and path.suffix not in (*LISTS, *MANIFESTS):
        known = ", ".join((".npz", ".npy", *LISTS, *MANIFESTS))
        raise SafdaError(f"{path}: is not a domain; a domain is a folder, one of {known}, or {', '.join(EMBEDDED)}")
    listing = find(path)
    about = inspect_all(listing.name, listing.files, listing.ids, watch)
    skipped = (*listing.skipped, *((i, a.problem) for i, a in zip(listing.ids, about, strict=True) if a.problem))
    if strict and skipped:
        first, why = skipped[0]
        raise SafdaError(f"{path}: {len(skipped)} files or folders cannot be used, the first is {first} ({why})")
    good = [row for row, each in enumerate(about) if not each.problem]
    if not good:
        raise SafdaError(f"{path}: none of its {len(about)} files is a picture that can be read")
    inputs = Pictures(
        tuple(listing.files[row] for row in good),
        tuple(about[row].digest for row in good),
        tuple(about[row].size for row in good),
        tuple(about[row].traits for row in good),
    )
    ids = tuple(listing.ids[row] for row in good)
    if listing.labels is None:
        return Domain(listing.name, inputs, None, (), ids, skipped)
    names = [listing.labels[row] for row in good]
    classes = tuple(name for name in listing.classes if name in set(names))
    number = {name: k for k, name in enumerate(classes)}
    return Domain(listing.name, inputs, torch.tensor([number[name] for name in names]), classes, ids, skipped)


__all__ = ["EMBEDDED", "Domain", "Stream", "from_arrays", "is_pictures", "load_domain", "mixed_seed"]
