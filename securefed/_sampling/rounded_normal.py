"""Draw normal deviates rounded to a grid, exactly: noise for mechanisms that are accounted for as Gaussian.

The grid is the multiples of a power of two (`grid_for`). Central differential privacy (`gaussian`) calls
`rounded_normal_draws` for the noise of each released sum, and DP-SGD (`dp_fedavg`) for that of each step.

A sum on the grid plus a rounded normal deviate is the Gaussian mechanism's output rounded to the grid, since rounding
commutes with adding a multiple of the grid. So the epsilon that an accountant states for the Gaussian mechanism holds
without correction: any number of releases, any sampler, any delta. No tail is cut: every integer has its probability,
down to those that no float can hold. The module `rejection` states the assumptions of "exact".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np

from securefed._sampling.discrete_distributions import decimal_context, exponential
from securefed._sampling.random_stream import SecureRandomStream
from securefed._sampling.rejection import LogConcaveDistribution, RejectionSampler, rejection_sampler
from securefed._tensors import Array
from securefed.errors import ConfigError

GRID_BITS: Final = 30
"""A grid's step is 2^-31 to 2^-30 of a standard deviation. The sampler (`rejection`) cuts the integers into blocks
about as wide as the deviation, of at most 2^31 integers: with one bit more they could be too narrow, and more draws
would be rejected. Ten bits fewer would show in the sensitivity of a million entries, each of which rounding moves by up
to a step."""

SMALLEST_DEVIATION: Final = 2.0**12
"""In steps of the grid: below it, terms that `log_ratio` leaves out would count."""
LARGEST_DEVIATION: Final = 2.0**32
"""In steps of the grid: up to here the sampler's widest blocks, of 2^31 integers, are at least half the deviation."""


@dataclass(frozen=True)
class RoundedNormal(LogConcaveDistribution):
    """A normal deviate of mean 0 rounded to the nearest integer: f(x) = Phi((x + 1/2) / s) - Phi((x - 1/2) / s).

    With a = x / s^2 and b = 1 / (2 s^2) the ratio to the mode is f(x) / f(0) = exp(-x^2 / (2 s^2)) I(x) / I(0),
    I(x) the integral of cosh(a u) exp(-b u^2) over -1/2 < u < 1/2: substitute x + u in the normal density and drop what
    is odd in u. log(I(x) / I(0)) = a^2 / 24 up to a^4 / 2880.

    Attributes:
        deviation: s, of the deviate before it is rounded, in steps of the grid.

    Raises:
        ConfigError: `deviation` outside [2^12, 2^32].
    """

    deviation: float

    def __post_init__(self) -> None:
        if not SMALLEST_DEVIATION <= self.deviation <= LARGEST_DEVIATION:
            raise ConfigError(
                f"a normal deviate is rounded to a grid of 2^-32 to 2^-12 of its deviation, not to one of "
                f"1 / {self.deviation:g}; choose another grid"
            )

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the distribution, approximately."""
        return self.deviation

    def log_ratio(self, x: Array) -> Array:
        """Compute log(f(x) / f(0)) = -x^2 / (2 s^2) + x^2 / (24 s^4) without the terms of a^4.

        The sampler calls this for every proposal, and `ratio` only for the few that it cannot decide by it.

        For |x| <= 150 s the terms left out, a^4 / 2880, stay below 2^-44 (1 + |logarithm|); at s = 2^12 that is the
        limit, and for a larger s it lies further out, as s^2. Beyond it f(x) / f(0) is below e^-11000: a proposal there
        is refused, or decided by `ratio`, whatever the error of the logarithm.

        Args:
            x: (any shape) int64.

        Returns:
            float64 of the same shape.
        """
        real = x.astype(np.float64) / self.deviation
        return np.asarray(real * real * (-0.5 * (1 - 1 / (12 * self.deviation**2))))

    def ratio(self, x: int, digits: int) -> Decimal:
        """Compute f(x) / f(0), 0 being the mode, to `digits` decimal digits; see `LogConcaveDistribution`.

        Nothing is left out of I(x) here but what is below that precision, at any x.
        """
        variance = Fraction(self.deviation) ** 2
        density = exponential(Fraction(x * x) / (2 * variance), digits + 2)
        cell = _cell(Fraction(x) / variance, variance, digits + 2) / _cell(Fraction(0), variance, digits + 2)
        context = decimal_context(digits + 3)
        return context.multiply(density, context.divide(Decimal(cell.numerator), Decimal(cell.denominator)))


def rounded_normal_draws(deviation: float, count: int, stream: SecureRandomStream) -> Array:
    """Draw `count` times from `RoundedNormal(deviation)`, independently (int64), in steps of the grid.

    Raises:
        ConfigError: `deviation` outside [2^12, 2^32].
    """
    return _sampler(deviation).draw(count, stream)


def grid_for(deviation: float) -> float:
    """Return the step of the grid for noise of this standard deviation: a power of two, 2^-31 to 2^-30 of it."""
    return 2.0 ** (math.floor(math.log2(deviation)) - GRID_BITS)


def _cell(a: Fraction, variance: Fraction, digits: int) -> Fraction:
    """Compute I(x) for a = x / variance with a relative error of at most 10^-digits.

    The power series of cosh(a u) exp(-b u^2) in u^2, with coefficients `power`, is integrated term by term: u^(2 k)
    over -1/2 < u < 1/2 gives 1 / (4^k (2 k + 1)). The k-th term is at most t^k / k!, t = (a^2 + b) / 4, and I(x) is at
    least 0.99. `bound` is t^k / k!.
    """
    square, b = a * a, 1 / (2 * variance)
    size = (square + b) / 4
    total, k, bound = Fraction(0), 0, Fraction(1)
    while 2 * size > k or bound * 4 * 10**digits > 1:  # from k = 2 t on terms halve: what is left is below 2 bound
        power = sum(square**m / math.factorial(2 * m) * (-b) ** (k - m) / math.factorial(k - m) for m in range(k + 1))
        total += power / (4**k * (2 * k + 1))
        k += 1
        bound *= size / k
    return total


@lru_cache(maxsize=64)
def _sampler(deviation: float) -> RejectionSampler:
    """Make the sampler for one deviation, once for each that was used last."""
    return rejection_sampler(RoundedNormal(deviation))
