"""Compute groups of simulated clients in parallel threads; NumPy releases the interpreter's lock in products and sums.

`GradientMethod.contribute_together` calls `side_by_side` in every round of a simulation.
"""

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
"""Seconds a thread waits before it asks for the interpreter's lock; Python's default, 5 ms, is a tenth of a short
round."""


def side_by_side(function: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """Return `function` of each item, in order, computed on `threads()` threads; an error of one call is raised.

    Meanwhile each matrix product runs on one thread, since two groups at once are faster than two threads on the small
    products of one group, and threads ask for the interpreter's lock after `SWITCH_SECONDS`. Both settings hold for the
    whole process; they are restored at the end.
    """
    listed = list(items)
    workers = min(threads(), len(listed))
    if workers <= 1:
        return [function(item) for item in listed]
    with _switching(), _controller().limit(limits=1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, listed))


def threads() -> int:
    """Return the number of processors this process may use, or OMP_NUM_THREADS where that is smaller."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(processors, int(asked)) if asked.isdigit() and int(asked) > 0 else processors


@contextmanager
def _switching() -> Iterator[None]:
    """Shorten the switch interval; the last of several overlapping calls restores the old one."""
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
"""The interval to restore, once for each call in progress."""


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all loaded libraries, which takes milliseconds
