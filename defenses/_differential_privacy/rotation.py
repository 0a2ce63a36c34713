"""Rotate vectors by a public random rotation, which spreads a vector evenly over its entries without padding.

A client with distributed noise (`distributed`) rotates its contribution before it rounds it, and the server rotates the
sum back. Sums are made of integers modulo 2^bits. With entries of about equal size, few bits hold the sum in fine
steps.

H is Sylvester's Hadamard matrix (entries +1 and -1, H H^T = m I), D a diagonal matrix of random signs. A vector x of
length d becomes H D x / sqrt(m) on its first m = 2^k entries, then the same with fresh signs on the last m, where m is
the largest power of two up to d (Kairouz, Liu, Steinke, ICML 2021, sec. 4, pad to a power of two; two
overlapping stages spare up to half of the upload). Each stage is orthogonal, so norms are kept. For any x fixed before
the signs are drawn, every entry of the result is a sum of +-a_i with |a|^2 <= |x|^2 / m, so by Hoeffding

    P(|entry| > |x| sqrt(2 ln(2 / p) / m)) <= p.

The signs are public and hide nothing; they belong to one exchange of one run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from securefed._sampling.random_stream import public_words
from securefed._tensors import Array

_RADIX_BITS = 6  # factors of 64 x 64 entries, 32 kB: they stay in a core's first-level cache


@dataclass(frozen=True)
class Rotation:
    """The rotation of one exchange.

    Attributes:
        entries: length d of the vectors, at least 1.
        exchange: the run's identifier and the number of the exchange, from which all parties derive the signs; `None`
            outside an exchange.
    """

    entries: int
    exchange: tuple[str, int] | None

    @property
    def mixed(self) -> int:
        """m, the largest power of two up to d: number of entries that one stage combines into each of its results."""
        return largest_power_of_two(self.entries)

    def forward(self, x: Array) -> Array:
        """Rotate a vector, float64 (entries,)."""
        out = np.array(x, np.float64)
        for stage, part in enumerate(self._parts()):
            out[part] = _hadamard(out[part] * self._signs_of(stage))
        return out

    def inverse(self, y: Array) -> Array:
        """Rotate back, up to rounding."""
        out = np.array(y, np.float64)
        for stage, part in reversed(list(enumerate(self._parts()))):
            out[part] = _hadamard(out[part]) * self._signs_of(stage)
        return out

    def _parts(self) -> tuple[slice, ...]:
        """Return the entries that each stage mixes: the first m, then the last m unless all are in the first."""
        parts = (slice(0, self.mixed), slice(self.entries - self.mixed, self.entries))
        return parts[:1] if self.mixed == self.entries else parts

    def _signs_of(self, stage: int) -> Array:
        """Return the diagonal of D of a stage, float64 (m,)."""
        return _signs(self.mixed, self.entries, self.exchange, stage)


@lru_cache(maxsize=4)
def _signs(count: int, entries: int, exchange: tuple[str, int] | None, stage: int) -> Array:
    """Derive the signs; remembered, as all clients of a simulation share them."""
    context = ("no exchange",) if exchange is None else exchange
    words = public_words(-(-count // 64), "securefed rotation 1", *context, entries, stage)
    return _shared(1.0 - 2.0 * np.unpackbits(words.view(np.uint8), count=count))


def largest_power_of_two(entries: int) -> int:
    """Return the largest power of two up to `entries`."""
    return 1 << (entries.bit_length() - 1)


def flatness(entries: int, log_chance: float) -> float:
    """Bound an entry of a rotated vector of norm 1 by the formula above.

    Any ONE entry exceeds the bound with a chance of at most p = exp(log_chance); for all entries together the caller
    divides its chance by their number.
    """
    return min(1.0, math.sqrt(2 * (math.log(2) - log_chance) / largest_power_of_two(entries)))


def _hadamard(x: Array) -> Array:
    """Multiply x by Sylvester's Hadamard matrix over sqrt(length): by factors, each a product with a small matrix.

    That matrix is the Kronecker product of one 2 x 2 matrix for each bit of the index. A product with `_factor(radix)`
    acts on the lowest `radix` bits of the index, and the transposition moves them to the top; after all factors every
    bit is back in its place.
    """
    bits = x.size.bit_length() - 1
    while bits > 0:
        radix = min(bits, _RADIX_BITS)
        x = (x.reshape(-1, 1 << radix) @ _factor(radix)).T.reshape(-1)
        bits -= radix
    return x


@cache
def _factor(bits: int) -> Array:
    """Make the Hadamard matrix of 2^bits rows, over the root of that number."""
    matrix = np.ones((1, 1))
    for _ in range(bits):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return _shared(matrix / math.sqrt(1 << bits))


def _shared(array: Array) -> Array:
    """Forbid writing into an array that later calls and other threads are given too."""
    array.setflags(write=False)
    return array
