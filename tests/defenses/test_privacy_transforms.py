"""Clipping and central noise: exact norms, sensitivity with rounding, noise of the right size, plans that refuse."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import kstest, norm

from securefed import Layout, TensorSpec, chain
from securefed.defenses import PoissonSampling, Transform, clip, clip_each, epsilon_of, gaussian, sensitivity
from securefed.defenses._differential_privacy import CentralGaussian, InsecureGaussian
from securefed.defenses._fixed_point import Quantise
from securefed.errors import ConfigError, PlanError

LAYOUT = Layout((TensorSpec("w", (3, 4)), TensorSpec("b", (), 0.25), TensorSpec("c", (2,), 50.0, 64)))
finite = st.floats(-1e308, 1e308, allow_subnormal=True)
contributions = st.fixed_dictionaries({s.name: arrays(np.float64, s.shape, elements=finite) for s in LAYOUT})


def exact_squares(tensors):
    return sum(Fraction(float(x)) ** 2 for value in tensors.values() for x in np.ravel(value))


# Clip


@given(contributions, st.sampled_from([1e-300, 1e-3, 1.0, 7.3, 1e300]))
def test_clipped_norm_is_at_most_the_limit_in_exact_arithmetic(raw, limit):
    defence = chain(clip(limit))
    out = defence.encode(raw, defence.plan(LAYOUT, 3))
    assert exact_squares(out) <= Fraction(limit) ** 2
    # and hardly less than need be: min(limit, norm), to 1e-12
    if limit > 1e-299 and exact_squares(raw) > Fraction(limit) ** 2:
        assert exact_squares(out) >= Fraction(limit) ** 2 * Fraction(1 - 1e-12)


@given(contributions)
def test_clipping_keeps_small_contributions_and_the_direction_of_large_ones(raw):
    small = {name: np.clip(value, -1, 1) for name, value in raw.items()}
    defence = chain(clip(5.0))
    plan = defence.plan(LAYOUT, 3)
    for name, value in defence.encode(small, plan).items():
        np.testing.assert_array_equal(value, small[name])
    large = {name: 100 + value for name, value in small.items()}
    out = defence.encode(large, plan)
    factor = out["b"] / large["b"]
    for name, value in out.items():
        np.testing.assert_allclose(value, large[name] * factor, rtol=1e-14)


def test_the_norm_is_taken_over_all_tensors():
    defence = chain(clip(1.0))
    raw = {"w": np.ones((3, 4)), "b": np.float64(1), "c": np.ones(2)}
    out = defence.encode(raw, defence.plan(LAYOUT, 2))
    assert out["b"] == pytest.approx(1 / math.sqrt(15))


@given(contributions, st.sampled_from([1e-5, 0.3, 1.0, 1e5]), st.integers(2, 1000), st.sampled_from([None, 32, 64]))
def test_under_noise_no_client_is_ever_refused_and_the_rounded_norm_stays_within_the_sensitivity(
    raw, limit, clients, ring
):
    defence = chain(clip(limit), gaussian(1.0), Quantise(ring))
    plan = defence.plan(LAYOUT, clients)
    encoded = defence.encode(raw, plan)  # entries beyond `b`'s own bound of .25 included: no RangeRefused
    decoded = {t.name: [Fraction(int(k)) * Fraction(t.step) for k in np.ravel(encoded[t.name])] for t in plan.tensors}
    squares = sum(x**2 for values in decoded.values() for x in values)
    assert squares <= Fraction(sensitivity(plan)) ** 2


def test_clip_alone_tightens_bounds():
    plan = chain(clip(1.0)).plan(LAYOUT, 3)
    assert plan.privacy.clip == 1.0
    assert [t.bound for t in plan.tensors] == [1.0, 0.25, 1.0]
    assert [t.bound for t in chain(clip(1.0), gaussian(2.0)).plan(LAYOUT, 3).tensors] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_clip_refuses_what_is_no_norm(bad):
    for make in (clip, clip_each, lambda norm: clip_each(1.0, {"w": norm})):
        with pytest.raises(ConfigError, match="norm"):
            make(bad)


@given(contributions)
def test_every_tensor_is_clipped_by_itself_and_the_whole_within_the_planned_clip(raw):
    defence = chain(clip_each(0.5, {"w": 3.0}))
    plan = defence.plan(LAYOUT, 3)
    out = defence.encode(raw, plan)
    for name, limit in (("w", 3.0), ("b", 0.5), ("c", 0.5)):
        alone = {"w": raw[name]}
        expected = chain(clip(limit)).encode(alone, chain(clip(limit)).plan(Layout.of(alone), 1))["w"]
        np.testing.assert_array_equal(out[name], expected)
        assert exact_squares({name: out[name]}) <= Fraction(limit) ** 2
    assert exact_squares(out) <= Fraction(plan.privacy.clip) ** 2
    assert plan.privacy.clip == pytest.approx(math.sqrt(9.5))
    assert [t.bound for t in plan.tensors] == [3.0, 0.25, 0.5]


def test_clipping_by_tensor_takes_the_place_of_clipping_the_whole():
    plan = chain(clip_each(norms={"w": 1.0, "b": 2.0, "c": 2.0}), gaussian(1.5), Quantise()).plan(LAYOUT, 4)
    assert plan.defense == "clip_each(b=2, c=2, w=1) + gaussian(z=1.5) + quantise + plain"
    assert sensitivity(plan) == pytest.approx(3.0, rel=1e-6)
    with pytest.raises(PlanError, match="no tensor is called 'v'"):
        chain(clip_each(1.0, {"v": 1.0})).plan(LAYOUT, 4)
    with pytest.raises(PlanError, match="'b' has no norm"):
        chain(clip_each(norms={"w": 1.0})).plan(LAYOUT, 4)
    with pytest.raises(ConfigError, match="give a norm"):
        clip_each()
    with pytest.raises(ConfigError, match="same stage, CLIP"):
        chain(clip(1.0), clip_each(1.0))


# Sensitivity


def coarse():
    """A plan so coarse (2^24 clients in 32 bits) that rounding is visible: one unit is 2^-6."""
    return chain(clip(1.0), gaussian(8.0), Quantise()).plan(Layout((TensorSpec("x", (1000,)),)), 2**24)


def test_rounding_can_take_a_clipped_contribution_beyond_the_clip_and_is_accounted_for():
    plan = coarse()
    (tensor,) = plan.tensors
    # 3/4 of a unit in 1000 entries rounds up to a whole unit each: a norm of .37 becomes .49.
    x = np.full(1000, 0.75 * tensor.step)
    x[0] = math.sqrt(1 - 999 * x[1] ** 2) - 1e-9
    defence = chain(clip(1.0), gaussian(1.0), Quantise())
    encoded = defence.encode({"x": x}, plan)["x"] * tensor.step
    assert 1.005 < np.linalg.norm(encoded) <= sensitivity(plan)
    assert sensitivity(plan) == pytest.approx(1 + math.sqrt(1000) * tensor.step / 2, rel=1e-6)


def test_sensitivity_is_the_clip_where_nothing_is_rounded_visibly():
    for links in ((), (Quantise(32),), (Quantise(64),)):
        plan = chain(clip(0.7), gaussian(1.0), *links).plan(Layout((TensorSpec("x", (10_000,)),)), 100)
        assert 0.7 < sensitivity(plan) <= 0.7 * (1 + 1e-5)
    with pytest.raises(PlanError, match="clip"):
        sensitivity(chain(Quantise()).plan(Layout((TensorSpec("x", (4,), 1.0),)), 3))


# Noise


def fits(sample, sigma):
    """Mean and variance as N(0, sigma^2) has them, to 6 standard errors (a false alarm in 2e9), and its shape.

    With n = 40000 the variance's relative standard error is sqrt(2 / n) = .7 %: 4 % is allowed, while 2/3 and 3/2 of
    the right sigma are off by 56 % and 125 %. Kolmogorov and Smirnov at p = 1e-9.
    """
    n = sample.size
    return (
        abs(sample.mean()) < 6 * sigma / math.sqrt(n)
        and abs(sample.var() / sigma**2 - 1) < 6 * math.sqrt(2 / n)
        and kstest(sample / sigma, "norm").pvalue > 1e-9
    )


WIDE = Layout((TensorSpec("x", (200, 200), 3.0),))


@pytest.mark.parametrize("links", [(), (Quantise(),), (Quantise(64),)])
@pytest.mark.parametrize("make", [CentralGaussian, lambda z: InsecureGaussian(CentralGaussian(z), 5)])
def test_noise_has_the_planned_size_and_the_wrong_size_is_told_apart(links, make):
    defence = chain(clip(2.0), make(1.5), *links)
    plan = defence.plan(WIDE, 10)
    total = {"x": np.full((200, 200), 0.125)}
    noise = defence.release(total, plan)["x"] - 0.125
    assert noise.shape == (200, 200)
    sigma = 1.5 * sensitivity(plan)
    assert sigma == pytest.approx(3.0, rel=1e-5)
    assert fits(noise.ravel(), sigma)
    assert not fits(noise.ravel(), sigma * 2 / 3)
    assert not fits(noise.ravel(), sigma * 3 / 2)


def test_releases_differ_and_simulated_ones_repeat():
    layout, total = Layout((TensorSpec("x", (50,)),)), {"x": np.zeros(50)}
    real = chain(clip(1.0), gaussian(1.0))
    plan = real.plan(layout, 3)
    assert not np.array_equal(real.release(total, plan)["x"], real.release(total, plan)["x"])
    a, b = (chain(clip(1.0), InsecureGaussian(CentralGaussian(1.0), seed)) for seed in (1, 2))
    np.testing.assert_array_equal(a.release(total, plan)["x"], a.release(total, plan)["x"])
    assert not np.array_equal(a.release(total, plan)["x"], b.release(total, plan)["x"])
    other = {"x": np.full(50, 0.5)}
    assert not np.allclose(a.release(total, plan)["x"], a.release(other, plan)["x"] - 0.5)


def test_one_clients_presence_is_as_hard_to_tell_as_planned():
    # A client of full norm moves the sum by 1 / z standard deviations: the best test is right with Phi(1 / (2 z)).
    # 8000 trials: standard error .005; 6 of them are allowed, 2/3 and 3/2 of the noise are off by .09 and .07.
    defence = chain(clip(1.0), gaussian(1.0), Quantise())
    plan = defence.plan(Layout((TensorSpec("x", (4000,)),)), 3)
    canary = np.zeros(4000)
    canary[7] = 5.0
    moved = defence.decode(defence.encode({"x": canary}, plan), plan, 1)["x"][7]
    out = defence.release({"x": np.concatenate([np.full(2000, moved), np.zeros(2000)])}, plan)["x"]
    out = np.concatenate(
        [out, defence.release({"x": np.concatenate([np.full(2000, moved), np.zeros(2000)])}, plan)["x"]]
    )
    present = np.tile(np.repeat([True, False], 2000), 2)
    accuracy = ((out > 0.5) == present).mean()
    assert accuracy == pytest.approx(norm.cdf(0.5), abs=0.03)
    for wrong in (2 / 3, 3 / 2):
        assert abs(accuracy - norm.cdf(0.5 / wrong)) > 0.03


# The plan


def test_the_plan_states_what_the_accountant_says():
    plan = chain(clip(1.0), gaussian(3.0, delta=1e-6)).plan(LAYOUT, 10)
    assert plan.privacy.noise_multiplier == 3.0
    assert plan.epsilon == tuple((k, epsilon_of(3.0, k, 1e-6)) for k in (1, 10, 30, 100))
    assert plan.defense == "clip(1) + gaussian(z=3) + plain"
    assert any("delta 1e-06" in sentence for sentence in plan.assumptions)
    assert any("every round counts in full" in sentence for sentence in plan.assumptions)
    assert not any("INSECURE" in sentence for sentence in plan.assumptions)


def test_a_poisson_plan_states_the_sampler():
    plan = chain(clip(1.0), gaussian(3.0, sampler=PoissonSampling(0.1))).plan(LAYOUT, 10)
    assert any("independently with probability 0.1" in sentence for sentence in plan.assumptions)
    assert plan.epsilon[3][1] < epsilon_of(3.0, 100)


def test_a_simulation_says_so():
    simulated = InsecureGaussian(gaussian(3.0), 7)
    plan = chain(clip(1.0), simulated).plan(LAYOUT, 10)
    assert "insecure_gaussian" in plan.defense
    assert any("INSECURE" in sentence for sentence in plan.assumptions)
    assert isinstance(simulated, Transform)
    assert isinstance(gaussian(3.0), Transform)


def test_noise_without_a_clip_is_refused():
    with pytest.raises(PlanError, match=r"put clip\(\.\.\.\) before it"):
        chain(gaussian(1.0)).plan(LAYOUT, 3)
    with pytest.raises(ConfigError, match="order"):
        chain(gaussian(1.0), clip(1.0))
    with pytest.raises(ConfigError, match="no noise"):
        gaussian(1.0).release({"x": np.zeros(2)}, chain(clip(1.0)).plan(LAYOUT, 3))


def test_noise_too_small_for_its_grid_is_refused():
    with pytest.raises(PlanError, match="too small"):
        chain(clip(1.0), gaussian(1e-7)).plan(LAYOUT, 1000)
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError):
            gaussian(bad)


def test_doubling_the_range_changes_nothing_under_noise():
    defence = chain(clip(1.0), gaussian(2.0), Quantise())
    assert defence.plan(LAYOUT, 5, range_doublings=3) == defence.plan(LAYOUT, 5)
