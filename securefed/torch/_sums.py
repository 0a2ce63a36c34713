"""Masked sums over a process group: start one, and open it when it has come back.

The words of a sum are the integers that travel: this rank's values in fixed point, masked, followed by control words in
which a rank reports that its values are too large or not finite (`_masking`). The backend adds the words of all ranks,
and in the sum the masks of each pair of ranks cancel. The common stream does not: rank 0 adds it to its words, and all
ranks know it and subtract it from the sum. So a party outside the group that reads the network does not learn the sum.
The masks that `MaskStore` hands out hold the common stream already at rank 0. `MaskingState` starts one sum for each
bucket of gradients, and opens them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist

from securefed._tensors import Array
from securefed.defenses._secure_aggregation.chacha_stream import AES, StreamName
from securefed.errors import MaskMismatch
from securefed.torch._encoding import add_rounded, trouble_of
from securefed.torch._masking import CONTROL, Call, RankMasks, Trouble, read_control, spoil
from securefed.torch._precompute import MaskStore


@dataclass(frozen=True, eq=False)
class StartedSum:
    """A sum under way.

    Attributes:
        call: its public facts.
        values: this rank's values, flat; the caller writes the mean into the same memory.
        words: what the backend sums, in place.
        work: the backend's handle.
    """

    call: Call
    values: torch.Tensor
    words: torch.Tensor
    work: Any


@dataclass(frozen=True, eq=False)
class OpenedSum:
    """A sum that has come back.

    Attributes:
        words: the summed integers, without control words: a view of `StartedSum.words`.
        trouble: what some rank reported.
        error: why the sum is of no use, `None` where the masks cancelled.
    """

    words: torch.Tensor
    trouble: Trouble | None = None
    error: MaskMismatch | None = None


class MaskedSums:
    """Start and open masked sums.

    Args:
        group: process group.
        device: where its backend sums.

    Attributes:
        stream: name of the stream that masks are made of.
        store: masks by call, from `use` on, which `MaskingState` calls when the ranks have agreed on keys; that
            agreement itself needs `in_the_clear`.
    """

    stream: ClassVar[StreamName] = AES

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self._group, self._device = group, device
        self.store: MaskStore

    def use(self, masks: RankMasks) -> None:
        """Take the masks on which the ranks agreed; once, before the first `start`."""
        self.store = MaskStore(masks)

    def expect(self, calls: Iterable[Call]) -> None:
        """Start to expand the masks of coming calls; forget those of other calls."""
        self.store.expect(calls)

    def in_the_clear(self, array: Array) -> Array:
        """Sum an array over all ranks, for the agreement of keys."""
        words = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=True)).to(self._device)
        dist.all_reduce(words, group=self._group)
        out: Array = words.cpu().numpy()
        return out

    def start(self, call: Call, values: torch.Tensor, bound: float) -> StartedSum:
        """Mask the values of this rank and hand them to the backend.

        Args:
            call: the public facts of the sum, the same at every rank.
            values: this rank's values, flat.
            bound: largest absolute value that they may have; beyond it this rank reports trouble instead.
        """
        masks = self.store.take(call)
        trouble = trouble_of(values, bound)
        if trouble is not None:
            spoil(masks, trouble)  # uniform words instead of values: the sum is noise at all ranks, which learn why
        words = self._words(masks)
        if trouble is None:
            add_rounded(words[:-CONTROL], values.to(self._device), call.step)
        return StartedSum(call, values, words, dist.all_reduce(words, group=self._group, async_op=True))

    def open(self, started: Sequence[StartedSum]) -> list[OpenedSum]:
        """Wait for sums and read them.

        Raises:
            RuntimeError: of the backend, where a rank is lost; raised after all others have ended too.
        """
        errors: list[Exception] = []
        for one in started:
            try:
                one.work.wait()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        controls = self._control_words(started)
        return [_opened(one, control) for one, control in zip(started, controls, strict=True)]

    def give_back(self, started: Sequence[StartedSum]) -> None:
        """Let the words of sums serve later calls, where they lie on the CPU.

        Call it when the values of `OpenedSum.words`, which lie in the same memory, have been decoded.
        """
        self.store.give_back([_unsigned(one.words) for one in started if one.words.device.type == "cpu"])

    def _control_words(self, started: Sequence[StartedSum]) -> list[Array]:
        """Remove the common streams from sums that have come back, and return their control words."""
        for one in started:
            if one.words.device.type == "cpu":
                self.store.remove_common(_unsigned(one.words), one.call)
            else:  # on a GPU: 0 minus the common stream is made on the CPU, and added there
                minus_common = np.zeros(one.words.numel(), _unsigned_type(one.words))
                self.store.remove_common(minus_common, one.call)
                one.words.add_(self._words(minus_common))
        return [_unsigned(one.words[-CONTROL:].cpu()) for one in started]

    def _words(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array.view(f"<i{array.itemsize}")).to(self._device)


def _opened(started: StartedSum, control: Array) -> OpenedSum:
    """Read a sum's control words.

    The last two are 0 at every rank. If masks do not cancel, they are uniform in the sum, and `read_control` raises
    unless both are 0 by chance: 2^-64, or 2^-128 in a ring of 64 bits.
    """
    values = started.words[:-CONTROL]
    try:
        return OpenedSum(values, read_control(control, started.call))
    except MaskMismatch as error:
        return OpenedSum(values, error=error)


def _unsigned_type(words: torch.Tensor) -> np.dtype[Any]:
    return np.dtype(f"<u{words.element_size()}")


def _unsigned(words: torch.Tensor) -> Array:
    out: Array = words.numpy().view(_unsigned_type(words))
    return out
