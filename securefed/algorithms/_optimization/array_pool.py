"""Reuse the memory of large arrays; to allocate fresh memory takes longer than most steps take to fill it.

The batched computation of simulated clients (cohort.py, factored_cohort.py) takes its large arrays from a pool, since
it makes arrays of the same sizes in every step and round. "Idle" is decided by CPython's reference counts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np

from securefed._tensors import Array

ROOMY = 2
"""Largest size of a block that is reused, as a multiple of the size asked for."""


class ArrayPool:
    """Uninitialised arrays, for any number of threads.

    When no reference to an array is left, not even through a view, the pool reuses its memory for the next array of
    about the same size. An array that is still referred to never changes. The pool keeps about as much memory as was in
    use at one time, and frees it together with its owner. A copy or a pickle of a pool is an empty pool.
    """

    def __init__(self) -> None:
        self._blocks: list[Array] = []
        self._lock = Lock()

    def __reduce__(self) -> tuple[Callable[[], ArrayPool], tuple[()]]:
        return ArrayPool, ()

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """Return an uninitialised array of this shape and type; it is the caller's as long as it is referred to."""
        size = math.prod(shape) * dtype.itemsize
        with self._lock:
            block = self._idle(size)
            return block[:size].view(dtype).reshape(shape)  # the block is in use from here on: a view refers to it

    def _idle(self, size: int) -> Array:
        """Return an idle block of at least `size` bytes, or a new one in place of slightly smaller idle blocks."""
        idle = [k for k, count in enumerate(_references(self._blocks)) if count == _OURS]
        fitting = [k for k in idle if size <= len(self._blocks[k]) <= ROOMY * size]
        if fitting:
            return self._blocks[min(fitting, key=lambda k: len(self._blocks[k]))]
        small = {k for k in idle if size / ROOMY <= len(self._blocks[k]) < size}
        self._blocks = [block for k, block in enumerate(self._blocks) if k not in small]
        self._blocks.append(np.empty(size, np.uint8))
        return self._blocks[-1]


def _references(blocks: Sequence[Array]) -> list[int]:
    """Return the interpreter's reference count of each array."""
    return [sys.getrefcount(block) for block in blocks]


_OURS = _references([np.empty(0)])[0]
"""Reference count of an array that only a list refers to."""
