"""Domains: where samples come from. Anything a user may name as one goes through :func:`load_domain`.

Nothing here imports torch before a name is used: whoever predicts with an exported model reads files without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from safda.data.arrays import from_arrays
    from safda.data.domain import AnyDomain, Domain, ImageDomain
    from safda.data.files import is_image_data
    from safda.data.loading import EMBEDDED, load_domain
    from safda.data.sampler import EpochSampler, mixed_seed

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

_HOME = {
    "EMBEDDED": "loading",
    "AnyDomain": "domain",
    "Domain": "domain",
    "EpochSampler": "sampler",
    "ImageDomain": "domain",
    "from_arrays": "arrays",
    "is_image_data": "files",
    "load_domain": "loading",
    "mixed_seed": "sampler",
}


def __getattr__(name: str) -> Any:
    """Import on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'safda.data' has no attribute {name!r}")
    return getattr(import_module(f"safda.data.{_HOME[name]}"), name)
