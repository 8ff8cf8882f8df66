"""Names for what can be chosen: methods, scores without labels, backbones, layouts. Each is one entry, where it is.

An entry registers itself where it is written, so adding one touches one file. Another package adds its own by an entry
point of the group ``safda.methods`` (``safda.scores``, …), whose value is the module to import::

    [project.entry-points."safda.methods"]
    mine = "my_package.my_method"
"""

from __future__ import annotations

import pkgutil
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module, metadata
from typing import Any, TypeVar

from safda.errors import SafdaError, SafdaWarning, nearest

Entry = TypeVar("Entry")


class Registry(Mapping[str, Entry]):
    """Entries by name. Modules that register some are imported when a name is first looked up, and not before.

    Args:
        kind: what an entry is called in errors; ``safda.<kind>s`` is the group of entry points.
        home: the module, or the package with all its modules, that registers those that come with safda.

    Example:
        >>> planets = Registry("planet", "safda.errors")
        >>> @planets.register("earth")
        ... def earth(): ...
        >>> "earth" in planets, list(planets)
        (True, ['earth'])
        >>> planets["erth"]
        Traceback (most recent call last):
        ...
        safda.errors.SafdaError: no planet 'erth'; did you mean 'earth'?
    """

    def __init__(self, kind: str, home: str) -> None:
        self.kind, self.home = kind, home
        self._entries: dict[str, Entry] = {}
        self._complete = self._loading = False
        self._lock = threading.RLock()

    def register(self, name: str) -> Callable[[Entry], Entry]:
        """Return a decorator that registers what it decorates; the same thing defined again takes its own place."""

        def add(entry: Entry) -> Entry:
            known = self._entries.get(name)
            if known is not None and _identity(known) != _identity(entry):
                raise SafdaError(f"there is a {self.kind} {name!r} already, {'.'.join(_identity(known))}")
            self._entries[name] = entry
            return entry

        return add

    def __getitem__(self, name: str) -> Entry:
        """Return the entry of that name.

        Raises:
            SafdaError: if there is none; it says which name may have been meant.
        """
        if name not in self:
            raise SafdaError(f"no {self.kind} {name!r}{nearest(str(name), self)}")
        return self._entries[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the entry of that name, or the default."""
        return self._entries[name] if name in self else default

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:  # whoever asks for one that is known need not wait for the others
            self._load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def _load(self) -> None:
        """Import all that registers an entry: by one thread, while others wait; and again, if that has failed."""
        if self._complete:
            return
        with self._lock:
            if self._complete or self._loading:  # one that is being imported may ask for another
                return
            self._loading = True
            try:
                self._import()
                self._complete = True
            finally:
                self._loading = False

    def _import(self) -> None:
        home = import_module(self.home)
        for module in pkgutil.iter_modules(getattr(home, "__path__", ())):
            import_module(f"{self.home}.{module.name}")
        for point in metadata.entry_points(group=f"safda.{self.kind}s"):
            try:
                point.load()
            except Exception as error:  # of another package, whatever it is: safda itself goes on
                why = " ".join(f"{type(error).__name__}: {error}".split())
                warnings.warn(f"the {self.kind} {point.name!r} ({point.value}): {why}", SafdaWarning, stacklevel=4)


def _identity(entry: Any) -> tuple[str, str]:
    kind = entry if hasattr(entry, "__qualname__") else type(entry)
    return kind.__module__, kind.__qualname__
