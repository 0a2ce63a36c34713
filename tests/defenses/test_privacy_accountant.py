"""The accountant against two others, a direct integral, closed forms, and its own inverse; the budget."""

import math
import warnings

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant
from scipy.integrate import quad
from scipy.stats import norm

from securefed import Layout, TensorSpec, chain
from securefed._persistence.packing import pack, restore
from securefed.defenses import Budget, FixedSizeSampling, PoissonSampling, calibrate, clip, epsilon_of, gaussian
from securefed.errors import BudgetSpent, ConfigError
from tests.combinations import each_value, first_ones

DELTA = 1e-5


def opacus_epsilon(noise, rounds, rate):
    accountant = PRVAccountant()
    accountant.history = [(noise, rate, rounds)]
    # opacus takes log(1 - q) at q = 1, and warns of the RDP bound by which it sizes its grid
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return accountant.get_epsilon(DELTA)


def pld_epsilon(noise, rounds):
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.GaussianDpEvent(noise), rounds)
    return accountant.get_epsilon(DELTA)


@pytest.mark.exhaustive
def test_poisson_sampling_at_the_known_point():
    # sigma 1, q .01, T 10000: privacy loss distributions give 6.188, opacus' PRV 6.198 (RDP would give 6.713).
    ours = epsilon_of(1.0, 10_000, DELTA, PoissonSampling(0.01))
    assert ours == pytest.approx(6.188, abs=1e-3)
    assert ours == pytest.approx(opacus_epsilon(1.0, 10_000, 0.01), abs=0.02)
    for wrong in (0.97, 1.03):
        assert abs(epsilon_of(wrong, 10_000, DELTA, PoissonSampling(0.01)) - 6.188) > 0.1


@pytest.mark.parametrize(("noise", "rounds"), first_ones([(1.0, 1), (3.0, 30), (10.0, 100), (5.0, 1), (20.0, 1000)], 2))
def test_full_participation_agrees_with_two_other_accountants(noise, rounds):
    ours = epsilon_of(noise, rounds, DELTA)
    # dp-accounting rounds upwards on a grid of 1e-4; opacus is told to be within .01
    assert 0 <= pld_epsilon(noise, rounds) - ours < 2e-3
    assert opacus_epsilon(noise, rounds, 1.0) == pytest.approx(ours, abs=0.02)
    assert abs(epsilon_of(noise * 1.1, rounds, DELTA) - ours) > 0.02  # the wrong sigma is told apart


@pytest.mark.parametrize(("noise", "rounds"), [(0.3, 1), (1.0, 4), (2.0, 1), (50.0, 10)])
def test_delta_at_epsilon_is_the_integral_of_the_excess(noise, rounds):
    mu, epsilon = math.sqrt(rounds) / noise, epsilon_of(noise, rounds, DELTA)
    start = epsilon / mu + mu / 2  # where p(x) = e^eps q(x), p centred at mu, q at 0
    excess, _ = quad(
        lambda x: norm.pdf(x - mu) - math.exp(epsilon - x * x / 2) / math.sqrt(2 * math.pi), start, start + 40
    )
    assert excess == pytest.approx(DELTA, rel=1e-5)


def test_analytic_gaussian_mechanism_at_epsilon_one():
    # Solves Phi(1/(2s) - s) - e Phi(-1/(2s) - s) = 1e-5, Balle and Wang 2018, theorem 8, checked here directly.
    s = calibrate(1.0, DELTA, 1)
    assert s == pytest.approx(3.730632, abs=1e-5)
    assert norm.cdf(1 / (2 * s) - s) - math.e * norm.cdf(-1 / (2 * s) - s) == pytest.approx(1e-5, rel=1e-6)


@given(st.floats(0.05, 1e3), st.integers(1, 10**5))
def test_rounds_compose_to_one_release_with_less_noise(noise, rounds):
    assert epsilon_of(noise, rounds) == pytest.approx(epsilon_of(noise / math.sqrt(rounds), 1), rel=1e-9)


@given(st.floats(0.05, 1e3), st.integers(1, 1000), st.floats(1e-12, 0.1))
def test_more_noise_fewer_rounds_and_larger_delta_cost_less(noise, rounds, delta):
    epsilon = epsilon_of(noise, rounds, delta)
    assert epsilon_of(noise * 1.01, rounds, delta) <= epsilon
    assert epsilon_of(noise, rounds + 1, delta) >= epsilon
    assert epsilon_of(noise, rounds, delta * 1.5) <= epsilon
    assert math.isfinite(epsilon)


@settings(max_examples=30)
@given(st.floats(1e-3, 50), st.floats(1e-9, 1e-2), st.integers(1, 10**4))
def test_calibrated_noise_keeps_the_promise_and_hardly_less_would_not(epsilon, delta, rounds):
    noise = calibrate(epsilon, delta, rounds)
    assert epsilon_of(noise, rounds, delta) <= epsilon < epsilon_of(noise * (1 - 1e-6), rounds, delta)


@pytest.mark.parametrize(("epsilon", "ten"), [(1.0, 14.43), (8.0, 208.95)])
def test_ten_records_cost_far_more_than_ten_times_epsilon_at_the_same_delta(epsilon, ten):
    """Ten records move a sum ten times as far. Delta at the result, by the two normal tails, is as it was."""
    multiplier = calibrate(epsilon, DELTA, 1) / 10
    found = epsilon_of(multiplier, 1, DELTA)
    assert found == pytest.approx(ten, abs=0.01)
    tails = (norm.cdf(0.5 / multiplier - found * multiplier), norm.logcdf(-0.5 / multiplier - found * multiplier))
    assert tails[0] - math.exp(found + tails[1]) == pytest.approx(DELTA, rel=1e-6)


@pytest.mark.parametrize(("noise", "rounds", "rate"), first_ones([(5.0, 100, 1e-4), (5.0, 1000, 1e-3), (50.0, 1, 0.5)]))
def test_under_poisson_sampling_no_delta_is_too_small_for_a_bound(noise, rounds, rate):
    """Below the resolution of a privacy loss distribution epsilon is that of Renyi divergences, not of every round."""
    found = [epsilon_of(noise, rounds, delta, PoissonSampling(rate)) for delta in (1e-13, 1e-14, 1e-15, 1e-16, 1e-30)]
    assert found == sorted(found)
    assert found[2] < 30 * found[1] < 0.3 * epsilon_of(noise, rounds, 1e-15) or rate == 0.5
    assert found[4] < epsilon_of(noise, rounds, 1e-30)


def test_a_bound_at_a_small_delta_is_no_less_than_the_exact_loss_of_one_sampled_round():
    """One round at noise 50 and rate 1/2: delta of the exact pair of distributions, by integration of its tail."""
    noise, rate = 50.0, 0.5
    epsilon = epsilon_of(noise, 1, 1e-16, PoissonSampling(rate))
    # P = (1 - q) N(0, s) + q N(1, s) exceeds e^eps Q, Q = N(0, s), from x on: delta = P(X > x) - e^eps Q(X > x)
    x = noise**2 * math.log((math.exp(epsilon) - 1 + rate) / rate) + 0.5
    above, shifted = norm.sf(x / noise), norm.sf((x - 1) / noise)
    assert (1 - rate) * above + rate * shifted - math.exp(epsilon) * above <= 1e-16
    assert epsilon < 1.3 * 0.065


@pytest.mark.exhaustive
def test_calibration_under_poisson_sampling():
    sampler = PoissonSampling(0.05)
    noise = calibrate(3.0, DELTA, 200, sampler)
    assert epsilon_of(noise, 200, DELTA, sampler) <= 3.0 < epsilon_of(noise * 0.99, 200, DELTA, sampler)
    assert noise < calibrate(3.0, DELTA, 200)  # not being there helps


@pytest.mark.exhaustive
@pytest.mark.parametrize(("epsilon", "rate"), [(0.5, 1.0), (3.0, 1.0), (50.0, 0.5), (50.0, 0.999)])
def test_calibration_under_poisson_sampling_never_asks_for_more_than_every_round_in_full(epsilon, rate):
    # Where the numerical accountant ends (noise below .3) and where it costs precision (rate 1).
    sampled, full = calibrate(epsilon, DELTA, 1, PoissonSampling(rate)), calibrate(epsilon, DELTA, 1)
    assert sampled <= full
    assert epsilon_of(sampled, 1, DELTA, PoissonSampling(rate)) <= epsilon


@pytest.mark.exhaustive
def test_calibration_for_a_fixed_size_never_asks_for_more_than_replacements_in_full():
    assert calibrate(3.0, DELTA, 100, FixedSizeSampling(9, 10)) <= 2 * calibrate(3.0, DELTA, 100)


def test_cohorts_of_a_fixed_size_at_the_known_point():
    # 100 of 10000, replace-one, noise 1 over what a REPLACEMENT moves (2 over what one contribution does): 13.15.
    sampler = FixedSizeSampling(100, 10_000)
    assert epsilon_of(2.0, 10_000, DELTA, sampler) == pytest.approx(13.15, abs=5e-3)
    assert epsilon_of(1.0, 10_000, DELTA, sampler) > 100  # forgetting the factor of two would understate it by far
    assert epsilon_of(2.0, 10_000, DELTA, PoissonSampling(0.01)) < 3  # ... and so would taking it for Poisson sampling


@pytest.mark.parametrize(("noise", "cohort"), each_value([1.0, 4.0, 30.0], [1, 5, 20]))
def test_a_fixed_size_costs_at_most_every_round_in_full_and_at_least_the_exact_loss_of_one_round(noise, cohort):
    sampler = FixedSizeSampling(cohort, 20)
    for rounds in (1, 50):
        assert epsilon_of(noise, rounds, DELTA, sampler) <= epsilon_of(noise / 2, rounds, DELTA)
    # One release, all others contribute -1 (the clip), the target -1 or +1: the mixture over who is drawn, integrated.
    epsilon, rate = epsilon_of(noise, 1, DELTA, sampler), cohort / 20
    here, there = -1.0 * cohort, -1.0 * cohort + 2

    def excess(x):
        low, high = norm.pdf(x, here, noise), norm.pdf(x, there, noise)
        return max(0.0, (1 - rate) * low + rate * high - math.exp(epsilon) * low)

    found, _ = quad(excess, here - 12 * noise, there + 12 * noise, limit=400, points=[here, there])
    assert found <= DELTA * 1.001
    if cohort == 20:
        assert epsilon == epsilon_of(noise / 2, 1, DELTA)


def test_a_fixed_size_plan_states_neighbours_and_sampler():
    mechanism = gaussian(3.0, sampler=FixedSizeSampling(10, 200))
    plan = chain(clip(1.0), mechanism).plan(Layout((TensorSpec("x", (4,)),)), 10)
    words = " ".join(plan.assumptions)
    assert "replacing one client's whole contribution by another" in words
    assert "draws 10 of 200 clients" in words
    assert plan.epsilon[2] == (30, epsilon_of(3.0, 30, DELTA, FixedSizeSampling(10, 200)))


def test_limits():
    assert epsilon_of(1.0, 0) == 0
    assert epsilon_of(1e9, 1) == 0  # delta alone covers it
    assert epsilon_of(2.0, 5, DELTA, PoissonSampling(1.0)) == epsilon_of(2.0, 5, DELTA)


@pytest.mark.exhaustive
def test_limits_of_little_noise_under_sampling():
    assert epsilon_of(1e-3, 5, DELTA, PoissonSampling(0.1)) == epsilon_of(
        1e-3, 5, DELTA
    )  # too fine for the numerical one
    assert epsilon_of(0.31, 1, DELTA, PoissonSampling(0.1)) < epsilon_of(0.31, 1, DELTA)


@pytest.mark.parametrize(
    "call",
    [
        lambda: epsilon_of(0.0, 1),
        lambda: epsilon_of(-1.0, 1),
        lambda: epsilon_of(math.inf, 1),
        lambda: epsilon_of(math.nan, 1),
        lambda: epsilon_of(1.0, -1),
        lambda: epsilon_of(1.0, 1, 0.0),
        lambda: epsilon_of(1.0, 1, 1.0),
        lambda: epsilon_of(1.0, 1, DELTA, "poisson"),
        lambda: PoissonSampling(0.0),
        lambda: PoissonSampling(1.1),
        lambda: FixedSizeSampling(0, 5),
        lambda: FixedSizeSampling(6, 5),
        lambda: calibrate(0.0, DELTA, 1),
        lambda: calibrate(math.inf, DELTA, 1),
        lambda: calibrate(1.0, DELTA, 0),
        lambda: calibrate(1.0, 0.0, 1),
        lambda: Budget(0.0, 1.0),
        lambda: Budget(1.0, 0.0),
        lambda: Budget(1.0, 1.0, exchanges=-1),
        lambda: Budget(1.0, 1.0).spend(-1),
    ],
)
def test_parameters_outside_their_domain_are_refused(call):
    with pytest.raises(ConfigError):
        call()


def test_a_budget_ends_before_the_exchange_that_would_exceed_it():
    noise = calibrate(2.0, DELTA, 20)
    budget = gaussian(noise).budget(2.0)
    assert budget.spent == 0
    for exchange in range(20):
        budget = budget.spend(1)
        assert budget.exchanges == exchange + 1
    assert budget.spent == pytest.approx(2.0, rel=1e-6)
    with pytest.raises(BudgetSpent, match="21 exchanges would cost"):
        budget.spend(1)
    assert budget.exchanges == 20
    assert budget.spend(0) == budget


def test_a_budget_knows_the_mechanism_and_survives_a_process():
    mechanism = gaussian(4.0, delta=1e-6, sampler=PoissonSampling(0.2))
    budget = mechanism.budget(1.0).spend(3)
    assert (budget.noise_multiplier, budget.delta, budget.sampler) == (4.0, 1e-6, PoissonSampling(0.2))
    assert restore(mechanism.budget(9.0), pack(budget)) == budget
