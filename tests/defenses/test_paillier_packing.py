"""Packing: sums of N clients never carry, at the very bounds, for both slot widths and any mixture."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed import Layout, TensorSpec, chain
from securefed.defenses._base import INDICATOR, without_indicator
from securefed.defenses._homomorphic import InsecurePaillier
from securefed.defenses._homomorphic.packing import Packing, units
from securefed.errors import MalformedError, PlanError, RangeRefused

BITS = 512


def _plan(specs, clients):
    """Without the indicator, so that all tensors are the test's."""
    return replace(without_indicator(_planned(specs, clients)), added=())


def _planned(specs, clients):
    return chain(InsecurePaillier()).plan(Layout(tuple(specs)), clients)


shapes = st.sampled_from([(), (0,), (1,), (15,), (16,), (33,), (4, 9), (2, 3, 4)])
bounds = st.floats(1e-12, 1e12)


@st.composite
def cohorts(draw):
    """A plan and its clients' encoded contributions, a good part of them at plus and minus the bound."""
    clients = draw(st.integers(2, 9))
    specs = [
        TensorSpec(f"t{i}", draw(shapes), draw(bounds), draw(st.sampled_from([32, 64])))
        for i in range(draw(st.integers(1, 4)))
    ]
    plan = _plan(specs, clients)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    extreme = draw(st.sampled_from([None, -1, 1]))
    contributions = []
    for _ in range(clients):
        encoded = {}
        for tensor in plan.tensors:
            limit = units(tensor)
            value = rng.integers(-limit, limit, tensor.shape, endpoint=True)
            at_bound = rng.random(tensor.shape) < 0.5
            edge = (
                limit * rng.choice([-1, 1], tensor.shape) if extreme is None else np.full(tensor.shape, extreme * limit)
            )
            encoded[tensor.name] = np.asarray(np.where(at_bound, edge, value), np.int64)
        contributions.append(encoded)
    return plan, contributions


@given(cohorts())
def test_packed_sums_equal_integer_sums_at_the_bounds(cohort):
    plan, contributions = cohort
    packing = Packing.of(plan, BITS)
    totals = [0] * packing.plaintexts
    for count, encoded in enumerate(contributions, start=1):
        packed = packing.pack(encoded)
        assert len(packed) == packing.plaintexts
        totals = [a + b for a, b in zip(totals, packed, strict=True)]
        assert all(total < 2 ** (BITS - 1) for total in totals)  # below any n of 512 bits: no wrap
        unpacked = packing.unpack(totals, count, sender=-2)
        for tensor in plan.tensors:
            expected = np.sum([c[tensor.name] for c in contributions[:count]], axis=0, dtype=np.int64)
            assert unpacked[tensor.name].dtype == np.int64
            assert unpacked[tensor.name].shape == tensor.shape
            np.testing.assert_array_equal(unpacked[tensor.name], expected)


@pytest.mark.parametrize(("bits", "ring", "slots"), [(2048, 32, 63), (2048, 64, 31), (3072, 32, 95), (512, 64, 7)])
def test_slots_of_a_plaintext(bits, ring, slots):
    packing = Packing.of(_planned([TensorSpec("x", (1000,), 1.0, ring)], 5), bits)  # the indicator takes 64 bits
    assert packing.groups[0].slots == slots
    assert packing.plaintexts == -(-(1000 + 64 // ring) // slots)


@pytest.mark.parametrize(("rings", "width"), [((32,), 32), ((64,), 64), ((32, 64), 32)])
def test_the_indicator_shares_the_slots_of_a_tensor(rings, width):
    plan = _planned([TensorSpec(f"x{ring}", (3,), 1.0, ring) for ring in rings], 5)
    assert {tensor.name: tensor.ring for tensor in plan.tensors}[INDICATOR] == width
    assert Packing.of(plan, BITS).plaintexts == len(rings)


def test_one_beyond_the_bound_is_refused_and_the_bound_is_not():
    for ring in (32, 64):
        plan = _plan([TensorSpec("x", (3,), 1.3, ring)], 3)
        packing, limit = Packing.of(plan, BITS), units(plan.tensors[0])
        for good in (limit, -limit):
            packing.pack({"x": np.array([0, good, 0])})
        for bad in (limit + 1, -limit - 1, np.iinfo(np.int64).max, np.iinfo(np.int64).min):
            with pytest.raises(RangeRefused, match="'x'"):
                packing.pack({"x": np.array([0, bad, 0])})


def test_a_sum_that_no_cohort_can_reach_is_refused():
    plan = _plan([TensorSpec("x", (3,), 1.3)], 3)
    packing, limit = Packing.of(plan, BITS), units(plan.tensors[0])
    assert packing.unpack([2 * 2 * limit], 2, sender=-2)["x"].tolist() == [2 * limit, -2 * limit, -2 * limit]
    for bad in (2 * 2 * limit + 1, (2 * 2 * limit + 1) << 64, 2**32 - 1):
        with pytest.raises(MalformedError, match="exceeds what 2 clients"):
            packing.unpack([bad], 2, sender=-2)
    with pytest.raises(MalformedError, match="padding"):
        packing.unpack([1 << 96], 2, sender=-2)
    with pytest.raises(MalformedError, match="longer than its slots"):
        packing.unpack([1 << (15 * 32)], 2, sender=-2)


def test_floats_without_fixed_point_are_refused_in_the_plan():
    quantised = chain(InsecurePaillier())
    plan = chain().plan(Layout((TensorSpec("x", (3,), 1.0),)), 3)
    with pytest.raises(PlanError, match="fixed point"):
        quantised.aggregation.plan(plan)


def test_too_many_clients_for_the_slots_are_refused_in_the_plan():
    plan = _plan([TensorSpec("x", (3,), 1.0)], 3)
    most = plan.tensors[0].max_clients
    Packing.of(replace(plan, clients=most), BITS)  # positive control
    with pytest.raises(PlanError, match="overflow"):
        Packing.of(replace(plan, clients=most + 1), BITS)
