"""Where caches live, and how many workers read: what depends on the machine and never on the experiment."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return the folder of all caches: ``$SAFDA_CACHE``, or ``safda`` in the user's cache folder."""
    own = os.environ.get("SAFDA_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "safda"


def num_workers() -> int:
    """Return how many threads read and decode: one for each core, shared among the processes of torchrun."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
