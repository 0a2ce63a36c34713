from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed import Layout, TensorSpec, chain, identity
from securefed.defenses import clip, gaussian, paillier, secure_aggregation, sum_once
from securefed.defenses._base import without_indicator
from securefed.defenses._fixed_point import Quantise, from_ring, is_ring, lanes, to_ring, wire_dtype, wire_size
from securefed.errors import ConfigError, PlanError, RangeRefused

BOUNDS = st.floats(1e-6, 1e9)


@given(st.data(), st.sampled_from([16, 20, 21, 32, 64]), st.integers(1, 50), BOUNDS)
def test_sums_stay_within_the_planned_error_and_never_wrap(data, ring, clients, bound) -> None:
    """Entries at and inside the bound, signs included: the decoded sum of N clients is right to the plan's error."""
    layout = Layout((TensorSpec("x", (4,), bound),))
    corners = st.sampled_from([-bound, bound, 0.0, bound / 3, -bound * 0.999])
    values = {i: {"x": np.array([data.draw(corners) for _ in range(4)])} for i in range(clients)}
    defense = chain(Quantise(ring))
    plan = defense.plan(layout, clients).tensors[0]
    found = sum_once(defense, layout, values).total["x"]
    exact = np.array([math.fsum(v["x"][entry] for v in values.values()) for entry in range(4)])
    assert np.abs(found - exact).max() <= plan.error
    assert plan.max_clients >= clients
    units = int(np.ceil(bound / plan.step))
    assert plan.max_clients * units <= 2 ** (ring - 1) - 1 < (plan.max_clients + 1) * units


@given(st.data(), st.sampled_from([32, 64]), st.floats(1e-280, 1e290))
def test_an_entry_is_its_quotient_by_the_step_rounded_to_nearest(data, ring, bound) -> None:
    """The code multiplies by the step's reciprocal, which is exact, ties and the smallest floats included."""
    plan = Quantise(ring).plan(identity().plan(Layout((TensorSpec("x", (6,), bound, ring),)), 3))
    (tensor,) = plan.tensors
    ties = st.integers(-1000, 1000).map(lambda k: (k + 0.5) * tensor.step)
    entry = st.floats(-bound, bound) | ties | st.sampled_from([bound, -bound, 5e-324, -5e-324])
    x = np.array([data.draw(entry) for _ in range(6)])
    found = Quantise(ring).encode({"x": x}, plan)["x"]
    np.testing.assert_array_equal(found, np.rint(x / tensor.step).astype(np.int64))


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20))
def test_ring_residues_are_inverse_and_add_like_integers(values) -> None:
    a = np.array(values, dtype=np.int64)
    for ring in (32, 64):
        np.testing.assert_array_equal(from_ring(to_ring(a, ring), ring, a.size), a)
        half = a // 2
        np.testing.assert_array_equal(from_ring(to_ring(half, ring) + to_ring(a - half, ring), ring, a.size), a)


@given(st.data(), st.sampled_from([8, 9, 12, 16, 20, 21]), st.integers(1, 6), st.integers(0, 12))
def test_lanes_add_like_integers_up_to_the_last_unit_of_their_ring(data, ring, clients, size) -> None:
    """Extremes of both signs side by side: the borrow of one lane must not show in the next."""
    top = (2 ** (ring - 1) - 1) // clients
    entry = st.sampled_from([-top, top, 0, 1, -1]) | st.integers(-top, top)
    parts = [np.array([data.draw(entry) for _ in range(size)], np.int64) for _ in range(clients)]
    words = [to_ring(part, ring) for part in parts]
    assert all(w.shape == (wire_size(size, ring),) and w.dtype == wire_dtype(ring) for w in words)
    total = np.sum(words, axis=0, dtype=np.uint64)
    np.testing.assert_array_equal(from_ring(total, ring, size), np.sum(parts, axis=0))


@pytest.mark.parametrize("ring", [8, 16, 20, 21])
def test_a_sum_beyond_its_ring_spills_into_the_next_lane(ring) -> None:
    """Positive control of the plan's wrap-free N, and why a client sends no entry beyond its part of the ring."""
    half, value = 2 ** (ring - 1), np.array([1] + [0] * (lanes(ring) - 1), np.int64)
    fits, spills = (from_ring(to_ring(value * k, ring), ring, value.size) for k in (half - 1, half))
    assert fits.tolist() == [half - 1] + [0] * (lanes(ring) - 1)
    assert spills[0] < 0
    assert spills[1] == 1


def test_a_packed_ring_takes_fewer_bytes_than_32_bits_and_others_are_refused() -> None:
    widths = [ring for ring in range(1, 70) if is_ring(ring)]
    assert widths == [*range(8, 22), 32, 64]
    size = 1_000_000
    taken = {ring: wire_size(size, ring) * wire_dtype(ring).itemsize / size for ring in widths}
    assert taken[20] <= 2.7
    assert taken[32] == 4
    assert all(taken[ring] < 4 for ring in widths if ring < 32)
    for ring in (0, -8, 7, 22, 24, 31, 33, 65, True, 20.0, "20"):
        with pytest.raises(ConfigError, match="ring"):
            Quantise(ring=ring)  # type: ignore[arg-type]


def test_a_narrow_ring_may_be_for_some_tensors_only() -> None:
    layout = Layout((TensorSpec("w", (5,), 1.0), TensorSpec("count", (), 500.0, 64)))
    defense = chain(Quantise(20, only=("w",)), secure_aggregation())
    assert defense.name == "quantise(20, w) + secure_aggregation"
    plan = without_indicator(defense.plan(layout, 7))
    assert [t.ring for t in plan.tensors] == [20, 64]
    assert all(t.max_clients >= 7 for t in plan.tensors)
    rng = np.random.default_rng(2)
    values = {i: {"w": rng.uniform(-1, 1, 5), "count": np.asarray(float(i))} for i in range(7)}
    found = sum_once(defense, layout, values)
    for tensor in plan.tensors:
        exact = sum(v[tensor.name] for v in values.values())
        assert np.abs(found.total[tensor.name] - exact).max() <= tensor.error
    assert found.total["count"] == 21
    with pytest.raises(PlanError, match="names tensors"):
        chain(Quantise(20, only=("v",))).plan(layout, 7)
    with pytest.raises(ConfigError, match="give a ring"):
        Quantise(only=("w",))
    with pytest.raises(PlanError, match="too many for a"):
        chain(Quantise(8)).plan(layout, 64)
    with pytest.raises(PlanError, match="slots"):
        chain(Quantise(20), paillier()).plan(layout, 7)


def test_a_ring_that_was_asked_for_survives_composition() -> None:
    inner = chain(clip(1.0), Quantise(16))
    assert chain(inner, secure_aggregation()) == chain(clip(1.0), Quantise(16), secure_aggregation())
    assert chain(chain(clip(1.0), Quantise()), secure_aggregation()) == chain(clip(1.0), secure_aggregation())
    with pytest.raises(ConfigError, match="both turn a contribution into integers"):
        chain(inner, Quantise(32), secure_aggregation())


def test_one_more_client_than_the_plan_allows_does_wrap() -> None:
    """Positive control of `max_clients`: it is the largest such number, not just a safe one."""
    plan = chain(Quantise()).plan(Layout((TensorSpec("x", (1,), 1.0, 32),)), 3).tensors[0]
    unit = to_ring(np.array([int(np.ceil(1.0 / plan.step))], np.int64), 32)
    with np.errstate(over="ignore"):
        fits = from_ring(unit * np.uint32(plan.max_clients), 32, 1)
        wraps = from_ring(unit * np.uint32(plan.max_clients + 1), 32, 1)
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


def test_a_bound_below_the_smallest_numbers_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match="too small for a fixed point"):
        chain(Quantise()).plan(Layout((TensorSpec("x", (3,), 1e-307, 64),)), 4)
    assert chain(Quantise()).plan(Layout((TensorSpec("x", (3,), 1e-280, 64),)), 4).tensors[0].step > 0


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
    with pytest.raises(ConfigError, match="keep one"):
        chain(clip(1.0), clip(2.0))


def test_the_identity_changes_nothing() -> None:
    layout = Layout((TensorSpec("x", (3,)),))
    values = {i: {"x": np.array([0.1, 1e300, -1e-300]) * (i + 1)} for i in range(2)}
    np.testing.assert_array_equal(sum_once(identity(), layout, values).total["x"], values[0]["x"] + values[1]["x"])
