"""Under noise nothing that a client holds makes it refuse: any floats are encoded, and what is not finite is zeros."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from securefed import Array, Layout, TensorSpec, chain
from securefed.defenses import (
    Defense,
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
    secure_aggregation,
    skellam,
)
from securefed.defenses._differential_privacy import CentralGaussian, InsecureGaussian
from securefed.defenses._differential_privacy.adaptive import BELOW
from securefed.defenses._fixed_point import Quantise
from securefed.errors import DataError

LAYOUT = Layout(
    (
        TensorSpec("w", (3, 4), 2.0, sensitivity=0.5),
        TensorSpec("b", (), 0.25, sensitivity=0.1),
        TensorSpec("c", (2,), 50.0, 64, sensitivity=0.5),
    )
)
STARTS = [clip(1.0), clip_each(0.5), adaptive_clip(0.5), adaptive_clip(0.5, each=True), records()]
NOISES = [
    (gaussian(2.0),),
    (gaussian(2.0), Quantise(32)),
    (gaussian(2.0), secure_aggregation()),
    (InsecureGaussian(CentralGaussian(2.0), 1), secure_aggregation()),
    (skellam(2.0), secure_aggregation()),
    (discrete_gaussian(2.0), secure_aggregation()),
    (local_gaussian(2.0),),
    (local_laplace(2.0),),
]
CHAINS = [chain(start, *noise) for start in STARTS for noise in NOISES]
CHAINS.append(chain(clip(1.0), poisson(0.5), gaussian(2.0, sampler=PoissonSampling(0.5)), secure_aggregation()))
anything = st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True, width=64)
contributions = st.fixed_dictionaries({s.name: arrays(np.float64, s.shape, elements=anything) for s in LAYOUT})


@pytest.mark.parametrize("defense", CHAINS, ids=str)
@given(contributions)
def test_no_floats_make_a_client_refuse_under_noise(defense: Defense, raw: dict[str, Array]) -> None:
    plan = defense.plan(LAYOUT, 5)
    for name, value in defense.encode(raw, plan).items():
        assert np.isfinite(np.asarray(value, np.float64)).all(), name


def odd(value: float, tensor: str = "w") -> dict[str, Array]:
    out = {spec.name: np.full(spec.shape, 0.125) for spec in LAYOUT}
    out[tensor].reshape(-1)[-1:] = value
    return out


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("start", STARTS[:4], ids=str)
def test_what_is_not_finite_is_sent_as_zeros_are_bits_included(start, value: float) -> None:
    defense = chain(start, gaussian(2.0), Quantise(64))
    plan = defense.plan(LAYOUT, 5)
    zeros = {spec.name: np.zeros(spec.shape) for spec in LAYOUT}
    if "each" in str(start):  # tensors are clipped one by one, and the others are sound
        zeros |= {name: odd(0.125)[name] for name in ("b", "c")}
    sent, expected = defense.encode(odd(value), plan), defense.encode(zeros, plan)
    assert set(sent) == set(expected)
    for name, one in sent.items():
        np.testing.assert_array_equal(one, expected[name])
    if BELOW in sent:
        assert (sent[BELOW] > 0).all()  # as of clients within the clip: a run that fails does not raise it


@pytest.mark.parametrize("noise", [(gaussian(2.0), Quantise(64)), (gaussian(2.0),)], ids=len)
def test_messages_about_records_are_cut_entry_by_entry_and_so_come_no_further_apart(noise) -> None:
    defense = chain(records(), *noise)
    plan = defense.plan(LAYOUT, 5)
    rng = np.random.default_rng(0)
    for _ in range(200):
        one = {s.name: rng.normal(0, 3 * s.bound, s.shape) for s in LAYOUT}
        other = {name: value + rng.normal(0, 0.1, value.shape) for name, value in one.items()}
        sent = [
            np.concatenate([np.ravel(v) * (plan.steps.get(n) or 1.0) for n, v in defense.encode(x, plan).items()])
            for x in (one, other)
        ]
        before = [np.concatenate([np.ravel(v) for v in x.values()]) for x in (one, other)]
        assert np.linalg.norm(sent[0] - sent[1]) <= np.linalg.norm(before[0] - before[1]) + 1e-6
        assert np.abs(sent[0]).max() <= 50.0
    cut = defense.encode(odd(math.inf) | {"b": np.float64(-1e300), "c": np.array([math.nan, 1.0])}, plan)
    real = {name: np.ravel(value) * (plan.steps.get(name) or 1.0) for name, value in cut.items()}
    assert (real["w"][-1], real["b"][0], real["c"][0]) == (2.0, -0.25, 0.0)


def test_without_noise_the_same_values_are_refused_by_name() -> None:
    for start in STARTS:
        defense = chain(start)
        with pytest.raises(DataError, match="NaN or infinity"):
            defense.encode(odd(math.nan), defense.plan(LAYOUT, 5))
    for start in STARTS[:4]:  # the link by itself, too
        with pytest.raises(DataError, match="NaN or infinity"):
            start.encode(odd(math.nan), chain(start).plan(LAYOUT, 5))


def test_steps_and_sizes_of_record_noise_are_the_plans_own() -> None:
    """Clients encode by the sizes of the finished plan: they are those that the plan was made with."""
    for make in (skellam, discrete_gaussian):
        defense = chain(records(), make(4.0), secure_aggregation())
        plan = defense.plan(LAYOUT, 10)
        sizes = defense.transforms[1].sizes(plan)
        assert {tensor.step for tensor in plan.tensors} == {sizes.step}
        assert {tensor.bound for tensor in plan.tensors} == {sizes.upload * sizes.step}
