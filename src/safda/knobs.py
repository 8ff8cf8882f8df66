"""Knobs: the values of a recipe, each declared once, where it is used, with its default, range, search and help.

A section of knobs is a frozen dataclass; its fields are knobs, or further sections::

    @dataclass(frozen=True)
    class Knobs:
        margin: float = knob(4.0, "weight of the source term", low=0.0, high=100.0, search=(1.0, 8.0, "log"))
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, TypeVar

from safda.errors import SafdaError, nearest

Section = TypeVar("Section")


@dataclass(frozen=True)
class Knob:
    """What is known of one knob: its help, its range, and (low, high, "linear" or "log") for a search."""

    help: str
    low: float | None = None  # with high, or neither
    high: float | None = None
    choices: tuple[str, ...] = ()
    search: tuple[float, float, str] | None = None

    @property
    def range_text(self) -> str:
        """What it may be, in brackets, to stand after its help or its name."""
        if self.choices:
            return f" ({' | '.join(self.choices)})"
        return f" ({self.low:,} to {self.high:,})" if self.low is not None else ""


def knob(default: Any, help: str, **about: Any) -> Any:
    """Declare a dataclass field that carries a :class:`Knob`."""
    return field(default=default, metadata={"knob": Knob(help, **about)})


def walk(section: Any, prefix: str = "") -> Iterator[tuple[str, Knob, Any]]:
    """Go through every knob of a section: its path, what is known of it, and its value."""
    for f in fields(section):
        if "knob" in f.metadata:
            yield prefix + f.name, f.metadata["knob"], getattr(section, f.name)
    for f in fields(section):
        if "knob" not in f.metadata:
            yield from walk(getattr(section, f.name), f"{prefix}{f.name}.")


def to_plain(section: Any) -> dict[str, Any]:
    """Return a section as nested dictionaries."""
    values = {f.name: getattr(section, f.name) for f in fields(section)}
    return {key: v if isinstance(v, (bool, int, float, str)) else to_plain(v) for key, v in values.items()}


def filled(section: Section, values: Mapping[str, Any], where: str, prefix: str = "") -> Section:
    """Return a copy of a section with new values, every one of them checked.

    Args:
        section: where knobs that are not named have their values.
        values: by name; for a section within it, nested.
        where: whose values they are, to begin an error with.
        prefix: the section's own path.

    Raises:
        SafdaError: if a name or a value is wrong; it says what would be right.
    """
    known = {f.name: f for f in fields(section)}  # type: ignore[arg-type]
    changes: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise SafdaError(f"{where}: unknown key {prefix + key!r}{nearest(key, known)}")
        if "knob" in known[key].metadata:
            changes[key] = _checked(known[key], value, f"{where}: {prefix}{key}")
        elif isinstance(value, Mapping):
            changes[key] = filled(getattr(section, key), value, where, f"{prefix}{key}.")
        else:
            raise SafdaError(f"{where}: {prefix + key!r} is a section, not a value; set one of its knobs")
    copy: Section = replace(section, **changes)  # type: ignore[type-var]
    return copy


def _checked(f: Field[Any], value: Any, where: str) -> Any:
    """Return the value in the knob's own type, or say what is wrong and what would be right."""
    about: Knob = f.metadata["knob"]
    kind: Any = type(f.default)
    value = _pythons_own(value)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise SafdaError(f"{where} = {' '.join(repr(value).split())} must be {_KIND[kind]}")
    if kind is str and value != value.encode(errors="replace").decode():
        raise SafdaError(f"{where} = {value} cannot be written in UTF-8; give the file another name")
    if about.choices and value not in about.choices:
        raise SafdaError(f"{where} = {value!r} is unknown{nearest(value, about.choices)}")
    if about.low is not None and about.high is not None and not about.low <= value <= about.high:
        bound = kind(about.high if value > about.high else about.low)
        raise SafdaError(f"{where} = {value!r} is out of range{about.range_text}; the nearest right one is {bound!r}")
    return value


def _pythons_own(value: Any) -> Any:
    """Return a number of numpy's, such as a search over ``np.arange`` tries, as Python's own."""
    numpy = sys.modules.get("numpy")  # who has not imported it cannot have made one: recipes are quick to load
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


_KIND = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
