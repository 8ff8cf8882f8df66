"""Methods of domain adaptation: one file each, one contract (:mod:`safda.methods.base`), one registry.

Nothing here imports torch: who only asks for a name, or for help, need not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from safda.registry import Registry

if TYPE_CHECKING:
    from safda.methods.base import Method

#: Name in a recipe → method.
METHODS: Registry[type[Method]] = Registry("method", "safda.methods")

Class = TypeVar("Class", bound="type[Method]")


def register(name: str) -> Callable[[Class], Class]:
    """Return a decorator that makes a :class:`~safda.methods.base.Method` known under a name."""

    def add(method: Class) -> Class:
        method.name = name
        METHODS.register(name)(method)
        return method

    return add


__all__ = ["METHODS", "register"]
