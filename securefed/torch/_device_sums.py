"""Masked sums whose masks, fixed point and checks are made by the device that holds the values.

The words are those of `_sums` under the mask stream `chacha20`, so ranks with a card and ranks without one can sum
together. The processor queues work for the card and does not wait for it: whether values are beyond the bound or not
finite stays on the card, where it decides whether the rank's values or uniform words are added. The control words of
all sums of a step come back in one copy, at the end of the backward pass.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
import torch
import torch.distributed as dist

from securefed._extras import is_installed
from securefed._tensors import Array
from securefed.defenses._secure_aggregation.chacha_stream import CHACHA20, StreamName
from securefed.defenses._secure_aggregation.masks import SignedMask
from securefed.defenses._secure_aggregation.primitives import KEY_BYTES
from securefed.torch._device_masks import add_masks
from securefed.torch._encoding import add_rounded
from securefed.torch._masking import CONTROL, Call, RankMasks, Trouble
from securefed.torch._sums import MaskedSums, StartedSum


def sums_for(group: dist.ProcessGroup | None, device: torch.device) -> MaskedSums:
    """Return the sums of a group: made by the card where the backend sums on one, and triton is there to program it."""
    kind = DeviceSums if device.type == "cuda" and is_installed("triton") else MaskedSums
    return kind(group, device)


class DeviceSums(MaskedSums):
    """Start and open masked sums on the device that holds the values; arguments as for `MaskedSums`."""

    stream: ClassVar[StreamName] = CHACHA20

    def use(self, masks: RankMasks) -> None:
        """Take the masks on which the ranks agreed."""
        self._masks = masks

    def expect(self, calls: Iterable[Call]) -> None:
        """Do nothing: the card makes masks when they are needed, faster than it could read those made before."""

    def give_back(self, started: Sequence[StartedSum]) -> None:
        """Do nothing: the words' memory goes back to torch's own pool."""

    def start(self, call: Call, values: torch.Tensor, bound: float) -> StartedSum:
        """Mask the values of this rank and hand them to the backend, all of it queued on the device."""
        flat = values.detach()
        dtype = torch.int32 if call.ring == 32 else torch.int64
        words = torch.zeros(call.length + CONTROL, dtype=dtype, device=self._device)
        too_large, not_finite = _troubles(flat, bound)
        out = too_large | not_finite
        add_rounded(words[:-CONTROL], flat.to(self._device), call.step)
        words.mul_((~out).to(self._device, dtype))  # as much work where all is well
        stand_in = [SignedMask(secrets.token_bytes(KEY_BYTES), 1)]
        add_masks(words[:-CONTROL], stand_in, signs=out.to(self._device, torch.int32).reshape(1))
        for trouble, flag in ((Trouble.TOO_LARGE, too_large), (Trouble.NOT_FINITE, not_finite)):
            uniform = np.frombuffer(secrets.token_bytes(2 * words.element_size()), f"<i{words.element_size()}")
            place = call.length + trouble.value
            words[place : place + 2] += torch.from_numpy(uniform.copy()).to(self._device) * flag.to(self._device, dtype)
        add_masks(words, self._masks.of_call(call))
        return StartedSum(call, values, words, dist.all_reduce(words, group=self._group, async_op=True))

    def _control_words(self, started: Sequence[StartedSum]) -> list[Array]:
        """Remove the common streams, and copy the control words of all sums at once."""
        for one in started:
            add_masks(one.words, [self._masks.common_of_call(one.call)], remove=True)
        if not started:
            return []
        together = torch.stack([one.words[-CONTROL:] for one in started]).cpu().numpy()
        return list(together.view(f"<u{together.itemsize}"))


def _troubles(values: torch.Tensor, bound: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Tell on the device whether values are beyond the bound, all being finite, and whether some are not finite."""
    if not values.numel():
        none = torch.zeros((), dtype=torch.bool, device=values.device)
        return none, none
    low, high = (x.double() for x in torch.aminmax(values))  # NaN where any entry is
    not_finite = ~(torch.isfinite(low) & torch.isfinite(high))
    return (torch.maximum(-low, high) > bound) & ~not_finite, not_finite
