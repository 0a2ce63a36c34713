"""Infer the precision of numbers from the numbers themselves, for instance that messages are float32."""

from __future__ import annotations

import numpy as np

from securefed._tensors import Array

_MANTISSA = 53


def rounding(values: Array, unit: float = 0.0) -> Array:
    """Estimate the standard deviation of the rounding error of each entry, in the shape of `values`.

    The numbers of a format with b bits are multiples of 2^(e - b), e their exponent, and those of fixed point of one
    power of two. The fewest bits and the coarsest power that explain all entries are taken, so many entries are
    needed: a single one may have few bits by chance.

    Args:
        values: of one format, float64 or narrower.
        unit: unit of fixed-point numbers, where it is public; it need not be a power of two.
    """
    flat = np.abs(np.asarray(values, float))
    fraction, exponent = np.frexp(flat)
    whole = np.ldexp(fraction, _MANTISSA).astype(np.int64)
    used = whole != 0
    if not used.any():
        return np.full(flat.shape, unit / np.sqrt(12))
    last = exponent - _MANTISSA + np.frexp((whole & -whole).astype(float))[1] - 1  # of the last bit set
    bits, grid = int(np.max((exponent - last)[used])), int(last[used].min())
    step = np.ldexp(1.0, np.where(used, np.maximum(exponent - bits, grid), grid))
    return np.asarray(np.maximum(step, unit) / np.sqrt(12))
