"""Every mechanism's epsilon, as its plan states it, beside an accountant that shares no code with ours, within .01.

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
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from opacus.accountants import PRVAccountant
from scipy.special import gammaln, ive, logsumexp

from securefed.defenses.base import Plan
from securefed.defenses.compose import chain
from securefed.defenses.differential_privacy import (
    FixedSize,
    Poisson,
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
from securefed.defenses.secure_aggregation import secure_aggregation
from securefed.tensors import Layout, TensorSpec

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
    """One mechanism: how its chain begins, its noise, the same with too little noise, and the other accountant."""

    start: tuple[Any, ...]
    make: Callable[[float], Any]
    noise: float
    other: Other
    rounds: tuple[int, ...] = (1, 10, 100)
    layout: Layout = LAYOUT
    links: tuple[Any, ...] = ()
    wrong: float = 0.93


RING = (secure_aggregation(),)
TENTH, FEW = Poisson(0.1), FixedSize(10, 1000)
CASES = {
    "gaussian": Case((clip(1.0),), gaussian, 3.0, pld(3.0)),
    "gaussian, clip by tensor": Case((clip_each(0.5),), gaussian, 2.0, pld(2.0), (1, 10)),
    "gaussian, adaptive clip": Case((adaptive_clip(0.5, share=0.1),), gaussian, 2.0, pair, (1, 10)),
    "gaussian, Poisson cohorts": Case(
        (clip(1.0), poisson(0.1)), lambda z: gaussian(z, sampler=TENTH), 2.0, prv(2.0, 0.1), (100,)
    ),
    "gaussian, fixed cohorts": Case(
        (clip(1.0),), lambda z: gaussian(z, sampler=FEW), 3.0, without_replacement(3.0, 10, 1000), (10, 100)
    ),
    "gaussian, records": Case((records(),), gaussian, 4.0, pld(4.0), (1, 30)),
    "skellam": Case((clip(1.0),), lambda z: skellam(z, ring=21), 4.0, exact_skellam, (1, 10), ONE, RING),
    "skellam, records": Case(
        (records(),),
        lambda z: skellam(z, ring=64),
        4.0,
        renyi(gaussian_of_the_ring, WHOLE_ORDERS),
        (1, 10),
        LAYOUT,
        RING,
    ),
    "discrete gaussian": Case((clip(1.0),), discrete_gaussian, 4.0, renyi(gaussian_of_the_ring), links=RING),
    "local gaussian": Case((clip(1.0),), local_gaussian, 4.0, renyi(gaussian_of_the_ring)),
    "local laplace": Case((clip(1.0),), local_laplace, 4.0, renyi(laplace_of_the_ring), (1, 10, 100), ONE),
}


@pytest.mark.parametrize("name", CASES)
def test_epsilon_is_what_an_independent_accountant_says(name: str) -> None:
    case = CASES[name]
    link = case.make(case.noise)
    plan = chain(*case.start, link, *case.links).plan(case.layout, 10)
    less = chain(*case.start, case.make(case.wrong * case.noise), *case.links).plan(case.layout, 10)
    stated, wrong = dict(plan.epsilon), dict(less.epsilon)
    told_apart = []
    for rounds in case.rounds:
        other = case.other(link, plan, rounds)
        assert stated[rounds] == pytest.approx(other, abs=0.01)
        told_apart.append(abs(wrong[rounds] - other) > 0.02)
    assert all(told_apart)


def test_every_mechanism_that_adds_noise_is_in_the_table() -> None:
    from securefed.defenses import differential_privacy  # noqa: PLC0415

    makers = {"gaussian", "skellam", "discrete_gaussian", "local_gaussian", "local_laplace"}
    assert makers <= set(differential_privacy.__all__)
    made = {name.split(",")[0].replace(" ", "_") for name in CASES}
    assert made == makers
    assert {type(case.start[0]).__name__ for case in CASES.values()} == {"Clip", "ClipEach", "AdaptiveClip", "Records"}
