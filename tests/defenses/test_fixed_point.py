from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.defenses.compose import chain, identity
from securefed.defenses.differential_privacy import clip, gaussian
from securefed.defenses.fixed_point import Quantise, from_ring, to_ring
from securefed.defenses.secure_aggregation import secure_aggregation
from securefed.defenses.simulate import sum_once
from securefed.errors import ConfigError, PlanError, RangeRefused
from securefed.tensors import Layout, TensorSpec

BOUNDS = st.floats(1e-6, 1e9)


@given(st.data(), st.sampled_from([32, 64]), st.integers(1, 50), BOUNDS)
def test_sums_stay_within_the_planned_error_and_never_wrap(data, ring, clients, bound) -> None:
    """Entries at and inside the bound, signs included: the decoded sum of N clients is right to the plan's error."""
    layout = Layout((TensorSpec("x", (4,), bound, ring),))
    corners = st.sampled_from([-bound, bound, 0.0, bound / 3, -bound * 0.999])
    values = {i: {"x": np.array([data.draw(corners) for _ in range(4)])} for i in range(clients)}
    defense = chain(Quantise())
    plan = defense.plan(layout, clients).tensors[0]
    found = sum_once(defense, layout, values).total["x"]
    exact = np.array([math.fsum(v["x"][entry] for v in values.values()) for entry in range(4)])
    assert np.abs(found - exact).max() <= plan.error
    assert plan.max_clients >= clients
    units = int(np.ceil(bound / plan.step))
    assert plan.max_clients * units <= 2 ** (ring - 1) - 1 < (plan.max_clients + 1) * units


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20))
def test_ring_residues_are_inverse_and_add_like_integers(values) -> None:
    a = np.array(values, dtype=np.int64)
    for ring in (32, 64):
        np.testing.assert_array_equal(from_ring(to_ring(a, ring), ring), a)
        half = a // 2
        np.testing.assert_array_equal(from_ring(to_ring(half, ring) + to_ring(a - half, ring), ring), a)


def test_one_more_client_than_the_plan_allows_does_wrap() -> None:
    """Positive control of `max_clients`: it is the largest such number, not just a safe one."""
    plan = chain(Quantise()).plan(Layout((TensorSpec("x", (1,), 1.0, 32),)), 3).tensors[0]
    unit = to_ring(np.array([int(np.ceil(1.0 / plan.step))], np.int64), 32)
    with np.errstate(over="ignore"):
        fits = from_ring(unit * np.uint32(plan.max_clients), 32)
        wraps = from_ring(unit * np.uint32(plan.max_clients + 1), 32)
    assert fits[0] > 0 > wraps[0]


def test_entries_beyond_the_bound_are_refused_never_clipped() -> None:
    layout = Layout((TensorSpec("x", (2,), 1.0, 32),))
    defense = chain(Quantise())
    plan = defense.plan(layout, 4)
    defense.encode({"x": np.array([1.0, -1.0])}, plan)
    for bad in (np.nextafter(1.0, 2), -1.5):
        with pytest.raises(RangeRefused, match="beyond the planned bound"):
            defense.encode({"x": np.array([0.0, bad])}, plan)
    wider = defense.plan(layout, 4, range_doublings=1)
    np.testing.assert_allclose(
        defense.decode(defense.encode({"x": np.array([0.0, -1.5])}, wider), wider, 1)["x"], [0, -1.5], atol=1e-8
    )


def test_plans_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(PlanError, match="clip"):
        chain(Quantise()).plan(Layout((TensorSpec("x", (2,)),)), 4)
    with pytest.raises(PlanError, match="bit"):
        chain(Quantise(ring=32)).plan(Layout((TensorSpec("x", (2,), 1.0),)), 2**31)
    with pytest.raises(PlanError, match="at least one client"):
        identity().plan(Layout((TensorSpec("x", (2,)),)), 0)


def test_chains_have_one_order_and_one_end() -> None:
    assert chain(clip(1.0), gaussian(1.0), secure_aggregation()).name.endswith("quantise + secure_aggregation")
    assert chain(clip(1.0), chain(secure_aggregation())).name == chain(clip(1.0), secure_aggregation()).name
    with pytest.raises(ConfigError, match="order"):
        chain(gaussian(1.0), clip(1.0), secure_aggregation())
    with pytest.raises(ConfigError, match="last link"):
        chain(secure_aggregation(), clip(1.0))
    with pytest.raises(ConfigError, match="once"):
        chain(clip(1.0), clip(2.0))


def test_the_identity_changes_nothing() -> None:
    layout = Layout((TensorSpec("x", (3,)),))
    values = {i: {"x": np.array([0.1, 1e300, -1e-300]) * (i + 1)} for i in range(2)}
    np.testing.assert_array_equal(sum_once(identity(), layout, values).total["x"], values[0]["x"] + values[1]["x"])
