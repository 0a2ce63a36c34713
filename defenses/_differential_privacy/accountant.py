"""Account for releases of the Gaussian mechanism: epsilon for a delta, under the sampling that ran.

`epsilon_of` is called for a defence's plan (the summary of its costs that is made before a run) and for budgets, which
stop a run in time; users call `calibrate` to find the noise for an epsilon. A release is a noisy sum that leaves the
aggregator; in the formulas a round is one release. The clients of a round are its cohort.

Neighbours: one client's whole contribution is added or removed; for cohorts of a fixed size, it is replaced by another
(replace-one), which moves a sum by up to twice as much. `noise_multiplier` is always the noise's standard deviation
over the L2 sensitivity to ONE contribution.

Full participation: T releases with noise multiplier z are like one release of sensitivity sqrt(T) to noise of standard
deviation z. With mu = sqrt(T) / z and Phi the normal distribution function, epsilon is the root of

    delta = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)

(Balle and Wang, ICML 2018, theorem 8), which is exact. Poisson sampling: privacy loss distributions, rounded upwards,
by dp-accounting; below the delta that their floating point resolves (about 1e-14), Renyi divergences of the sampled
Gaussian mechanism (Mironov, Talwar and Zhang, arXiv:1908.10530), by dp-accounting too. Cohorts of a fixed size: Renyi
divergences of Wang, Balle and Kasiviswanathan (AISTATS 2019, theorem 27), by dp-accounting: 100 of 10000 clients drawn
without replacement are NOT Poisson sampling at rate .01. For ANY sampler that does not look at the data, `full` is a
valid upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np
from scipy.special import log_ndtr

from securefed._hyperparameters import check_integer, check_number, check_positive
from securefed._public import require
from securefed._tensors import Array

DELTA: Final = 1e-5
"""The customary default: below one over the number of clients, for up to 100 000 of them."""
_FINEST: Final = 0.3
"""Smallest noise multiplier for which Poisson sampling is accounted for. Below it the grid of a privacy loss
distribution has millions of points: every round counts in full instead, which is a valid upper bound."""
_GRID: Final = 1e-4
"""Distance between the points of a privacy loss distribution."""
_ORDERS: Final = tuple(sorted({*range(2, 129), *(int(order) for order in np.geomspace(128, 2**12, 40))}))
"""Renyi orders of Poisson sampling below the resolution of its loss distribution: integers, whose divergences are
finite sums. With orders up to twice as large no epsilon that was tried fell by more than 4 %."""

PLANNED_ROUNDS: Final = (1, 10, 30, 100)
"""Numbers of rounds for which a plan states epsilon."""


@dataclass(frozen=True)
class PoissonSampling:
    """Each client takes part in each round with probability `rate`, independently.

    The epsilon holds only where no party that reads the output also learns which clients took part.

    Attributes:
        rate: the probability.

    Raises:
        ConfigError: `rate` outside (0, 1].
    """

    rate: float

    def __post_init__(self) -> None:
        check_number("the rate of Poisson sampling", self.rate, most=1, positive=True)


@dataclass(frozen=True)
class FixedSizeSampling:
    """Every round draws `cohort` of `clients` without replacement, each set equally likely.

    The epsilon is for replace-one neighbours. It holds only where no party that reads the output also learns which
    clients took part; a cohort drawn from a seed that it knows is no secret. Dropouts must not depend on data.

    Attributes:
        cohort: clients that take part in a round.
        clients: all clients.

    Raises:
        ConfigError: unless 1 <= cohort <= clients.
    """

    cohort: int
    clients: int

    def __post_init__(self) -> None:
        check_integer("clients", self.clients, 1)
        check_integer("cohort", self.cohort, 1, self.clients, note="(the number of clients)")


Sampler = Literal["full"] | PoissonSampling | FixedSizeSampling


def epsilon_of(noise_multiplier: float, rounds: int, delta: float = DELTA, sampler: Sampler = "full") -> float:
    """Bound epsilon after `rounds` releases from above.

    The bound is tight to 1e-9 with full participation, and not tight for cohorts of a fixed size. Under Poisson
    sampling it is tight to 1e-3 where epsilon is .02 or more after up to 1000 rounds. Over many more rounds of little
    cost rounding adds up (.035 instead of .0165 after 10^5 rounds at noise 5 and rate 1e-4), and below noise .3 the
    bound counts no amplification. Below delta 1e-14 it follows from Renyi divergences and is less tight: twice
    as large (.089 after .045 at delta 1e-14) for 1000 rounds at noise 5 and rate 1e-3, more where epsilon is smaller.

    Args:
        noise_multiplier: standard deviation of the noise over the L2 sensitivity to one contribution.
        rounds: number of releases.
        delta: the delta of (epsilon, delta)-differential privacy.
        sampler: how cohorts are drawn; "full" holds for any sampling that does not look at data.

    Raises:
        ConfigError: a parameter outside its domain.
    """
    check_positive("noise_multiplier", noise_multiplier)
    check_integer("rounds", rounds, 0)
    check_number("delta", delta, below=1, positive=True)
    require(
        sampler == "full" or isinstance(sampler, PoissonSampling | FixedSizeSampling),
        f"the sampler is 'full', PoissonSampling(q) or FixedSizeSampling(m, n), not {sampler!r}",
    )
    if rounds == 0:
        return 0.0
    if isinstance(sampler, FixedSizeSampling):
        return _fixed_size_epsilon(noise_multiplier, rounds, delta, sampler)
    every_round = _gaussian_epsilon(math.sqrt(rounds) / noise_multiplier, delta)  # holds for any sampler blind to data
    if sampler == "full" or sampler.rate == 1 or noise_multiplier < _FINEST:
        return every_round
    return min(_poisson_epsilon(noise_multiplier, rounds, delta, sampler.rate), every_round)


def calibrate(epsilon: float, delta: float, rounds: int, sampler: Sampler = "full") -> float:
    """Find the smallest noise multiplier for which `rounds` releases cost at most `epsilon`.

    It is found from above, to a relative 1e-9 (full) or 1e-3 (sampling) of what `epsilon_of` allows. It is never more
    than full participation needs (for a fixed size: than full participation under replacement, whose sensitivity is
    twice as large).

    Args:
        epsilon: the total cost allowed.
        delta: the delta of (epsilon, delta)-differential privacy.
        rounds: number of releases.
        sampler: how cohorts are drawn.

    Returns:
        Standard deviation of the noise over the L2 sensitivity to one contribution.

    Raises:
        ConfigError: a parameter outside its domain.
    """
    check_positive("epsilon", epsilon)
    check_integer("rounds", rounds, 1)
    full = _least(lambda multiplier: epsilon_of(multiplier, rounds, delta) <= epsilon, 1e-9)
    if sampler == "full":
        return full
    sampled = _least(lambda multiplier: epsilon_of(multiplier, rounds, delta, sampler) <= epsilon, 1e-3)
    return min(sampled, 2 * full if isinstance(sampler, FixedSizeSampling) else full)


def _least(holds: Callable[[float], bool], precision: float) -> float:
    """Find by bisection the least x > 0 where the monotone `holds` is true, from above, to a relative `precision`."""
    low = high = 1.0
    while not holds(high):
        low, high = high, 2 * high
    while low == high or holds(low):
        low, high = low / 2, low
    while high > low * (1 + precision):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


@lru_cache(maxsize=4096)
def _gaussian_epsilon(mu: float, delta: float) -> float:
    """Compute the least epsilon of a Gaussian mechanism with sensitivity over standard deviation `mu`, from above."""
    if _log_delta(0.0, mu) <= math.log(delta):
        return 0.0
    # delta(eps) <= Phi(mu/2 - eps/mu) <= exp(-(eps/mu - mu/2)^2 / 2): here it is below delta.
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if _log_delta(middle, mu) <= math.log(delta) else (middle, high)
    return high


def _log_delta(epsilon: float, mu: float) -> float:
    """Compute log of Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) (Balle and Wang 2018, theorem 8)."""
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return first + math.log(-math.expm1(second - first)) if second < first else -math.inf


@lru_cache(maxsize=512)
def _poisson_epsilon(noise_multiplier: float, rounds: int, delta: float, rate: float) -> float:
    """Bound epsilon under Poisson sampling by dp-accounting's privacy loss distributions."""
    from dp_accounting.pld import privacy_loss_distribution  # noqa: PLC0415 - full participation does without it

    nothing = privacy_loss_distribution.identity(_GRID)
    loss = nothing.compose(_poisson_loss(noise_multiplier, rate).self_compose(rounds))
    epsilon = float(np.float64(loss.get_epsilon_for_delta(delta)))
    return epsilon if math.isfinite(epsilon) else _poisson_renyi(noise_multiplier, rounds, delta, rate)


@lru_cache(maxsize=8)
def _poisson_loss(noise_multiplier: float, rate: float) -> Any:
    """Compute the privacy loss distribution of one round, which takes longer than to compose and to read it."""
    import dp_accounting  # noqa: PLC0415 - takes a second, and full participation does without it
    from dp_accounting.pld import privacy_loss_distribution  # noqa: PLC0415

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier, value_discretization_interval=_GRID, sampling_prob=rate,
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )  # fmt: skip


def _poisson_renyi(noise_multiplier: float, rounds: int, delta: float, rate: float) -> float:
    """Bound epsilon under Poisson sampling by dp-accounting's Renyi divergences: at every delta, but less tightly.

    A privacy loss distribution is cut where its tails weigh 1e-15, so that it has no epsilon for a delta below that.
    """
    import dp_accounting  # noqa: PLC0415 - takes a second, and full participation does without it
    from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415

    accountant = RdpAccountant(_ORDERS, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise_multiplier))
    accountant.compose(event, rounds)
    return float(np.float64(accountant.get_epsilon(delta)))


@lru_cache(maxsize=512)
def _fixed_size_epsilon(noise_multiplier: float, rounds: int, delta: float, sampler: FixedSizeSampling) -> float:
    """Bound epsilon for cohorts of a fixed size by dp-accounting's Renyi divergences, neighbours by replacement."""
    from dp_accounting.rdp import compute_epsilon  # noqa: PLC0415 - takes a second, and full participation does without

    replaced = noise_multiplier / 2  # one contribution goes and another comes: twice the sensitivity
    orders, divergences = _fixed_size_divergences(replaced, sampler)
    epsilon, _ = compute_epsilon(orders, rounds * divergences, delta)
    every_round = _gaussian_epsilon(math.sqrt(rounds) / replaced, delta)  # holds for any sampler blind to data
    return min(float(np.float64(epsilon)), every_round)


@lru_cache(maxsize=8)
def _fixed_size_divergences(noise_multiplier: float, sampler: FixedSizeSampling) -> tuple[Array, Array]:
    """Compute the Renyi orders and divergences of one round; those of several rounds are their sums."""
    import dp_accounting  # noqa: PLC0415 - takes a second, and full participation does without it
    from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415

    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    noise = dp_accounting.GaussianDpEvent(noise_multiplier)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(sampler.clients, sampler.cohort, noise))
    return accountant.orders, accountant.rdp
