"""Reading ahead: while a batch is computed, threads read and decode what the next ones need.

Threads suffice: reading, decoding and resizing all let go of Python's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")


def read_ahead(
    read: Callable[[Request], Result], requests: Iterable[Request], threads: int
) -> Generator[Result, None, None]:
    """Yield ``read`` of every request, in order, some of them read before their turn has come; 0 threads: none.

    >>> list(read_ahead(abs, [-1, -2, -3], threads=2))
    [1, 2, 3]
    """
    if not threads:
        yield from map(read, requests)
        return
    remaining = iter(requests)
    with ThreadPoolExecutor(threads, "safda-reader") as pool:
        try:
            pending: deque[Future[Result]] = deque(pool.submit(read, each) for each in islice(remaining, threads + 1))
            while pending:
                result = pending.popleft().result()
                pending.extend(pool.submit(read, each) for each in islice(remaining, 1))
                yield result
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
