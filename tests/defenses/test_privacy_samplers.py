"""Exact samplers: their laws by goodness of fit with power, their error bounds, and the path of growing precision.

Statistical tests draw from a stream with a fixed seed, so they do not flicker; the bounds are those of fresh bits.
"""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaln, ive
from scipy.stats import chisquare

from securefed._sampling import rejection
from securefed._sampling.discrete_distributions import (
    DiscreteGaussian,
    DiscreteLaplace,
    PoissonDistribution,
    discrete_gaussian_draws,
    discrete_gaussian_tail,
    discrete_laplace_draws,
    discrete_laplace_tail,
    poisson_draws,
    skellam_draws,
    skellam_tail,
)
from securefed._sampling.random_stream import (
    SecureRandomStream,
    _counter_mode,
    _words,
    public_words,
    uniforms,
)
from securefed._sampling.rejection import rejection_sampler
from securefed.errors import ConfigError
from tests.combinations import each_value
from tests.seeded_stream import SeededStream

N = 1_000_000
VARIANCES = (0.3, 250.0, 7.5e8)


def gaussian_mass(variance):
    k = np.arange(-int(15 * math.sqrt(variance)) - 3, int(15 * math.sqrt(variance)) + 4)
    mass = np.exp(-k * k / (2 * variance))
    return k, mass / mass.sum()


def skellam_mass(variance):
    k = np.arange(-int(15 * math.sqrt(variance)) - 12, int(15 * math.sqrt(variance)) + 13)
    return k, ive(np.abs(k), variance)  # e^-v I_k(v)


def laplace_mass(variance):
    k = np.arange(-int(30 * math.sqrt(variance)) - 3, int(30 * math.sqrt(variance)) + 4)
    mass = np.exp(-np.abs(k) / math.sqrt(variance / 2))
    return k, mass / mass.sum()


def poisson_mass(rate):
    k = np.arange(max(0, int(rate - 15 * math.sqrt(rate))), int(rate + 15 * math.sqrt(rate)) + 12)
    return k, np.exp(k * math.log(rate) - rate - gammaln(k + 1))


def fit(draws, k, mass):
    """p-value of a chi-square test in at most 200 cells of at least 2000 expected draws each, over all integers."""
    cells = max(2000 / draws.size, 1 / 200)
    cell = np.minimum((np.cumsum(mass) - mass) // cells, (1 - cells / 2) // cells).astype(int)
    found = np.bincount(cell[np.clip(draws, k[0], k[-1]) - k[0]], minlength=cell[-1] + 1)
    expected = np.bincount(cell, mass) * draws.size / mass.sum()
    kept = expected > 0
    return chisquare(found[kept], expected[kept]).pvalue


@pytest.mark.parametrize(
    ("draw", "mass"),
    [
        (discrete_gaussian_draws, gaussian_mass),
        (discrete_laplace_draws, laplace_mass),
        (skellam_draws, skellam_mass),
        (poisson_draws, poisson_mass),
    ],
)
@pytest.mark.parametrize("parameter", [0.3, 50.7, 1e4])
def test_draws_fit_their_exact_law_and_no_other(draw, mass, parameter):
    # A false alarm has probability 1e-6. 5 % more variance moves the statistic by n (.05)^2 / 2 = 500 (Laplace: 250)
    # from its mean of at most 200 with deviation 20.
    draws = draw(parameter, 400_000, SeededStream(1))
    assert fit(draws, *mass(parameter)) > 1e-6
    for wrong in (0.95, 1.05):
        assert fit(draws, *mass(wrong * parameter)) < 1e-6


@pytest.mark.parametrize(("draw", "variance"), each_value([discrete_gaussian_draws, skellam_draws], VARIANCES))
def test_variance_is_within_one_percent_at_a_million_draws(draw, variance):
    # Relative standard error sqrt(2 / n) = .14 % (a little more for Skellam of small variance): 1 % is 6 of them.
    draws = draw(variance, N, SeededStream(2)).astype(float)
    exact = variance
    if draw is discrete_gaussian_draws:
        k, mass = gaussian_mass(min(variance, 1e4))
        exact = (k * k * mass).sum() * (variance / min(variance, 1e4))
    assert abs(draws.var() / exact - 1) < 0.01
    assert abs(draws.var() / (1.02 * exact) - 1) > 0.01
    assert abs(draws.mean()) < 6 * math.sqrt(exact / N)


def test_a_law_too_wide_for_a_table_fits_in_quantiles():
    # At 7.5e8 the discrete Gaussian is normal to 1e-9: Kolmogorov's distance at n = 1e6 is 1.36e-3 at 5 %, 3e-3 never.
    for draw in (discrete_gaussian_draws, skellam_draws):
        draws = np.sort(draw(7.5e8, N, SeededStream(3)))
        for sigma, fits in ((1.0, True), (1.02, False), (0.98, False)):
            z = (draws + 0.5) / (sigma * math.sqrt(7.5e8))
            normal = 0.5 + 0.5 * np.vectorize(math.erf)(z[::50] / math.sqrt(2))
            distance = np.abs(normal - (np.arange(N)[::50] + 0.5) / N).max()
            assert bool(distance < 3e-3) is fits


def test_successive_draws_are_uncorrelated():
    n = 300_000
    for draw in (discrete_gaussian_draws, skellam_draws):
        x = draw(9.0, n, SeededStream(4)).astype(float)
        for lag in (1, 2, 97):
            for f in (lambda v: v, np.abs):
                assert abs(np.corrcoef(f(x[:-lag]), f(x[lag:]))[0, 1]) < 6 / math.sqrt(n)


def test_sums_of_shares_have_the_law_of_the_whole():
    shares = sum(skellam_draws(40.0 / 8, 200_000, SeededStream(10 + i)) for i in range(8))
    assert fit(shares, *skellam_mass(40.0)) > 1e-6
    assert fit(shares, *skellam_mass(42.5)) < 1e-6


# The two routes to a decision: floating point with a bound, decimal arithmetic of growing precision


LAWS = (
    [DiscreteGaussian(v) for v in (0.05, 0.7, 33.3, 1e6, 2.0**44)]
    + [DiscreteLaplace(v) for v in (0.3, 1e9)]
    + [PoissonDistribution(r) for r in (0.02, 0.9, 7.3, 63.0, 64.5, 255.7, 5000.0, 1e6 + 0.3)]
)


@pytest.mark.parametrize("distribution", LAWS, ids=str)
def test_the_error_of_log_ratio_is_ten_times_below_its_bound(distribution):
    steps = np.unique(np.rint(np.linspace(-9, 9, 61) * distribution.standard_deviation).astype(np.int64))
    if isinstance(distribution, PoissonDistribution) and distribution.standard_deviation > 500:
        steps = steps[np.abs(steps) < 4 * distribution.standard_deviation][::6]  # products of thousands of decimals
    found = distribution.log_ratio(steps)
    for x, log in zip(steps.tolist(), found.tolist(), strict=True):
        exact = distribution.ratio(x, 40)
        if exact == 0:
            assert log == rejection.IMPOSSIBLE
            continue
        error = abs(float(Decimal(log) - exact.ln()))
        assert error <= 2.0**-40 * (1 + abs(log)) / 10


@given(st.sampled_from(LAWS[:10]), st.integers(-40, 40), st.sampled_from([10, 25, 60]))
def test_decimal_ratios_keep_their_precision(distribution, x, digits):
    coarse, fine = Fraction(distribution.ratio(x, digits)), Fraction(distribution.ratio(x, digits + 40))
    assert abs(coarse - fine) <= fine / 10**digits


def test_the_poisson_ratio_is_the_ratio_of_its_masses():
    distribution = PoissonDistribution(7.25)
    for k in range(30):
        exact = Fraction(7.25) ** (k - 7) * math.factorial(7) / math.factorial(k)
        assert abs(Fraction(distribution.ratio(k - 7, 30)) - exact) <= exact / 10**30


@pytest.mark.parametrize("distribution", LAWS, ids=str)
def test_the_envelope_holds_and_is_tight(distribution):
    sampler = rejection_sampler(distribution)
    blocks = np.arange(40)
    edges = np.stack([blocks << sampler.block_bits, ~(blocks << sampler.block_bits)]).reshape(-1)
    chance = sampler.scale * np.exp(distribution.log_ratio(edges) + np.tile(blocks, 2) * math.log(2))
    assert 0.99 < chance.max() < 1


@pytest.mark.parametrize(
    "distribution", [DiscreteGaussian(33.3), PoissonDistribution(7.3), PoissonDistribution(255.7)], ids=str
)
def test_both_routes_decide_alike(distribution):
    sampler = rejection_sampler(distribution)
    stream, rng = SeededStream(5), np.random.default_rng(5)
    for _ in range(300):
        block, place, negative = (
            int(rng.geometric(0.5)) - 1,
            int(rng.integers(1 << sampler.block_bits)),
            rng.random() < 0.5,
        )
        distance = (block << sampler.block_bits) + place
        x = ~distance if negative else distance
        chance = sampler.scale * 2**block * math.exp(distribution.log_ratio(np.array([x]))[0])
        height = int(rng.integers(2**53))
        assert sampler._decide(x, block, height, stream) is (height * 2.0**-53 < chance)
        # nearest to p: one unit of 2^-53 on either side of it is still decided rightly
        if 1e-6 < chance < 1 - 1e-6 and distribution.ratio(x, 30):
            exact = Fraction(distribution.ratio(x, 40)) * Fraction(sampler.scale) * 2**block * 2**53
            assert sampler._decide(x, block, math.floor(exact) - 1, stream)
            assert not sampler._decide(x, block, math.floor(exact) + 1, stream)


def test_where_u_and_p_agree_in_53_bits_further_bits_decide_with_the_right_chance():
    distribution = DiscreteGaussian(33.3)
    sampler = rejection_sampler(distribution)
    exact = Fraction(distribution.ratio(5, 60)) * Fraction(sampler.scale) * 2**53
    height = math.floor(exact)
    accepted = sum(sampler._decide(5, 0, height, SeededStream(i)) for i in range(2000))
    assert abs(accepted / 2000 - float(exact - height)) < 6 * 0.5 / math.sqrt(2000)


@pytest.mark.parametrize(("draw", "mass"), [(discrete_gaussian_draws, gaussian_mass), (poisson_draws, poisson_mass)])
def test_the_law_is_the_same_where_many_decisions_take_the_slow_route(monkeypatch, draw, mass):
    monkeypatch.setattr(rejection, "_FLOOR", 0.05)  # about one proposal in ten
    assert fit(draw(5.3, 40_000, SeededStream(6)), *mass(5.3)) > 1e-6


def test_proposals_come_from_blocks_of_halving_probability_even_where_a_word_runs_out():
    class Scripted:
        def __init__(self, *words):
            self.left = list(words)

        def words(self, count):
            out, self.left = self.left[:count], self.left[count:]
            return np.array(out, np.uint64)

    found = rejection._trailing_zeros(np.array([1, 2, 12, 1 << 31, 0, 5 << 32], np.uint64), Scripted(0, 8, 1))
    assert found.tolist() == [0, 1, 2, 31, 32 + 64 + 3, 32 + 0]


# Tails, domains, streams


@pytest.mark.parametrize("variance", [0.5, 5.0, 300.0])
def test_tail_bounds_hold_and_are_not_loose(variance):
    for tail, mass in (
        (skellam_tail, skellam_mass),
        (discrete_gaussian_tail, gaussian_mass),
        (discrete_laplace_tail, laplace_mass),
    ):
        k, weights = mass(variance)
        for units in (1, math.ceil(2 * math.sqrt(variance)), math.ceil(7 * math.sqrt(variance))):
            exact = math.log(weights[np.abs(k) >= units].sum())
            assert exact <= tail(variance, units) <= exact + 6


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 2.0**45, 1e-3])
def test_variances_outside_the_domain_are_refused(bad):
    for draw in (discrete_gaussian_draws, skellam_draws):
        with pytest.raises(ConfigError, match=r"between 2\^-6 and 2\^44"):
            draw(bad, 1, SecureRandomStream())


@pytest.mark.parametrize("count", [0, 1, 2, 17])
def test_as_many_draws_as_asked(count):
    for draw in (discrete_gaussian_draws, skellam_draws):
        out = draw(2.0, count, SecureRandomStream())
        assert (out.shape, out.dtype) == ((count,), np.dtype(np.int64))


def test_streams_differ_go_on_and_are_aes_in_counter_mode():
    # NIST SP 800-38A, F.5.5 (CTR-AES256): the key stream is the cipher text xor the plain text of the first block.
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
    cipher = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
    block = _words(cipher, 2).tobytes()
    assert bytes(a ^ b for a, b in zip(block, plain, strict=True)).hex() == "601ec313775789a5b7a7f504bbf3d228"
    zero = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(bytes(16))  # noqa: S305 - one block, to compare
    assert _words(_counter_mode(key), 2).tobytes() == zero
    a, b = SecureRandomStream(), SecureRandomStream()
    assert not np.array_equal(a.words(8), b.words(8))
    assert not np.array_equal(a.words(8), a.words(8))
    np.testing.assert_array_equal(SeededStream(3).words(9), SeededStream(3).words(9))
    assert not np.array_equal(SeededStream(3).words(9), SeededStream(4).words(9))
    np.testing.assert_array_equal(public_words(5, "run", 3), public_words(5, "run", 3))
    assert len({int(public_words(1, *c)[0]) for c in (("run", 3), ("run", 4), ("ru", "n3"), ("run", "3"))}) == 4
    u = uniforms(SecureRandomStream(), 10_000)
    assert 0 <= u.min() < u.max() < 1
    assert abs(u.mean() - 0.5) < 6 / math.sqrt(12 * 10_000)
