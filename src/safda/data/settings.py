"""Where caches live, and how many workers read: what depends on the machine and never on the experiment."""

from __future__ import annotations

import atexit
import os
import tempfile
import warnings
from functools import cache
from pathlib import Path

from safda.errors import SafdaError, SafdaWarning


def cache_dir() -> Path:
    """Return the folder of all caches: ``$SAFDA_CACHE``, or ``safda`` in the user's cache folder.

    A user without a home has one that goes when the process ends.
    """
    own = os.environ.get("SAFDA_CACHE")
    if own:
        return Path(own)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "safda"
    except RuntimeError:
        _say_temporary("there is no home folder for caches")
        return _temporary_dir()


def cached_folders(name: str) -> list[Path]:
    """Return where a cache's files may be: in the folder of all caches, and in what stands in for it."""
    made = _temporary_dir.cache_info().currsize > 0
    return [root / name for root in (cache_dir(), *((_temporary_dir(),) if made else ()))]


def writable_cache(name: str) -> Path:
    """Return a cache's folder, made; where nothing can be written there, one that goes when the process ends."""
    folder = cache_dir() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        why = "" if os.access(folder, os.W_OK | os.X_OK) else "Permission denied"
    except OSError as error:
        why = str(error.strerror)
    if not why:
        return folder
    _say_temporary(f"{folder}: cannot be written ({why})")
    (_temporary_dir() / name).mkdir(parents=True, exist_ok=True)
    return _temporary_dir() / name


def _say_temporary(why: str) -> None:
    what = "what is computed now is not kept for the next time; SAFDA_CACHE names another folder"
    warnings.warn(f"{why}; {what}", SafdaWarning, stacklevel=1)  # from one place: said once


@cache
def _temporary_dir() -> Path:
    """Make a folder that goes when the process ends."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="safda-")
    except OSError as error:
        raise SafdaError(f"no folder can be made for caches ({error.strerror}); set SAFDA_CACHE to one") from None
    atexit.register(folder.cleanup)
    return Path(folder.name)


def num_workers() -> int:
    """Return how many threads read and decode: one for each core, shared among the processes of torchrun."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
