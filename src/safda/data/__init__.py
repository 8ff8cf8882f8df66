"""Domains: where samples come from. Anything a user may name as one goes through :func:`load_domain`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from safda.data import digits
from safda.data.arrays import from_arrays, from_npz
from safda.data.domain import Domain, Stream, mixed_seed
from safda.errors import SafdaError, nearest

#: Domains that need no file, by name.
EMBEDDED: dict[str, Callable[[], Domain]] = {
    "digits-rendered": digits.rendered,
    "digits-handwritten": digits.handwritten,
}


def load_domain(what: Any, role: str = "data") -> Domain:
    """Make a domain of whatever names one.

    Args:
        what: an embedded domain's name, the path of a ``.npz`` file, a :class:`Domain`, an n×d array, or a
            pair (features, labels).
        role: what to call an array in errors: source, target, …

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
    if path.exists():
        raise SafdaError(f"{path}: is not a domain; a domain is a .npz file or one of {', '.join(EMBEDDED)}")
    raise SafdaError(f"{what}: no such file or embedded domain{nearest(str(what), EMBEDDED)}")


__all__ = ["EMBEDDED", "Domain", "Stream", "from_arrays", "load_domain", "mixed_seed"]
