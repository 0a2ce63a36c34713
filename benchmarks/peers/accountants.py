"""Accountants that share no code with ours, one for each mechanism: beside them stand the benchmark and the tests.

Where ours is a bound by design (Renyi divergences for integer noise and for fixed cohorts), the other accountant
computes the same kind of bound by its own means: exact divergences summed over the noise's own masses, dp-accounting's
divergences and conversion, or the theorem in rational-order form with other arithmetic.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from opacus.accountants import PRVAccountant
from scipy.special import gammaln, ive, logsumexp

from securefed._tensors import Layout, TensorSpec
from securefed.defenses._base import Defense, Plan
from securefed.defenses._chain import chain
from securefed.defenses._differential_privacy import (
    FixedSizeSampling,
    PoissonSampling,
    adaptive_clip,
    clip,
    clip_each,
    discrete_gaussian,
    gaussian,
    local_gaussian,
    local_laplace,
    poisson,
    records,
    skellam,
)
from securefed.defenses._secure_aggregation import secure_aggregation

DELTA = 1e-5
LAYOUT = Layout((TensorSpec("w", (7, 3), 1.0, sensitivity=0.2), TensorSpec("b", (), 1.0, sensitivity=0.1)))
ONE = Layout((TensorSpec("x", (1,)),))
WHOLE_ORDERS = np.arange(2, 200)
"""Skellam divergences are known at these alone."""
FINE_ORDERS = 1 + np.geomspace(1e-2, 1e4, 2000)
Other = Callable[[Any, Plan, int], float]


def pld(noise: float) -> Other:
    """dp-accounting's privacy loss distribution of Gaussian releases."""

    def epsilon(link: Any, plan: Plan, rounds: int) -> float:
        accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
        accountant.compose(dp_accounting.GaussianDpEvent(noise), rounds)
        return float(accountant.get_epsilon(DELTA))

    return epsilon


def pair(link: Any, plan: Plan, rounds: int) -> float:
    """Contributions and bits as two mechanisms, each with its own sensitivity."""
    adaptive = adaptive_clip(0.5, share=0.1)
    contribution = link.noise_multiplier * math.sqrt(1 + adaptive.weight**2 / 4)
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.GaussianDpEvent(contribution), rounds)
    accountant.compose(dp_accounting.GaussianDpEvent(2 * contribution / adaptive.weight), rounds)
    return float(accountant.get_epsilon(DELTA))


def prv(noise: float, rate: float) -> Other:
    """opacus' privacy random variables."""

    def epsilon(link: Any, plan: Plan, rounds: int) -> float:
        accountant = PRVAccountant()
        accountant.history = [(noise, rate, rounds)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return float(accountant.get_epsilon(DELTA, eps_error=2e-3))

    return epsilon


def without_replacement(noise: float, cohort: int, clients: int) -> Other:
    """Wang, Balle, Kasiviswanathan 2019, theorem 27 for Gaussian noise, at integer orders."""

    def divergence(order: int) -> float:
        rate, half = cohort / clients, noise / 2  # one contribution replaced: twice the sensitivity

        def base(a: float) -> float:
            return a / (2 * half**2)

        terms = [0.0]
        for j in range(2, order + 1):
            choose = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
            if j == 2:
                most = min(math.log(4) + math.log(math.expm1(base(2))), math.log(2) + base(2))
            else:
                most = math.log(2) + (j - 1) * base(j)
            terms.append(j * math.log(rate) + choose + most)
        return min(float(logsumexp(terms)) / (order - 1), base(order))

    few = np.arange(2, 65)
    found = np.array([divergence(int(order)) for order in few])

    def epsilon(link: Any, plan: Plan, rounds: int) -> float:
        return float(compute_epsilon(few, rounds * found, DELTA)[0])

    return epsilon


def exact_skellam(link: Any, plan: Plan, rounds: int) -> float:
    """Divergences of the noise's own masses, one entry that moves by the whole sensitivity."""
    sizes = link.sizes(plan)
    shift, variance = math.isqrt(sizes.squares), sizes.honest * sizes.share
    width = int(14 * math.sqrt(variance)) + shift
    k = np.arange(-width, width + 1)
    log_p, log_q = (np.log(np.maximum(ive(np.abs(k - s), variance), 1e-300)) for s in (shift, 0))
    orders = np.arange(2, 65)
    found = [logsumexp(a * log_p - (a - 1) * log_q) / (a - 1) for a in orders]
    return float(compute_epsilon(orders, rounds * np.array(found), DELTA)[0])


def renyi(event: Callable[[Any, Plan], Any], orders: Any = FINE_ORDERS) -> Other:
    """dp-accounting's Renyi divergences and conversion."""

    def epsilon(link: Any, plan: Plan, rounds: int) -> float:
        accountant = RdpAccountant(orders, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
        accountant.compose(event(link, plan), rounds)
        return float(accountant.get_epsilon(DELTA))

    return epsilon


def gaussian_of_the_ring(link: Any, plan: Plan) -> Any:
    sizes = link.sizes(plan)
    return dp_accounting.GaussianDpEvent(math.sqrt(sizes.honest * sizes.share / sizes.squares))


def laplace_of_the_ring(link: Any, plan: Plan) -> Any:
    sizes = link.sizes(plan)  # variance of a fine discrete Laplace: twice the squared scale
    return dp_accounting.LaplaceDpEvent(math.sqrt(sizes.share / 2) / math.sqrt(sizes.squares))


@dataclass(frozen=True)
class Case:
    """One mechanism: how its chain begins, its noise, the same with too little noise, and the other accountant.

    Attributes:
        by: the other accountant, in words.      rounds: numbers of exchanges to compare at.
        links: that end the chain.      wrong: factor on the noise that must be told apart.
    """

    start: tuple[Any, ...]
    make: Callable[[float], Any]
    noise: float
    other: Other
    by: str
    rounds: tuple[int, ...] = (1, 10, 100)
    layout: Layout = LAYOUT
    links: tuple[Any, ...] = ()
    wrong: float = 0.93

    def defense(self, factor: float = 1.0) -> Defense:
        """The chain, with `factor` times the noise."""
        return chain(*self.start, self.make(factor * self.noise), *self.links)


LOSSES, RENYI = "dp-accounting, loss distributions", "dp-accounting, Renyi"
RING = (secure_aggregation(),)
TENTH, FEW = PoissonSampling(0.1), FixedSizeSampling(10, 1000)
CASES = {
    "gaussian": Case((clip(1.0),), gaussian, 3.0, pld(3.0), LOSSES),
    "gaussian, clip by tensor": Case((clip_each(0.5),), gaussian, 2.0, pld(2.0), LOSSES, (1, 10)),
    "gaussian, adaptive clip": Case(
        (adaptive_clip(0.5, share=0.1),), gaussian, 2.0, pair, "dp-accounting, contributions and bits apart", (1, 10)
    ),
    "gaussian, Poisson cohorts": Case(
        (clip(1.0), poisson(0.1)), lambda z: gaussian(z, sampler=TENTH), 2.0, prv(2.0, 0.1), "opacus, PRV", (100,)
    ),
    "gaussian, fixed cohorts": Case(
        (clip(1.0),),
        lambda z: gaussian(z, sampler=FEW),
        3.0,
        without_replacement(3.0, 10, 1000),
        "theorem 27 of Wang et al. computed anew",
        (10, 100),
    ),
    "gaussian, records": Case((records(),), gaussian, 4.0, pld(4.0), LOSSES, (1, 30)),
    "skellam": Case(
        (clip(1.0),),
        lambda z: skellam(z, ring=21),
        4.0,
        exact_skellam,
        "divergences of the noise's own masses",
        (1, 10),
        ONE,
        RING,
    ),
    "skellam, records": Case(
        (records(),),
        lambda z: skellam(z, ring=64),
        4.0,
        renyi(gaussian_of_the_ring, WHOLE_ORDERS),
        RENYI,
        (1, 10),
        LAYOUT,
        RING,
    ),
    "discrete gaussian": Case((clip(1.0),), discrete_gaussian, 4.0, renyi(gaussian_of_the_ring), RENYI, links=RING),
    "local gaussian": Case((clip(1.0),), local_gaussian, 4.0, renyi(gaussian_of_the_ring), RENYI),
    "local laplace": Case((clip(1.0),), local_laplace, 4.0, renyi(laplace_of_the_ring), RENYI, (1, 10, 100), ONE),
}
