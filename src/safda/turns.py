"""Threads of one process that train, load and draw: torch's generator and accelerate's state are the process's own.

A run seeds that generator at every step. So runs take turns, whole ones; and while a step draws, or a network is made
elsewhere, nobody else of ours does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

#: Held while something of ours draws from torch's generator.
GENERATOR = threading.RLock()

_run = threading.RLock()

Given = ParamSpec("Given")
Result = TypeVar("Result")


def in_turn(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return a function of which one call at a time runs in this process, with all others that are in turn."""

    @wraps(function)
    def waits(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with _run:
            return function(*args, **kwargs)

    return waits


@contextmanager
def borrowed_generator(seed: int) -> Iterator[None]:
    """Seed torch's generator for a while, and leave it as it was."""
    with GENERATOR, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
