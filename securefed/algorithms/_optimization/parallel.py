"""Groups of a cohort side by side: NumPy leaves the interpreter's lock in products and sums, so threads suffice."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import TypeVar

from threadpoolctl import ThreadpoolController

A = TypeVar("A")
B = TypeVar("B")

SWITCH_SECONDS = 1e-3
"""How long a thread waits for the interpreter's lock before it asks: Python's own 5 ms are a tenth of a round."""


def side_by_side(function: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """`function` of each item, in order, on as many threads as `threads` says.

    Meanwhile a product runs on one thread: two groups at once are faster than two threads on the small products of
    one; and threads ask for the interpreter's lock after `SWITCH_SECONDS`. Both settings are the process's own and are
    put back.
    """
    todo = list(items)
    workers = min(threads(), len(todo))
    if workers <= 1:
        return [function(item) for item in todo]
    with _switching(), _controller().limit(limits=1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, todo))


def threads() -> int:
    """Processors this process may use, or fewer where OMP_NUM_THREADS says so."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(processors, int(asked)) if asked.isdigit() and int(asked) > 0 else processors


@contextmanager
def _switching() -> Iterator[None]:
    """A shorter switch interval; what it was before is put back with the last of several that overlap."""
    with _lock:
        _before.append(_before[0] if _before else sys.getswitchinterval())
        sys.setswitchinterval(min(_before[0], SWITCH_SECONDS))
    try:
        yield
    finally:
        with _lock:
            before = _before.pop()
            if not _before:
                sys.setswitchinterval(before)


_lock = Lock()
_before: list[float] = []
"""The interval to put back, once for each that runs."""


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all loaded libraries, which takes milliseconds
