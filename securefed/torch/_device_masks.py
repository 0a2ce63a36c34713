"""Add masks to a tensor where it lies: ChaCha20 streams, made by the device that holds it.

`add_masks` is `apply_masks` of the message layer for one tensor on a graphics card, under the stream `chacha20`: the
same words, so that parties with and without a card sum together. It takes the package triton (the extra `gpu`). On a
processor it makes the words as the message layer does. Where TRITON_INTERPRET=1 was set before triton was imported, the
kernel runs on a processor, slowly, for tests.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch

from securefed._extras import needed_for
from securefed.defenses._secure_aggregation.chacha_stream import BLOCK, SEGMENT, ChaChaStream, segment_key
from securefed.defenses._secure_aggregation.masks import SignedMask

_PART = 1 << 17
"""Bytes of a stream that a processor makes at a time, so that they stay in its cache."""


def add_masks(
    words: torch.Tensor, masks: Sequence[SignedMask], *, offset: int = 0, remove: bool = False,
    signs: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Add every mask to a tensor, in place.

    Args:
        words: int32 or int64, flat and contiguous.
        masks: secrets with their signs.
        offset: place of the first word in the streams.
        remove: whether to subtract them instead.
        signs: int32 (masks,) on the device of `words`, in place of the masks' own: 1, -1, or 0 to make a mask and leave
            it out. They may be the outcome of a computation there that the processor has not seen.

    Raises:
        MissingExtraError: the words are not in a processor's memory, and triton is not installed.
    """
    if not words.numel() or not masks:
        return
    if signs is None:
        signs = torch.tensor([-mask.sign if remove else mask.sign for mask in masks], dtype=torch.int32)
        signs = signs.to(words.device, non_blocking=True)
    add = _add_on_processor if on_processor(words.device) else _add_on_device
    per_segment, start = SEGMENT // words.element_size(), 0
    while start < words.numel():  # one launch, where the words do not cross the end of a segment
        segment, inside = divmod(offset + start, per_segment)
        part = words[start : start + per_segment - inside]
        add(part, masks, signs, segment, inside)
        start += part.numel()


def on_processor(device: torch.device) -> bool:
    """Tell whether masks for a tensor there are made by the processor, without triton."""
    return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"


def _add_on_device(
    words: torch.Tensor, masks: Sequence[SignedMask], signs: torch.Tensor, segment: int, inside: int
) -> None:
    """Add the masks from word `inside` of a segment on, by one launch of the kernel."""
    with needed_for("masks made on a graphics card"):
        from securefed.torch._chacha_kernel import LANES, add_streams  # noqa: PLC0415 - imports triton

    width = words.element_size()
    block, before = divmod(inside * width, BLOCK)
    made = b"".join(segment_key(mask.secret, width, segment) for mask in masks)
    keys = torch.from_numpy(np.frombuffer(made, "<i4").copy()).to(words.device, non_blocking=True)
    blocks = -(-(words.numel() * width + before) // BLOCK)
    with torch.cuda.device(words.device) if words.device.type == "cuda" else torch.no_grad():
        add_streams[(-(-blocks // LANES),)](
            words, keys, signs, len(masks), words.numel(), before // width, block, WIDE=width == 8, BLOCKS=LANES
        )


def _add_on_processor(
    words: torch.Tensor, masks: Sequence[SignedMask], signs: torch.Tensor, segment: int, inside: int
) -> None:
    """Add the masks from word `inside` of a segment on, a part at a time."""
    width = words.element_size()
    flat = words.numpy().view(f"<u{width}")
    first = segment * SEGMENT + inside * width
    streams = [ChaChaStream(mask.secret, width, first) for mask in masks]
    chosen = [flat.dtype.type(sign % 2 ** (8 * width)) for sign in signs.tolist()]
    for start in range(0, flat.size, _PART // width):
        part = flat[start : start + _PART // width]
        for stream, sign in zip(streams, chosen, strict=True):
            part += sign * np.frombuffer(stream.update(bytes(part.nbytes)), flat.dtype)
