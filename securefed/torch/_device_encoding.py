"""Turn a client's update into masked words where it lies: fixed point, range check, stand-in and masks on its device.

The words are, bit for bit, those that the message layer makes of the same update in NumPy: an entry x of weight w / W
becomes round((w / W) x / step) in float64, ties to even, in the integers modulo 2^ring, several of them in one word
where the ring is narrow. Nothing depends on the update in the time that the processor takes: whether an entry is beyond
its bound or not finite stays on the device, where it decides which of two words of equal work is sent, the entry's or a
uniform one. The uniform words are a ChaCha20 stream under a fresh key of the operating system.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from securefed.defenses._fixed_point import lanes, wire_dtype, wire_size
from securefed.defenses._plan import Plan, TensorPlan
from securefed.defenses._secure_aggregation.masks import SignedMask
from securefed.defenses._secure_aggregation.primitives import KEY_BYTES
from securefed.torch._device_masks import add_masks

_PART = 1 << 26
"""Entries converted at a time on a card: 512 MB in float64. On a processor a part stays in the cache."""
_PROCESSOR_PART = 1 << 15


@dataclass(frozen=True)
class Entries:
    """A tensor of a contribution, before it is scaled.

    Attributes:
        value: the update's tensor, of any real type, on any device.
        scale: what each entry is multiplied by: its weight over the largest weight.
        base: what is subtracted first, where differences are summed; `None` without it.
    """

    value: torch.Tensor
    scale: float = 1.0
    base: torch.Tensor | None = None


@dataclass(frozen=True)
class MaskedUpload:
    """What a client sends, on its device.

    Attributes:
        words: by tensor its masked words, int32 or int64, flat: views of one tensor for each width.
        out: whether the client sits out, bool () on the device; reading it waits for the device.
    """

    words: Mapping[str, torch.Tensor]
    out: torch.Tensor


def masked_upload(contribution: Mapping[str, Entries], plan: Plan, masks: Sequence[SignedMask]) -> MaskedUpload:
    """Encode and mask a whole contribution on its device; one launch for each width of words.

    Args:
        contribution: by name the plan's tensors, all on one device.
        plan: shapes, bounds, steps and rings; its mask stream is ChaCha20.
        masks: the client's masks of this exchange; they serve no other upload.

    Returns:
        The words. Where an entry is beyond its bound or not finite, all of them are uniform.
    """
    device = contribution[plan.tensors[0].name].value.device
    flats, views = _allocate(plan, device)
    out = torch.zeros((), dtype=torch.bool, device=device)
    for tensor in plan.tensors:
        out |= _encode(contribution[tensor.name], tensor, views[tensor.name])
    own = torch.tensor([mask.sign for mask in masks], dtype=torch.int32).to(device, non_blocking=True)
    signs = torch.cat([own, out.to(torch.int32).reshape(1)])
    stand_in = SignedMask(secrets.token_bytes(KEY_BYTES), 1)
    for flat in flats:
        flat.mul_((~out).to(flat.dtype))  # as much work where the client takes part
        add_masks(flat, [*masks, stand_in], signs=signs)
    return MaskedUpload(views, out)


def _allocate(plan: Plan, device: torch.device) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Return a flat tensor for each width, narrow words first, and views of them for the tensors, in their order."""
    flats: list[torch.Tensor] = []
    views: dict[str, torch.Tensor] = {}
    for width, dtype in ((4, torch.int32), (8, torch.int64)):
        own = [tensor for tensor in plan.tensors if wire_dtype(tensor.ring).itemsize == width]
        sizes = [wire_size(tensor.size, tensor.ring) for tensor in own]
        if not sum(sizes):
            views |= {tensor.name: torch.empty(0, dtype=dtype, device=device) for tensor in own}
            continue
        flat = torch.empty(sum(sizes), dtype=dtype, device=device)
        views |= {tensor.name: part for tensor, part in zip(own, torch.split(flat, sizes), strict=True)}
        flats.append(flat)
    return flats, views


def _encode(entries: Entries, tensor: TensorPlan, words: torch.Tensor) -> torch.Tensor:
    """Write a tensor's integers into `words`.

    Returns:
        Whether an entry is beyond the bound or not finite, bool () on the device; the words are then of no use.
    """
    assert tensor.bound is not None
    value, base = entries.value.detach().reshape(-1), entries.base
    base = None if base is None else base.detach().to(value.device).reshape(-1)
    largest = torch.zeros((), dtype=torch.float64, device=value.device)
    width, bits = words.numel(), 0 if lanes(tensor.ring) == 1 else tensor.ring
    size = _PROCESSOR_PART if value.device.type == "cpu" else _PART
    for lane in range(lanes(tensor.ring)):
        end = min((lane + 1) * width, value.numel())
        for start in range(lane * width, end, size):
            part = slice(start, min(start + size, end))
            scaled = value[part].to(torch.float64, copy=True)
            if base is not None:
                scaled -= base[part].to(torch.float64)
            scaled *= entries.scale
            low, high = scaled.aminmax()  # NaN where an entry is, and NaN stays in the maximum
            largest = torch.maximum(largest, torch.maximum(-low, high))
            scaled *= 1.0 / tensor.step
            integers = scaled.round_().to(torch.int64)
            into = words[start - lane * width : part.stop - lane * width]
            if lane:
                into += integers << (lane * bits)
            else:
                into.copy_(integers)  # the low bits
    return ~(largest <= tensor.bound)
