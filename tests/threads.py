"""Threads that start together, and change places as often as Python lets them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

THREADS = 4


@pytest.fixture(autouse=True)
def hasty() -> Iterator[None]:
    """Let threads change places after a microsecond."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def at_once(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Return `work(0)`, `work(1)`, ... of threads that start together."""
    together = threading.Barrier(threads)

    def begin(number: int) -> Any:
        together.wait()
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(begin, range(threads)))
