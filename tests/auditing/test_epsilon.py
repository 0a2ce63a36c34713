"""Lower bounds on epsilon: coverage, power, and the formulas against direct optimisation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import binom, norm

from securefed._auditing.differential_privacy.epsilon_bounds import (
    Guesses,
    clopper_pearson,
    from_scores,
    gaussian_epsilon,
    gaussian_least,
    one_run,
    one_run_f,
    one_run_p_value,
    rejects,
    rejects_gaussian,
    tradeoff,
    tradeoff_mu,
)
from securefed.defenses import calibrate
from securefed.errors import ConfigError
from tests.combinations import first_ones

DELTA = 1e-5
KNOWN = (0.5, 1.0, 2.0, 4.0)
GAMES = 400
SLACK = 32
"""Failures allowed of 400 at 5 %: more have probability 5e-3 where coverage is exactly 95 %."""


def gaussian_game(rng, mu, canaries=400, made=100):
    bits = rng.integers(0, 2, canaries)
    return Guesses.of(mu * bits + rng.normal(size=canaries), bits, made)


@pytest.mark.parametrize("epsilon", first_ones(KNOWN, 2))
def test_one_run_bounds_cover_a_gaussian_mechanism_and_have_power(epsilon) -> None:
    """A bound exceeds the true epsilon exactly where the true one is rejected."""
    mu = 1 / calibrate(epsilon, DELTA, 1)
    rng = np.random.default_rng(int(10 * epsilon))
    games = [gaussian_game(rng, mu) for _ in range(GAMES)]
    assert sum(one_run_p_value(game, epsilon, DELTA) <= 0.05 for game in games) <= SLACK
    assert sum(rejects_gaussian(game, mu) for game in games) <= SLACK
    tenfold = [gaussian_game(rng, 10 * mu) for _ in range(20)]  # noise x 0.1
    assert all(rejects_gaussian(game, mu) for game in tenfold)
    assert all(one_run_p_value(game, epsilon, DELTA) <= 0.05 for game in tenfold) or epsilon == KNOWN[-1]


@pytest.mark.parametrize("epsilon", first_ones(KNOWN, 2))
def test_repeated_runs_cover_a_gaussian_mechanism_and_have_power(epsilon) -> None:
    mu = 1 / calibrate(epsilon, DELTA, 1)
    rng = np.random.default_rng(int(10 * epsilon) + 1)
    over = 0
    for _ in range(GAMES):
        said = [int(np.sum(rng.normal(m, 1, 1000) > mu + 1)) for m in (mu, 0.0)]
        over += clopper_pearson((said[0], 1000), (said[1], 1000), DELTA) > epsilon
    assert over <= SLACK
    assert from_scores(rng.normal(10 * mu, 1, 1000), rng.normal(0, 1, 1000), DELTA) > min(epsilon, 3.0)


def test_pure_randomised_response_is_met_from_below() -> None:
    """The extreme mechanism of (epsilon, 0): every guess is right with probability e^eps / (1 + e^eps)."""
    epsilon, rng = 1.0, np.random.default_rng(0)
    q = 1 / (1 + np.exp(-epsilon))
    bounds = [one_run(Guesses(2000, 2000, int(rng.binomial(2000, q))), 0.0) for _ in range(60)]
    assert sum(b > epsilon for b in bounds) <= 9
    assert np.median(bounds) > 0.85


def test_the_delta_term_covers_the_extreme_mechanism() -> None:
    """With probability m delta all bits are shown, else randomised response: (epsilon, delta) for each of m bits."""
    m, delta, epsilon = 20, 0.01, 0.5
    q = 1 / (1 + np.exp(-epsilon))
    for v in range(m + 1):
        # each bit alone shows with delta: the chance that all do at once is at most delta
        truth = (1 - delta) * binom.sf(v - 1, m, q) + delta
        assert one_run_p_value(Guesses(m, m, v), epsilon, delta) >= min(1.0, truth) - 1e-12
    assert one_run_p_value(Guesses(m, m, m), epsilon, 0.0) == pytest.approx(q**m)


@pytest.mark.parametrize(("made", "right", "mu"), [(3, 2, 0.5), (3, 3, 1.0), (4, 3, 0.7), (5, 4, 0.3)])
def test_the_recursion_is_the_optimum_of_its_constraints(made, right, mu) -> None:
    """Largest P[>= right] over all laws q of the number of right guesses, by a general solver."""

    def parts(q):
        a = np.arange(made + 1)
        hit = [np.sum((q * a / made)[k:]) for k in range(made + 2)]
        miss = [np.sum((q * (made - a) / made)[k:]) for k in range(made + 2)]
        return hit, miss

    def slack(q):
        hit, miss = parts(q)
        return np.array([miss[a] - gaussian_least(min(max(hit[a + 1], 0), 1), mu) for a in range(made)])

    best = 0.0
    for seed in range(6):
        start = np.random.default_rng(seed).dirichlet(np.ones(made + 1))
        found = minimize(
            lambda q: -np.sum(q[right:]),
            start,
            constraints=[{"type": "eq", "fun": lambda q: q.sum() - 1}, {"type": "ineq", "fun": slack}],
            bounds=[(0, 1)] * (made + 1),
            method="SLSQP",
            options={"maxiter": 300},
        )
        if slack(found.x).min() > -1e-7:
            best = max(best, -found.fun)
    low, high = 0.0, 1.0
    while high - low > 1e-6:  # the largest level that the recursion does not reject
        middle = (low + high) / 2
        low, high = (
            (low, middle)
            if rejects(Guesses(made, made, right), lambda x: gaussian_least(x, mu), middle)
            else (middle, high)
        )
    assert low == pytest.approx(best, abs=2e-3)


def test_bounds_are_clamped_and_grow_with_what_was_guessed() -> None:
    assert (
        clopper_pearson((0, 10), (10, 10), DELTA) == 0.0
    )  # "in" must mean in: it is the caller who turns a test round
    assert clopper_pearson((5, 10), (5, 10), DELTA) == 0.0
    assert clopper_pearson((10, 10), (0, 10), DELTA) < clopper_pearson((1000, 1000), (0, 1000), DELTA) < np.log(1000)
    for auditor in (one_run, one_run_f):
        values = [auditor(Guesses(200, 100, right), DELTA) for right in (0, 50, 70, 90, 100)]
        assert values[0] == values[1] == 0.0
        assert values == sorted(values)
        assert values[-1] > 2
    assert gaussian_epsilon(1 / calibrate(1.0, DELTA, 1), DELTA) == pytest.approx(1.0)
    assert Guesses.of(np.arange(10), np.arange(10) >= 5) == Guesses(10, 10, 10)
    assert Guesses.of(np.arange(10), np.arange(10) < 5, 4) == Guesses(10, 4, 0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Guesses(5, 6, 1), "right <= made"),
        (lambda: Guesses.of(np.ones(4), np.ones(3)), "one length"),
        (lambda: Guesses.of(np.ones(4), np.ones(4), 8), "guesses can be made"),
        (lambda: clopper_pearson((3, 2), (0, 2), DELTA), "0..runs"),
        (lambda: clopper_pearson((1, 2), (0, 2), 1.0), "delta"),
        (lambda: one_run(Guesses(2, 2, 2), DELTA, 1.0), "confidence"),
        (lambda: from_scores(np.ones(4), np.ones(4), DELTA, tune=0.0), "tune"),
        (lambda: from_scores(np.ones(1), np.ones(1), DELTA), "too few"),
    ],
)
def test_bad_input_is_refused(call, words) -> None:
    with pytest.raises(ConfigError, match=words):
        call()


@pytest.mark.parametrize("epsilon", first_ones(KNOWN, 2))
def test_a_fixed_test_bounds_mu_in_19_of_20_games_and_rejects_half_of_it(epsilon) -> None:
    """Exactly, by summing over both counts: the bound fails with at most 5 %, and excludes mu / 2 where mu is large."""
    mu, runs = 1 / calibrate(epsilon, DELTA, 1), 60
    inside, outside = (binom.pmf(np.arange(runs + 1), runs, 1 - norm.cdf(mu / 2 - shift)) for shift in (mu, 0.0))
    bounds = np.array([[tradeoff_mu((i, runs), (o, runs)) for o in range(runs + 1)] for i in range(runs + 1)])
    likely = np.outer(inside, outside)
    assert float(likely[bounds > mu].sum()) <= 0.05
    many = tradeoff_mu((round(4000 * norm.cdf(mu / 2)), 4000), (round(4000 * norm.cdf(-mu / 2)), 4000))
    assert mu / 3 < many < mu
    assert tradeoff_mu((0, 5), (0, 5)) == tradeoff_mu((5, 5), (5, 5)) == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("epsilon", KNOWN)
def test_the_trade_off_bound_covers_a_gaussian_mechanism(epsilon) -> None:
    mu, rng = 1 / calibrate(epsilon, DELTA, 1), np.random.default_rng(6)
    games = [tradeoff(rng.normal(mu, 1, 400), rng.normal(0, 1, 400), DELTA) for _ in range(100)]
    assert sum(bound > epsilon for bound in games) <= 12  # more have probability 2e-3 where coverage is exactly 95 %
    twice = tradeoff(rng.normal(2 * mu, 1, 4000), rng.normal(0, 1, 4000), DELTA)
    assert twice > epsilon  # half of the noise
