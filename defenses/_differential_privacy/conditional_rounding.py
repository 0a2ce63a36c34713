"""Round vectors at random, on condition of a bounded norm (Kairouz, Liu, Steinke, ICML 2021, sec. 4.1).

Each entry is rounded up or down at random so that its mean is right, again and again until the rounded vector's squared
norm is within `rounded_squares`. The norm is checked in integers on what is returned, so it is the sensitivity whatever
floating point did before.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from securefed._sampling.random_stream import RandomStream, uniforms
from securefed._tensors import Array

_LOG_INVERSE_BETA: Final = 0.5
"""log(1 / beta): a vector of full norm is accepted with probability 1 - beta = .39 at least."""

_ATTEMPTS: Final = 100


def rounded_squares(norm: float, entries: int) -> int:
    """Compute the largest squared norm of a rounded vector: the squared L2 sensitivity (their eq. 2).

    Args:
        norm: largest norm before rounding, in units of the ring's integers.
        entries: length of the vector.
    """
    typical = norm**2 + entries / 4 + math.sqrt(2 * _LOG_INVERSE_BETA) * (norm + math.sqrt(entries) / 2)
    return math.floor(min(typical, (norm + math.sqrt(entries)) ** 2))


def round_conditionally(values: Array, squares: int, stream: RandomStream) -> Array:
    """Round `values` (float64, in units) to int64 with a squared norm of at most `squares`.

    Unbiased up to the condition; rounds towards zero where it fails 100 times (probability .61^100 = 1e-22). Zeros
    where even that exceeds `squares`, or is NaN: noise follows, and a refusal would reveal what the noise hides.
    """
    nothing: Array = np.zeros(values.shape, np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        least = np.trunc(values)
        within = float(least @ least) <= squares * (1 + 1e-9)
    if not within:  # before any cast: values beyond int64 would wrap
        return nothing
    for _ in range(_ATTEMPTS):
        rounded: Array = np.floor(values + uniforms(stream, values.size)).astype(np.int64)
        if int(rounded @ rounded) <= squares:
            return rounded
    towards_zero: Array = least.astype(np.int64)
    return towards_zero if int(towards_zero @ towards_zero) <= squares else nothing
