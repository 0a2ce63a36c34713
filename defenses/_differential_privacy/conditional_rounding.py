"""Round vectors at random, on condition of a bounded norm (Kairouz, Liu, Steinke, ICML 2021, sec. 4.1).

A client with distributed noise (`distributed`) rounds its clipped and rotated contribution before it adds its share of
integer noise. The noise is sized for the norm after rounding, hence the bound.

A real vector x of d entries and L2 norm c at most becomes an integer vector: each entry x_i is rounded up with
probability x_i - floor(x_i), else down, so that its mean is right; all over again until the rounded vector's squared
norm is at most

    min(c^2 + d / 4 + sqrt(2 log(1 / beta)) (c + sqrt(d) / 2), (c + sqrt(d))^2),

which one attempt meets with probability 1 - beta or more. The norm is checked in integers on what is returned, so it is
the sensitivity whatever floating point did before.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from securefed._sampling.random_stream import SecureRandomStream, uniforms
from securefed._tensors import Array

# log(1 / beta), as in the paper: an attempt on a vector of full norm succeeds with probability 1 - beta = .39 or more.
# Less sensitivity would take more attempts, and the other way round.
_LOG_INVERSE_BETA: Final = 0.5

# All of them fail with probability .61^100 = 1e-22.
_ATTEMPTS: Final = 100


def rounded_squares(norm: float, entries: int) -> int:
    """Compute the largest squared norm of a rounded vector: the squared L2 sensitivity (their eq. 2).

    Args:
        norm: largest norm before rounding, in units of the ring's integers.
        entries: length of the vector.
    """
    typical = norm**2 + entries / 4 + math.sqrt(2 * _LOG_INVERSE_BETA) * (norm + math.sqrt(entries) / 2)
    return math.floor(min(typical, (norm + math.sqrt(entries)) ** 2))


def round_conditionally(values: Array, squares: int, stream: SecureRandomStream) -> Array:
    """Round `values` (float64, in units) to int64 with a squared norm of at most `squares`.

    Unbiased up to the condition; rounds towards zero where it fails 100 times (probability .61^100 = 1e-22). Zeros
    where even that exceeds `squares`, or is NaN: noise follows, and a refusal would reveal what the noise hides.

    Args:
        values: the vector, one axis, in units of the ring's integers.
        squares: from `rounded_squares`.
        stream: uniform words from the operating system.
    """
    zeros: Array = np.zeros(values.shape, np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        truncated = np.trunc(values)
        fits = float(truncated @ truncated) <= squares * (1 + 1e-9)  # in floating point, with room for its rounding
    if not fits:  # before any cast: values beyond int64 would wrap
        return zeros
    for _ in range(_ATTEMPTS):
        rounded: Array = np.floor(values + uniforms(stream, values.size)).astype(np.int64)  # up if u >= 1 - fraction
        if int(rounded @ rounded) <= squares:
            return rounded
    towards_zero: Array = truncated.astype(np.int64)
    return towards_zero if int(towards_zero @ towards_zero) <= squares else zeros
