"""Convert tensors to integers of a ring and back, in place and a part at a time.

An entry x travels as the integer round(x / step), a word, which is masked and added modulo 2^32 or 2^64. `add_rounded`
adds these integers to the masks, and `decode_into` turns the summed words back into numbers.

A part of 65536 entries and its two temporaries take 768 kB, which a core's second-level cache holds. On 10^7 entries
parts of twice that size take as long, parts of a quarter of it twice as long, and the whole tensor at once six times as
long. On a GPU the tensor is one part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch

from securefed.torch._masking import Trouble

_PART: Final = 1 << 16
_SAMPLE: Final = 1 << 11
"""Entries of a bucket that are looked at; twice as many change the typical size of a bucket by a hundredth or two."""


def trouble_of(values: torch.Tensor, bound: float) -> Trouble | None:
    """Tell why values cannot be added: not finite, or beyond the bound; `None` where they can."""
    if not values.numel():
        return None
    low, high = (float(x) for x in torch.aminmax(values.detach()))  # NaN where any entry is
    if not (math.isfinite(low) and math.isfinite(high)):
        return Trouble.NOT_FINITE
    return Trouble.TOO_LARGE if max(-low, high) > bound else None


def add_rounded(words: torch.Tensor, values: torch.Tensor, step: float) -> None:
    """Add `round(values / step)` to the words, in place; every quotient must fit the words."""
    part = _part(values)
    with torch.no_grad():
        units = torch.empty(part, dtype=_arithmetic(values.dtype, words.dtype), device=values.device)
        whole = torch.empty(part, dtype=words.dtype, device=values.device)
        for into, source in zip(torch.split(words, part), torch.split(values.detach(), part), strict=True):
            scaled, rounded = units[: source.numel()], whole[: source.numel()]
            if source.dtype == scaled.dtype:
                torch.mul(source, 1 / step, out=scaled)
            else:
                scaled.copy_(source).mul_(1 / step)
            scaled.round_()
            rounded.copy_(scaled)
            into.add_(rounded)


def decode_into(values: torch.Tensor, words: torch.Tensor, unit: float) -> None:
    """Set the flat `values` to `unit * words`, in their own type.

    Args:
        values: floating-point tensor to write into.
        words: summed integers, as many.
        unit: value of 1 in the sum: the step for a sum, or the step over the number of ranks for a mean.
    """
    part = _part(words)
    wide = _arithmetic(values.dtype, words.dtype)
    with torch.no_grad():
        for into, source in zip(torch.split(values, part), torch.split(words, part), strict=True):
            if into.dtype == wide:
                into.copy_(source).mul_(unit)
            else:
                into.copy_(source.to(wide).mul_(unit))


def largest(words: torch.Tensor) -> int:
    """Return the largest absolute value of the words."""
    if not words.numel():
        return 0
    low, high = torch.aminmax(words)
    return max(-int(low), int(high))


def typical_size(tensors: Sequence[torch.Tensor]) -> float:
    """Return the root mean square of the entries without the largest hundredth, from at most `_SAMPLE` of each tensor.

    A few huge entries, which one rank alone can make, do not change it much.
    """
    parts = [tensor.detach()[:: max(tensor.numel() // _SAMPLE, 1)].abs().float() for tensor in tensors]
    sample = torch.cat(parts).sort().values
    kept = sample[: max(sample.numel() - sample.numel() // 100 - 1, 1)]
    return float(kept.square().mean().sqrt())


def rounding_error(dtype: torch.dtype) -> float:
    """Return the relative error of `decode_into`: three roundings at most, each of half an epsilon.

    They are of the word to the type in which it is scaled, of the product with the unit, and to the tensor's own type.
    """
    return 1.5 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps if dtype != torch.float64 else 0.0)


def _arithmetic(dtype: torch.dtype, words: torch.dtype) -> torch.dtype:
    """Choose the type to scale in.

    float32 is enough for words of 32 bits: times 1 / step, a power of two, it is exact, and so is its rounded value.
    """
    return torch.float64 if dtype == torch.float64 or words == torch.int64 else torch.float32


def _part(values: torch.Tensor) -> int:
    return _PART if values.device.type == "cpu" else max(values.numel(), 1)
