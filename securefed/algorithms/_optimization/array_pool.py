"""Arrays whose memory serves again: to be handed fresh memory takes longer than most steps take to fill it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np

from securefed._tensors import Array

ROOMY = 2
"""How many times what is asked for a block may hold."""


class ArrayPool:
    """Uninitialised arrays, for any number of threads.

    The memory of an array that nobody refers to any more, not even through a view, serves the next of about its size:
    no array that somebody holds ever changes. A pool keeps about what was in use at once; it goes with its owner, and a
    copy or a pickle of it is a new one.
    """

    def __init__(self) -> None:
        self._blocks: list[Array] = []
        self._lock = Lock()

    def __reduce__(self) -> tuple[Callable[[], ArrayPool], tuple[()]]:
        return ArrayPool, ()

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array of this shape and type, of whatever was there before."""
        size = math.prod(shape) * dtype.itemsize
        with self._lock:
            block = self._idle(size)
            return block[:size].view(dtype).reshape(shape)  # the block is in use from here on: a view refers to it

    def _idle(self, size: int) -> Array:
        """A block of at least `size` bytes; where none is idle, a new one in place of the idle ones too small."""
        held = _references(self._blocks)
        idle = [k for k, count in enumerate(held) if count == _OURS]
        fitting = [k for k in idle if size <= len(self._blocks[k]) <= ROOMY * size]
        if fitting:
            return self._blocks[min(fitting, key=lambda k: len(self._blocks[k]))]
        small = {k for k in idle if size / ROOMY <= len(self._blocks[k]) < size}
        self._blocks = [block for k, block in enumerate(self._blocks) if k not in small]
        self._blocks.append(np.empty(size, np.uint8))
        return self._blocks[-1]


def _references(blocks: Sequence[Array]) -> list[int]:
    return [sys.getrefcount(block) for block in blocks]


_OURS = _references([np.empty(0)])[0]
"""What an array counts that only a list refers to."""
