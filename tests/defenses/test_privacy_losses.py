"""Accounting of distributed noise: the literature's values, exact divergences of the laws, and other accountants."""

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ive, logsumexp

from securefed.defenses import Budget, epsilon_of
from securefed.defenses._differential_privacy import DiscreteGaussianLoss, SkellamLoss
from securefed.defenses._differential_privacy.privacy_loss import _INTEGER_ORDERS, LaplaceLoss
from securefed.errors import BudgetSpent, ConfigError

DELTA = 1e-5


def log_skellam(variance, k):
    return np.log(ive(np.abs(k), variance))


def log_gaussian_sum(variance, shares, width):
    """log masses of the sum of `shares` discrete Gaussians on -width..width, by direct convolution."""
    k = np.arange(-width, width + 1)
    one = np.exp(-k * k / (2 * variance))
    one /= one.sum()
    total = one
    for _ in range(shares - 1):
        total = np.convolve(total, one)[width:-width]
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(total, 1e-300))


def renyi(order, log_p, log_q):
    """Renyi divergence of the order of P from Q on the same grid."""
    return logsumexp(order * log_p - (order - 1) * log_q) / (order - 1)


def test_the_literature_values():
    # z = 10, T = 100, scale 64, delta 1e-5: Skellam 4.753 (integer orders), Gaussian 4.729 (Renyi), 4.377 (exact).
    assert SkellamLoss(64**2, 1, 640.0**2).epsilon(100) == pytest.approx(4.753, abs=5e-4)
    assert DiscreteGaussianLoss(64**2, 1, 640.0**2, 1).epsilon(100) == pytest.approx(4.729, abs=1e-3)
    assert epsilon_of(10.0, 100) == pytest.approx(4.377, abs=5e-4)
    assert abs(SkellamLoss(64**2, 1, 620.0**2).epsilon(100) - 4.753) > 0.1


@pytest.mark.parametrize("shift", [(1,), (8,), (3, -2, 1), (1,) * 20])
@pytest.mark.parametrize("variance", [30.0, 900.0])
def test_skellam_divergences_are_below_the_bound_and_near_it(shift, variance):
    loss = SkellamLoss(sum(s * s for s in shift), len(shift), variance)
    assert loss.l1 >= sum(map(abs, shift))
    k = np.arange(-int(13 * math.sqrt(variance)) - 150, int(13 * math.sqrt(variance)) + 151)
    for order in (2, 3, 8):
        exact = sum(renyi(order, log_skellam(variance, k - s), log_skellam(variance, k)) for s in shift)
        bound = float(loss.divergence(np.array([order]))[0])
        assert exact <= bound
        if variance == 900:  # at 30 a shift of 8 is 1.5 deviations, and the bound's L1 term is coarse
            assert bound <= exact * 1.03
            assert exact > float(replace(loss, variance=1.05 * variance).divergence(np.array([order]))[0])


@pytest.mark.parametrize(("variance", "shares"), [(0.5, 4), (1.0, 3), (4.0, 6), (25.0, 2)])
def test_divergences_of_summed_discrete_gaussians_are_below_the_bound(variance, shares):
    loss = DiscreteGaussianLoss(9, 1, variance, shares)
    width = 12 + int(14 * math.sqrt(variance * shares))
    log_p = log_gaussian_sum(variance, shares, width)
    inside = slice(width - 8 - int(9 * math.sqrt(variance * shares)), width + 9 + int(9 * math.sqrt(variance * shares)))
    for order in (1.5, 2, 4):
        shifted = np.roll(log_p, 3)
        exact = renyi(order, shifted[inside], log_p[inside])
        assert exact <= float(loss.divergence(np.array([order]))[0]) * (1 + 1e-9)
    if variance >= 4:  # nothing is lost where shares are not tiny
        assert float(loss.divergence(np.array([2.0]))[0]) == pytest.approx(9 / (variance * shares), rel=1e-6)


@pytest.mark.parametrize("rounds", [1, 30, 1000])
@pytest.mark.parametrize("multiplier", [4.0, 40.0])
def test_epsilon_agrees_with_another_accountant(rounds, multiplier):
    scale = 2.0**12
    skellam = SkellamLoss(int(scale**2), 10_000, (multiplier * scale) ** 2)
    orders = _INTEGER_ORDERS
    other, _ = compute_epsilon(orders, rounds * skellam.divergence(orders), DELTA)
    assert skellam.epsilon(rounds) == pytest.approx(other, abs=1e-2)
    # ... which, told of Gaussian noise and given orders as fine as ours, is what the discrete Gaussian costs
    accountant = RdpAccountant(1 + np.geomspace(1e-2, 1e4, 2000), NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(GaussianDpEvent(multiplier), rounds)
    gaussian = DiscreteGaussianLoss(int(scale**2), 10_000, (multiplier * scale) ** 2 / 50, 50)
    assert gaussian.epsilon(rounds) == pytest.approx(accountant.get_epsilon(DELTA), abs=1e-2)
    assert abs(replace(gaussian, shares=40).epsilon(rounds) - accountant.get_epsilon(DELTA)) > 1e-2


@pytest.mark.parametrize("rounds", [1, 20])
def test_epsilon_is_above_that_of_the_privacy_loss_distribution(rounds):
    # The exact loss of one coordinate that carries the whole shift, composed numerically: a lower bound that is near.
    variance, shift = 32.0**2, 8
    loss = SkellamLoss(shift**2, 1, variance)
    k = np.arange(-600, 601)
    masses = [dict(zip(k.tolist(), log_skellam(variance, k - s).tolist(), strict=True)) for s in (0, shift)]
    pld = privacy_loss_distribution.from_two_probability_mass_functions(*masses, value_discretization_interval=1e-3)
    exact = pld.self_compose(rounds).get_epsilon_for_delta(DELTA)
    assert exact <= loss.epsilon(rounds) <= exact * 1.15 + 0.05
    assert loss.epsilon(rounds) < replace(loss, variance=variance / 1.4).epsilon(rounds)
    assert exact > replace(loss, variance=2 * variance).epsilon(rounds)


@pytest.mark.parametrize("shift", [(3,), (2, -1, 1), (1,) * 9])
def test_laplace_loss_is_pure_and_its_divergences_are_below_the_bound(shift):
    scale, k = 20.0, np.arange(-1500, 1501)
    squares = sum(s * s for s in shift)
    loss = LaplaceLoss(squares, len(shift), scale)
    log_masses = [-np.abs(k - s) / scale + math.log(math.tanh(1 / (2 * scale))) for s in (0, *shift)]
    worst = sum(float(np.abs(log_p - log_masses[0]).max()) for log_p in log_masses[1:])
    assert worst == pytest.approx(sum(map(abs, shift)) / scale)
    assert worst <= loss.pure * (1 + 1e-12)
    for order in (1.5, 2, 30):
        exact = sum(renyi(order, log_p, log_masses[0]) for log_p in log_masses[1:])
        bound = float(loss.divergence(np.array([order]))[0])
        assert exact <= bound * (1 + 1e-9)
        if len(shift) == 1:
            assert exact == pytest.approx(bound, rel=1e-9)  # the worst case itself
    if len(shift) == 9:
        assert worst == pytest.approx(loss.pure)  # the bound on the L1 norm is met
    assert loss.epsilon(1) == pytest.approx(loss.pure, rel=1e-3)
    assert loss.epsilon(2000) < 2000 * loss.pure
    assert replace(loss, scale=0.5).epsilon(40) == pytest.approx(40 * replace(loss, scale=0.5).pure, rel=1e-3)


def test_tau_vanishes_for_shares_of_any_size_and_matters_for_tiny_ones():
    assert DiscreteGaussianLoss(1, 1, 2.0, 100).tau < 1e-6
    assert DiscreteGaussianLoss(1, 1, 100.0, 1).tau == 0
    assert DiscreteGaussianLoss(1, 1, 0.25, 10).tau > 0.1
    two = DiscreteGaussianLoss(1, 1, 0.5, 2)
    assert two.tau == pytest.approx(10 * math.exp(-(math.pi**2) / 2))


@given(st.integers(1, 10**12), st.integers(1, 10**7), st.floats(0.5, 100), st.integers(1, 1000))
def test_more_noise_and_fewer_rounds_cost_less(squares, entries, multiplier, rounds):
    for loss, more in (
        (SkellamLoss(squares, entries, m := multiplier**2 * squares + 1), SkellamLoss(squares, entries, 1.1 * m)),
        (DiscreteGaussianLoss(squares, entries, m, 7), DiscreteGaussianLoss(squares, entries, 1.1 * m, 7)),
    ):
        assert more.epsilon(rounds) <= loss.epsilon(rounds) <= loss.epsilon(rounds + 1)
        assert loss.epsilon(rounds, 1e-9) >= loss.epsilon(rounds)
        assert loss.epsilon(0) == 0
    assert SkellamLoss(squares, entries, m).epsilon(rounds) >= epsilon_of(math.sqrt(m / squares), rounds) - 1e-9


def test_a_budget_of_distributed_noise_ends_where_its_own_loss_says():
    loss = SkellamLoss(64**2, 1, 640.0**2)
    budget = Budget(4.76, 10.0, DELTA, loss=loss)
    assert budget.spend(100).spent == loss.epsilon(100)
    with pytest.raises(BudgetSpent, match="101 exchanges"):
        budget.spend(101)
    assert Budget(4.76, 10.0, DELTA).spend(101).spent < 4.76  # the Gaussian's own epsilon would have let it go on


@pytest.mark.parametrize(
    "call",
    [
        lambda: SkellamLoss(0, 1, 1.0),
        lambda: SkellamLoss(1, 0, 1.0),
        lambda: SkellamLoss(1, 1, 0.0),
        lambda: SkellamLoss(1, 1, math.inf),
        lambda: SkellamLoss(1, 1, 1.0).epsilon(-1),
        lambda: SkellamLoss(1, 1, 1.0).epsilon(1, 0.0),
        lambda: DiscreteGaussianLoss(1, 1, 0.2, 3),
        lambda: DiscreteGaussianLoss(1, 1, 1.0, 0),
    ],
)
def test_parameters_outside_their_domain_are_refused(call):
    with pytest.raises(ConfigError):
        call()
