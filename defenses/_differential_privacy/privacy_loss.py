"""Account for distributed noise: turn Renyi divergences of integer noise into epsilon for a delta.

Clients add integer noise to integer vectors (`distributed`), and the sum is released. Plans and budgets of that noise
call `epsilon` here. With P and Q the distributions of the output on two neighbouring inputs, their Renyi divergence of
order a > 1 is

    D_a(P || Q) = log(sum_x P(x)^a Q(x)^(1 - a)) / (a - 1).

Each class bounds it for one distribution of the noise, from the noise's variance and the sensitivity;
`composed_epsilon` adds the divergences of all releases and converts them to epsilon at a delta. All quantities are in
units of the ring's integers. Neighbours: one client's contribution replaced by zero; the sum then moves by an integer
vector of squared L2 norm `squares` at most, hence L1 norm min(squares, sqrt(entries * squares)) at most.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

import numpy as np

from securefed._tensors import Array
from securefed.defenses._differential_privacy.accountant import DELTA
from securefed.errors import ConfigError

# Orders from just above 1 to 2^24. The best one grows as epsilon falls: 8 at epsilon 2.8, 2700 at epsilon 0.002. On a
# grid a hundred times as dense, epsilon is lower by less than 1e-4 of itself. The bound for Skellam noise holds for
# integer orders only.
_INTEGER_ORDERS: Final = np.unique(np.rint(np.concatenate([np.arange(2, 257), np.geomspace(257, 2**24, 400)])))
_ORDERS: Final = np.unique(np.concatenate([1 + np.geomspace(1e-3, 1, 200), np.geomspace(2, 2**24, 4000)]))


class PrivacyLoss(Protocol):
    """The privacy loss of one release of a mechanism."""

    def epsilon(self, rounds: int, delta: float = DELTA) -> float:
        """Bound epsilon after `rounds` releases from above, at `delta`."""


@dataclass(frozen=True)
class RingLoss(ABC):
    """The privacy loss of integer noise, known by its Renyi divergences.

    Attributes:
        squares: squared L2 sensitivity, in squared units of the ring's integers.
        entries: length of the vector.

    Raises:
        ConfigError: numbers that are not positive and finite.
    """

    squares: int
    entries: int

    @property
    def l1(self) -> float:
        """Bound on the L1 sensitivity: min(squares, sqrt(entries * squares)), as the shift is an integer vector."""
        return min(float(self.squares), math.sqrt(self.entries * self.squares))

    @abstractmethod
    def divergence(self, orders: Array) -> Array:
        """Bound the Renyi divergence of one release; `orders` is float64 (any,), all above 1, as is the result."""

    def epsilon(self, rounds: int, delta: float = DELTA) -> float:
        """Bound epsilon after `rounds` releases from above."""
        return composed_epsilon(((self, rounds),), delta)


@dataclass(frozen=True)
class SkellamLoss(RingLoss):
    """Symmetric Skellam noise of the given variance on every entry (Agarwal, Kairouz, Liu, NeurIPS 2021).

    Attributes:
        variance: variance of the noise that the adversary does not know: that of all honest survivors together.
    """

    variance: float

    def __post_init__(self) -> None:
        _check(self.squares, self.entries, self.variance)

    def divergence(self, orders: Array) -> Array:
        """Bound the divergence of integer orders (their theorem 3.5, with variance for mu).

        At order a: a squares / (2 variance), what Gaussian noise would cost, plus the lesser of
        ((2 a - 1) squares + 6 l1) / (4 variance^2) and 3 l1 / (2 variance).
        """
        gaussian = orders * self.squares / (2 * self.variance)
        correction = ((2 * orders - 1) * self.squares + 6 * self.l1) / (4 * self.variance**2)
        return np.asarray(gaussian + np.minimum(correction, 3 * self.l1 / (2 * self.variance)))


@dataclass(frozen=True)
class DiscreteGaussianLoss(RingLoss):
    """The sum of `shares` independent discrete Gaussians on every entry (Kairouz, Liu, Steinke, ICML 2021).

    The sum is not discrete Gaussian itself, but close to it: `tau` bounds the distance.

    Attributes:
        share_variance: sigma^2, the variance of one share; at least 1/4.
        shares: n, the number of honest survivors' shares, which the adversary does not know.
    """

    share_variance: float
    shares: int

    def __post_init__(self) -> None:
        _check(self.squares, self.entries, self.share_variance)
        if self.share_variance < 0.25 or self.shares < 1:
            raise ConfigError("the bound needs at least one share, each of variance 1/4 or more")

    @property
    def tau(self) -> float:
        """10 sum_{k=1}^{n-1} exp(-2 pi^2 sigma^2 k / (k + 1)) (their theorem 1)."""
        k = np.arange(1, self.shares)
        return 10 * float(np.exp(-2 * math.pi**2 * self.share_variance * k / (k + 1)).sum())

    @property
    def concentration(self) -> float:
        """The rho of concentrated differential privacy: half of the squared epsilon of their theorem 1."""
        ratio = self.squares / (self.shares * self.share_variance)
        bounds = math.sqrt(ratio + self.tau * self.entries / 2), math.sqrt(ratio) + self.tau * math.sqrt(self.entries)
        return min(bounds) ** 2 / 2

    def divergence(self, orders: Array) -> Array:
        """Bound the divergence by order times `concentration`."""
        return np.asarray(orders * self.concentration)


@dataclass(frozen=True)
class LaplaceLoss(RingLoss):
    """Discrete Laplace noise on every entry: every release is purely differentially private.

    Attributes:
        scale: the scale of the noise; probabilities fall by exp(-1 / scale) from one integer to the next.
    """

    scale: float

    def __post_init__(self) -> None:
        _check(self.squares, self.entries, self.scale, "scale")

    @property
    def pure(self) -> float:
        """Epsilon of one release at delta 0: the L1 sensitivity over the scale (Dwork et al., TCC 2006)."""
        return self.l1 / self.scale

    def divergence(self, orders: Array) -> Array:
        """Compute the Renyi divergence of orders above 1 when one entry carries all of the shift, the worst case.

        Masses c p^|x| and c p^|x - k|, p = exp(-1 / scale), c = (1 - p) / (1 + p), give
            sum_x P(x - k)^a P(x)^(1 - a) = w p^(k (1 - a)) + (1 - w) p^(k a),
            w = c (1 / (1 - p) + 1 / (p^(1 - 2 a) - 1))
        by geometric series over x <= 0, 0 < x < k and x >= k; in the code k / scale is `pure`, and `up` and `down` are
        the logarithms of the two summands. 1 - w is written as c (1 / (1 - p) - 1 / (1 - p^(2 a - 1))), which does not
        cancel where w is near 1. The logarithm of the sum is convex in k and 0 at k = 0: shifts of several entries cost
        at most what one entry with their sum does. The divergence is at most `pure`, its limit for a -> infinity.
        """
        a = np.asarray(orders, np.float64)
        c = math.tanh(1 / (2 * self.scale))
        with np.errstate(over="ignore"):
            w = c * (1 / -math.expm1(-1 / self.scale) + 1 / np.expm1((2 * a - 1) / self.scale))
        up = np.log(w) + (a - 1) * self.pure
        down = np.log(c * (1 / -math.expm1(-1 / self.scale) - 1 / -np.expm1((1 - 2 * a) / self.scale))) - a * self.pure
        return np.asarray(np.minimum(np.logaddexp(up, down) / (a - 1), self.pure))


@lru_cache(maxsize=4096)
def composed_epsilon(parts: tuple[tuple[RingLoss, int], ...], delta: float = DELTA) -> float:
    """Compute the least epsilon over orders (Canonne, Kamath, Steinke 2020, proposition 12, solved for epsilon).

    At order a, with R(a) the sum of all divergences, epsilon is R(a) + log(1 - 1 / a) - log(a delta) / (a - 1).

    Args:
        parts: each loss with its number of releases; their divergences add up.
        delta: between 0 and 1.

    Returns:
        Epsilon, 0 for no release. A loss of `SkellamLoss` restricts the search to integer orders.

    Raises:
        ConfigError: a negative number of releases, or a delta outside its domain.
    """
    if any(rounds < 0 for _, rounds in parts) or not 0 < delta < 1:
        raise ConfigError(
            f"rounds must be at least 0 and delta between 0 and 1; got {[rounds for _, rounds in parts]} and {delta}"
        )
    released = [(loss, rounds) for loss, rounds in parts if rounds]
    if not released:
        return 0.0
    orders = _INTEGER_ORDERS if any(isinstance(loss, SkellamLoss) for loss, _ in released) else _ORDERS
    divergences = sum(rounds * loss.divergence(orders) for loss, rounds in released)
    epsilons = divergences + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(epsilons.min()))


def _check(squares: int, entries: int, size: float, name: str = "variance") -> None:
    """Raise `ConfigError` unless all numbers are positive and `size`, the noise's variance or scale, is finite."""
    if not (squares >= 1 and entries >= 1 and 0 < size < math.inf):
        raise ConfigError(f"sensitivity {squares}, entries {entries} and {name} {size} must be positive and finite")
