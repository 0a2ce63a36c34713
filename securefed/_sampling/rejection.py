"""Draw exactly from distributions on the integers whose probabilities are irrational, at the speed of floating point.

A mechanism of differential privacy needs noise of exactly the distribution that its epsilon is stated for. The modules
`discrete_distributions` and `rounded_normal` define such distributions and draw from them by `rejection_sampler`.

The distribution f is given by its mode and by log f(mode + x) / f(mode) (`LogConcaveDistribution`). On either side of
the mode the integers are cut into blocks of 2^b. A proposal needs integer arithmetic only: uniform bits give a side,
the block V = 0, 1, ... counted from the mode with probability 2^-(V+1), and a place in it. The integer mode + x that
they name is accepted with probability

    p(x) = G 2^V f(mode + x) / f(mode),

G being a dyadic rational (a float64) for which p <= 1 everywhere (there is one, as the distribution is log-concave).
So the accepted integers have the distribution f EXACTLY (von Neumann's rejection). Whether a uniform real u is below p
is decided in float64 with a bound on the error of p; where u is closer to p than this bound (about one proposal in
2^37), more bits of u are drawn and p is computed in decimal arithmetic of growing precision, until the comparison is
certain.

"Exact" assumes that the stream's words are uniform, and that each distribution's `log_ratio`, with NumPy's `exp`, keeps
its error bound, which is 2^-40 relative to 1 + |log_ratio| and over ten times the error measured against decimal
arithmetic. Then the statistical distance to the distribution is zero, not small. If p were computed with an error E
beyond that bound, the statistical distance of a draw would be at most E / (acceptance rate). The time of a draw depends
on the drawn value.

The staircase of halving blocks is the discrete analogue of the geometric envelopes of Devroye, "Non-uniform random
variate generation" (1986), ch. VII; deciding in float64 first is lazy evaluation as in Karney, ACM TOMS 42 (2016).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

import numpy as np

from securefed._sampling.random_stream import SecureRandomStream
from securefed._tensors import Array

IMPOSSIBLE: Final = -1e6
"""`log_ratio` of an integer of probability 0."""

# |error of p| <= p (2 - log_ratio) _LOG_ERROR + _FLOOR
_LOG_ERROR: Final = 2.0**-39  # twice `log_ratio`'s bound: the rest is for exp, and for adding V log 2 + log G
_FLOOR: Final = 2.0**-50  # for the rounding of u and of the comparison, some 2^-53 each
_CHUNK: Final = 1 << 15  # proposals at a time: their arrays stay in a core's second-level cache
_LARGEST_BLOCK: Final = 31  # a 64-bit word gives 1 bit for the side, 31 for the place, and 32 for the block
_LOG2: Final = math.log(2)


class LogConcaveDistribution(ABC):
    """A log-concave distribution f on the integers, known up to a factor."""

    @property
    def mode(self) -> int:
        """Integer of the largest probability."""
        return 0

    @property
    @abstractmethod
    def standard_deviation(self) -> float:
        """Standard deviation of the distribution, approximately."""

    @abstractmethod
    def log_ratio(self, x: Array) -> Array:
        """Compute log f(mode + x) / f(mode) in floating point.

        Args:
            x: offsets from the mode (int64).

        Returns:
            The logarithms, off by at most 2^-40 (1 + |logarithm|); `IMPOSSIBLE` where f = 0.
        """

    @abstractmethod
    def ratio(self, x: int, digits: int) -> Decimal:
        """Compute f(mode + x) / f(mode) with a relative error of at most 10^-digits; 0 where f(mode + x) = 0."""


@dataclass(frozen=True)
class RejectionSampler:
    """Draws from one distribution by rejection; make it with `rejection_sampler`.

    Attributes:
        distribution: what it draws from.
        block_bits: b of the formula above.
        scale: G of the formula above.
        acceptance: the share of proposals that are accepted, approximately.
    """

    distribution: LogConcaveDistribution
    block_bits: int
    scale: float
    acceptance: float

    def draw(self, count: int, stream: SecureRandomStream) -> Array:
        """Draw `count` times, independently (int64), from words of `stream`."""
        out = np.empty(count, np.int64)
        filled = 0
        while filled < count:
            proposals = int((count - filled) / self.acceptance * 1.02) + 16  # a few more than are needed on average
            accepted = self._accepted(min(proposals, _CHUNK), stream)[: count - filled]
            out[filled : filled + accepted.size] = accepted
            filled += accepted.size
        return out + self.distribution.mode

    def _accepted(self, count: int, stream: SecureRandomStream) -> Array:
        """Make `count` proposals and return those accepted, as offsets from the mode."""
        # A proposal is one word: its top bit is the side, the bits from 32 on are the place, the trailing zeros of the
        # low half are the block V. A second word gives u to 53 bits: u lies in [height, height + 1) 2^-53.
        words = stream.words(2 * count)
        proposal, height = words[:count], words[count:] >> np.uint64(11)
        block = _trailing_zeros(proposal, stream)
        place = (proposal >> np.uint64(32)) & np.uint64((1 << self.block_bits) - 1)
        distance = (block << self.block_bits) + place.astype(np.int64)
        # Distances 0, 1, ... above the mode stand for x = 0, 1, ..., below it for x = -1, -2, ...: every integer once.
        x = np.where((proposal >> np.uint64(63)).view(np.int64) == 1, ~distance, distance)
        logs = self.distribution.log_ratio(x)
        chance = np.exp(logs + block * _LOG2 + math.log(self.scale))
        doubt = chance * ((2 - logs) * _LOG_ERROR) + _FLOOR
        u = height * 2.0**-53
        accept = u + 2.0**-53 <= chance - doubt
        for i in np.flatnonzero(~accept & (u < chance + doubt)):
            accept[i] = self._decide(int(x[i]), int(block[i]), int(height[i]), stream)
        return x[accept]

    def _decide(self, x: int, block: int, height: int, stream: SecureRandomStream) -> bool:
        """Decide whether a real u is below p(x): its first 53 binary digits are `height`, further ones are drawn."""
        bits = 53
        while True:
            digits = bits // 3 + 10
            chance = Fraction(self.distribution.ratio(x, digits)) * Fraction(self.scale) * 2**block
            error = chance / 10**digits
            if Fraction(height + 1, 2**bits) <= chance - error:
                return True
            if Fraction(height, 2**bits) >= chance + error:
                return False
            height, bits = height << 64 | int(stream.words(1)[0]), bits + 64


def rejection_sampler(distribution: LogConcaveDistribution) -> RejectionSampler:
    """Make a sampler: blocks about as wide as the standard deviation, G as large as p <= 1 allows.

    A normal density halves within 1.18 = sqrt(2 log 2) standard deviations of its mode, as the blocks' probabilities
    do.
    """
    block_bits = min(max(0, round(math.log2(1.18 * distribution.standard_deviation))), _LARGEST_BLOCK)
    blocks = np.arange(64, dtype=np.int64)
    nearest = np.stack([blocks << block_bits, ~(blocks << block_bits)])  # of each block the x nearest to the mode
    # Concave in V, so its maximum lies among the first blocks; 2^-20 is far above the error of log_ratio.
    peak = float((distribution.log_ratio(nearest.reshape(-1)).reshape(2, -1) + blocks * _LOG2).max())
    scale = math.exp(-peak - 2.0**-20)
    # The sum of f / f(mode), about that of a normal density; at least 1, the mode's own term. A proposal names a given
    # integer of block V with probability 2^-(V+1) / 2^b / 2, so that all are accepted with G mass / 2^(b+2).
    mass = math.sqrt(2 * math.pi) * max(distribution.standard_deviation, 0.4)
    return RejectionSampler(distribution, block_bits, scale, min(1.0, scale * mass / 2 ** (block_bits + 2)))


def _trailing_zeros(words: Array, stream: SecureRandomStream) -> Array:
    """Count the trailing zero bits in the low half of each word, continued in further words where all are zero."""
    low = words.astype(np.uint32)
    # low & -low is the lowest bit that is set; less 1, it has a bit for each trailing zero (32 where low is 0).
    zeros = np.bitwise_count((low & (~low + np.uint32(1))) - np.uint32(1)).astype(np.int64)
    for i in np.flatnonzero(low == 0):
        word = 0
        while word == 0:
            word = int(stream.words(1)[0])
            zeros[i] += 64 if word == 0 else (word & -word).bit_length() - 1
    return zeros
