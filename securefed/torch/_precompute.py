"""Expand the masks of coming calls in a thread, while the optimiser and the next forward pass run.

A call sums one tensor over all ranks. Its masks are pseudo-random integers, as many as the tensor has entries, expanded
by AES from a secret with each other rank. They do not depend on the tensor, so they can be ready before it is.

A thread's expansion is one pass of AES and additions over whole buffers, which release the interpreter's lock. It helps
where a processor is idle then; where none is, it costs no more than expanding in the call. Buffers are used again:
on 10^7 words a fresh one costs as much in page faults as the streams in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from securefed._tensors import Array
from securefed.torch._masking import CONTROL, Call, RankMasks


class MaskStore:
    """Masks by call, each handed out once; those of coming calls are expanded ahead.

    `MaskingState` makes one after the agreement of keys, and calls `expect` at the end of each step. `MaskedSums` calls
    the rest.

    Args:
        masks: the masks of this rank.
    """

    def __init__(self, masks: RankMasks) -> None:
        self._masks = masks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="securefed-masks")
        self._ahead: dict[Call, Future[Array]] = {}
        self._spare: list[Array] = []

    def expect(self, calls: Iterable[Call]) -> None:
        """Start to expand the masks of these calls, in their order; forget those of other calls."""
        for waiting in self._ahead.values():
            waiting.cancel()
        self._ahead = {call: self._thread.submit(self._masks.expand, call, self._buffer(call)) for call in calls}

    def take(self, call: Call) -> Array:
        """Return the masks of a call, uint32 or uint64 (values and control words,), which the caller may overwrite.

        They are expanded now where they are not under way.
        """
        ahead = self._ahead.pop(call, None)
        if ahead is None or ahead.cancel():
            return self._masks.expand(call, self._buffer(call))
        return ahead.result()

    def give_back(self, buffers: Iterable[Array]) -> None:
        """Keep buffers that `take` returned, whose contents are no longer needed, in place of those kept before."""
        self._spare = list(buffers)

    def remove_common(self, words: Array, call: Call) -> None:
        """Subtract the common stream from a sum, in place.

        Rank 0 added it and all ranks know it: so who is no rank and reads the network does not learn the sum.
        """
        self._masks.remove_common(words, call)

    def _buffer(self, call: Call) -> Array | None:
        """Take out a kept buffer of the call's size; `None` without one. All calls of a state have one ring."""
        fits = (k for k, spare in enumerate(self._spare) if spare.nbytes * 8 == (call.length + CONTROL) * call.ring)
        place = next(fits, None)
        return None if place is None else self._spare.pop(place)
