"""Draw exactly from the discrete Gaussian, discrete Laplace, Poisson and Skellam distributions.

The noise of differential privacy (`distributed`) calls the `_draws` and `_tail` functions: noise on integers, and how
large it gets. A distribution f is a class that computes log f(mode + x) / f(mode) in floating point (`log_ratio`) and
the ratio itself to any precision (`ratio`); `rejection` turns these into exact draws and states the assumptions of
"exact".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from securefed._sampling.random_stream import SecureRandomStream
from securefed._sampling.rejection import IMPOSSIBLE, LogConcaveDistribution, RejectionSampler, rejection_sampler
from securefed._tensors import Array
from securefed.errors import ConfigError

LARGEST_VARIANCE: Final = 2.0**44
"""Largest variance of one draw: the sampler's blocks hold at most 2^31 integers, and decimal products stay short."""

# Less is no use as noise: a discrete Gaussian draw of this variance is 0 but for a probability of 1e-14.
_SMALLEST_VARIANCE: Final = 2.0**-6
# Log-factorials below are taken from a table, and from Stirling's series above, which is exact enough from here on.
_SMALL: Final = 64
_LOG_FACTORIALS: Final = np.array([math.log(math.factorial(k)) for k in range(_SMALL)])
# Coefficients 1/3, 1/5, ... of (artanh(r) / r - 1) / r^2 in r^2; for |r| <= 1/7 twelve are enough in float64.
_ARTANH: Final = tuple(1 / (2 * j + 3) for j in range(12))


@dataclass(frozen=True)
class _SymmetricDistribution(LogConcaveDistribution):
    """A distribution symmetric about 0, with a variance as its parameter.

    Attributes:
        variance: close to the distribution's own variance; subclasses say how close.

    Raises:
        ConfigError: `variance` outside [2^-6, 2^44].
    """

    variance: float

    def __post_init__(self) -> None:
        _check_variance(self.variance)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the distribution, approximately."""
        return math.sqrt(self.variance)


class DiscreteGaussian(_SymmetricDistribution):
    """The discrete Gaussian: probabilities proportional to exp(-x^2 / (2 variance)) on the integers.

    Canonne, Kamath, Steinke, NeurIPS 2020, definition 1. From 1 on, `variance` is the distribution's own variance up to
    a relative error of 3e-7; below, the latter is smaller.
    """

    def log_ratio(self, x: Array) -> Array:
        """Compute log f(mode + x) / f(mode); see `LogConcaveDistribution`."""
        real = x.astype(np.float64)
        return np.asarray(real * real * (-0.5 / self.variance))

    def ratio(self, x: int, digits: int) -> Decimal:
        """Compute f(mode + x) / f(mode) to `digits` decimal digits; see `LogConcaveDistribution`."""
        return exponential(Fraction(x * x) / (2 * Fraction(self.variance)), digits)


class DiscreteLaplace(_SymmetricDistribution):
    """The discrete Laplace distribution: probabilities proportional to exp(-|x| / scale) on the integers.

    `variance` is 2 scale^2. The distribution's own variance is 1 / (2 sinh^2(1 / (2 scale))): `variance` less 1/6, up
    to terms that vanish as the scale grows.
    """

    @property
    def scale(self) -> float:
        """The scale sqrt(variance / 2)."""
        return math.sqrt(self.variance / 2)

    def log_ratio(self, x: Array) -> Array:
        """Compute log f(mode + x) / f(mode); see `LogConcaveDistribution`."""
        return np.asarray(np.abs(x.astype(np.float64)) / -self.scale)

    def ratio(self, x: int, digits: int) -> Decimal:
        """Compute f(mode + x) / f(mode) to `digits` decimal digits; see `LogConcaveDistribution`."""
        return exponential(Fraction(abs(x)) / Fraction(self.scale), digits)


@dataclass(frozen=True)
class PoissonDistribution(LogConcaveDistribution):
    """The Poisson distribution: probabilities proportional to rate^k / k! on the integers from 0.

    Attributes:
        rate: mean and variance.

    Raises:
        ConfigError: `rate` outside [2^-7, 2^43].
    """

    rate: float

    def __post_init__(self) -> None:
        _check_variance(2 * self.rate)

    @property
    def mode(self) -> int:
        """Integer of the largest probability."""
        return math.floor(self.rate)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the distribution, approximately."""
        return math.sqrt(self.rate)

    def log_ratio(self, x: Array) -> Array:
        """Compute log f(mode + x) / f(mode); see `LogConcaveDistribution`."""
        k = x + self.mode
        logs = self._log_mass(np.maximum(k, 0).astype(np.float64)) - self._log_peak
        return np.where(k < 0, IMPOSSIBLE, logs)

    def ratio(self, x: int, digits: int) -> Decimal:
        """Compute f(mode + x) / f(mode) to `digits` decimal digits; see `LogConcaveDistribution`."""
        if self.mode + x < 0:
            return Decimal(0)
        # f(mode + x) / f(mode) is the product of rate / j over the x integers j above the mode, or of j / rate below
        # it.
        context = decimal_context(digits + len(str(abs(x))) + 3)  # each of the |x| factors adds two roundings
        rate = Fraction(self.rate)
        over, under = (Decimal(part) for part in rate.as_integer_ratio())  # of products of integers: no rounding yet
        product = Decimal(1)
        for j in range(self.mode + 1, self.mode + x + 1):
            product = context.divide(context.multiply(product, over), under * j)
        for j in range(self.mode + x + 1, self.mode + 1):
            product = context.divide(context.multiply(product, under * j), over)
        return product

    @cached_property
    def _log_peak(self) -> float:
        return float(self._log_mass(np.array([float(self.mode)]))[0])

    def _log_mass(self, k: Array) -> Array:
        """Compute log of rate^k e^-rate / k! without cancellation.

        After Loader (2000), "Fast and accurate computation of binomial probabilities", with phi(x) = (1 + x) log(1 + x)
        - x: log mass = -rate phi((k - rate) / rate) - log sqrt(2 pi k) - (Stirling's series). Near the mode phi is
        computed by a series, as k log(k / rate) and k - rate nearly cancel there.
        """
        x = (k - self.rate) / self.rate
        logs = np.empty_like(k)
        far = (np.abs(x) > 0.25) | (k < _SMALL)
        near = ~far
        logs[near] = -self.rate * _phi(x[near]) - _stirling(k[near])
        logs[far] = self._log_mass_far(k[far])
        return logs

    def _log_mass_far(self, k: Array) -> Array:
        """Compute the same by plain formulas, which keep their relative precision away from the mode."""
        small = np.minimum(k, _SMALL - 1).astype(np.int64)
        direct = k * math.log(self.rate) - self.rate - _LOG_FACTORIALS[small]
        large = np.maximum(k, _SMALL)
        loader = -(large * np.log(large / self.rate) - large + self.rate) - _stirling(large)
        return np.where(k < _SMALL, direct, loader)


def discrete_gaussian_draws(variance: float, count: int, stream: SecureRandomStream) -> Array:
    """Draw `count` times from `DiscreteGaussian(variance)`, independently, with words of `stream`: int64 (count,).

    Raises:
        ConfigError: `variance` outside [2^-6, 2^44].
    """
    return _sampler(DiscreteGaussian(variance)).draw(count, stream)


def discrete_laplace_draws(variance: float, count: int, stream: SecureRandomStream) -> Array:
    """Draw `count` times from `DiscreteLaplace(variance)`, independently, with words of `stream`: int64 (count,).

    Raises:
        ConfigError: `variance` outside [2^-6, 2^44].
    """
    return _sampler(DiscreteLaplace(variance)).draw(count, stream)


def poisson_draws(rate: float, count: int, stream: SecureRandomStream) -> Array:
    """Draw `count` times from `PoissonDistribution(rate)`, independently, with words of `stream`: int64 (count,).

    Raises:
        ConfigError: `rate` outside [2^-7, 2^43].
    """
    return _sampler(PoissonDistribution(rate)).draw(count, stream)


def skellam_draws(variance: float, count: int, stream: SecureRandomStream) -> Array:
    """Draw `count` times from the symmetric Skellam distribution, independently: int64 (count,).

    A draw is the difference of two Poisson draws of rate variance / 2. Sums of independent draws have a Skellam
    distribution again, with the sum of the variances.

    Raises:
        ConfigError: `variance` outside [2^-6, 2^44].
    """
    both = poisson_draws(variance / 2, 2 * count, stream)
    return np.asarray(both[:count] - both[count:])


def skellam_tail(variance: float, units: int) -> float:
    """Bound log P(|draw| >= units) of a Skellam draw, by Chernoff's bound at its best exponent, in closed form.

    With u = units and v = variance it is log 2 + v (sqrt(1 + (u / v)^2) - 1) - u asinh(u / v); the code avoids the
    cancellation in the root less 1.
    """
    ratio = units / variance
    return math.log(2) + variance * (ratio * ratio / (math.sqrt(1 + ratio * ratio) + 1) - ratio * math.asinh(ratio))


def discrete_gaussian_tail(variance: float, units: int) -> float:
    """Bound log P(|draw| >= units) of a discrete Gaussian draw (Canonne, Kamath, Steinke 2020: it is subgaussian)."""
    return math.log(2) - units * units / (2 * variance)


def discrete_laplace_tail(variance: float, units: int) -> float:
    """Bound log P(|draw| >= units) of a discrete Laplace draw, whose tail is geometric."""
    return math.log(2) - units / DiscreteLaplace(variance).scale


@lru_cache(maxsize=64)
def _sampler(distribution: LogConcaveDistribution) -> RejectionSampler:
    """Make the sampler of a distribution, once for each that was used last."""
    return rejection_sampler(distribution)


def _phi(x: Array) -> Array:
    """Compute (1 + x) log(1 + x) - x for |x| <= 1/4.

    It is 2 r^2 / (1 - r) (1 + (1 + r) r (1/3 + r^2/5 + ...)) with r = x / (2 + x), as log(1 + x) = 2 artanh(r).
    """
    r = x / (2 + x)
    square = r * r
    series = np.full_like(r, _ARTANH[-1])
    for coefficient in _ARTANH[-2::-1]:
        series *= square
        series += coefficient
    return np.asarray(2 * square / (1 - r) * (1 + (1 + r) * r * series))


def _stirling(k: Array) -> Array:
    """Compute log k! - (k log k - k) for k >= 64: log sqrt(2 pi k) + 1 / (12 k) - 1 / (360 k^3) + ...

    The first term that is left out is below 2^-60.
    """
    inverse = 1 / k
    square = inverse * inverse
    return np.asarray(
        0.5 * np.log(2 * math.pi * k) + inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))
    )


def exponential(exponent: Fraction, digits: int) -> Decimal:
    """Compute exp(-exponent) with a relative error of at most 10^-digits."""
    # The quotient's relative error becomes an absolute one of the exponent, hence the digits of its integer part.
    context = decimal_context(digits + len(str(int(exponent))) + 3)
    return context.exp(context.divide(Decimal(-exponent.numerator), Decimal(exponent.denominator)))


def decimal_context(digits: int) -> Context:
    """Make a context of `digits` decimal digits without limits on the exponent."""
    return Context(prec=digits, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])


def _check_variance(variance: float) -> None:
    if not _SMALLEST_VARIANCE <= variance <= LARGEST_VARIANCE:
        raise ConfigError(f"exact draws take a variance between 2^-6 and 2^44, not {variance:g}")
