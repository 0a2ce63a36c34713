"""Fixed point, range check and stand-in on the model's device give the integers of the message layer, bit for bit."""

from __future__ import annotations

import math
import secrets

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from securefed._tensors import real_array
from securefed.defenses import Plan, TensorPlan, secure_aggregation
from securefed.defenses._fixed_point import Quantise, wire_dtype
from securefed.defenses._secure_aggregation.chacha_stream import CHACHA20
from securefed.defenses._secure_aggregation.masks import SignedMask, apply_masks, upload_residues
from securefed.errors import DataError, RangeRefused
from securefed.torch._device_encoding import Entries, MaskedUpload, masked_upload

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
CLIENTS = 5


def plan_of(*tensors: tuple[str, tuple[int, ...], float, int]) -> Plan:
    parts = tuple(TensorPlan(name, shape, bound, 0, 0.0, 0, 0.0) for name, shape, bound, _ in tensors)
    plan = Plan("test", CLIENTS, parts, {name: ring for name, _, _, ring in tensors})
    return secure_aggregation(stream=CHACHA20).plan(Quantise().plan(plan))


def by_the_message_layer(
    contribution: dict[str, Entries], plan: Plan, masks: list[SignedMask]
) -> dict[str, np.ndarray]:
    """What `securefed.parties` does: the update in NumPy, weighted in float64, quantised, masked."""
    scaled = {}
    for name, entries in contribution.items():
        value = real_array(entries.value, name)
        if entries.base is not None:
            value = np.subtract(value, real_array(entries.base, name), dtype=np.float64)
        scaled[name] = np.multiply(value, entries.scale, dtype=np.float64)
    residues = upload_residues(Quantise().encode(scaled, plan), plan)
    apply_masks(residues, masks, stream=CHACHA20)
    return {tensor.name: flat for tensor, flat in zip(plan.tensors, residues, strict=True)}


def masks() -> list[SignedMask]:
    return [SignedMask(secrets.token_bytes(32), sign) for sign in (1, 1, -1)]


def same(ours: MaskedUpload, theirs: dict[str, np.ndarray]) -> bool:
    return all(ours.words[name].numpy().tobytes() == flat.tobytes() for name, flat in theirs.items())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ring", [8, 20, 32, 64])
@given(seed=st.integers(0, 2**32), exponent=st.integers(-12, 12), scale=st.floats(0, 1), based=st.booleans())
def test_the_words_are_those_of_the_message_layer(dtype, ring, seed, exponent, scale, based) -> None:
    bound = 2.0**exponent
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (3, 7), "b": (), "c": (70_001,), "d": (0,)}
    plan = plan_of(*((name, shape, bound, ring if name != "b" else 64) for name, shape in shapes.items()))
    contribution = {}
    for name, shape in shapes.items():
        value = ((torch.rand(shape, generator=generator) * 2 - 1) * bound).to(dtype)
        base = (torch.rand(shape, generator=generator) * bound / 8).to(dtype) if based else None
        contribution[name] = Entries(value * (0.5 if based else 1), scale, base)
    given_masks = masks()
    assert same(
        found := masked_upload(contribution, plan, given_masks), by_the_message_layer(contribution, plan, given_masks)
    )
    assert not found.out


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_the_bound_itself_and_subnormal_entries_are_as_in_numpy(dtype) -> None:
    plan = plan_of(("w", (12,), 1.0, 64))
    step, tiny = plan.tensors[0].step, torch.finfo(dtype)
    entries = [0.5, -0.5, 1.5, 2.5, -2.5]
    small = torch.tensor(
        [*(e * step for e in entries), tiny.tiny, tiny.tiny / 2, -tiny.smallest_normal / 4, 1, -1, 0, -0.0]
    )
    for scale in (1.0, 1 / 3, 2.0**-60):
        contribution = {"w": Entries(small.to(torch.float64).to(dtype), scale)}
        given_masks = masks()
        ours = masked_upload(contribution, plan, given_masks)
        assert same(ours, by_the_message_layer(contribution, plan, given_masks))
        assert not ours.out


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers_are_summed_as_numbers(dtype) -> None:
    plan = plan_of(("n", (9,), 300.0, 64))
    contribution = {"n": Entries(torch.arange(9).to(dtype), 1.0)}
    given_masks = masks()
    assert same(masked_upload(contribution, plan, given_masks), by_the_message_layer(contribution, plan, given_masks))


@pytest.mark.parametrize("bad", [1.0001, -1.0001, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 40_000, 65_535])
def test_an_entry_out_of_range_makes_every_word_uniform_and_says_so_on_the_device(bad: float, place: int) -> None:
    plan = plan_of(("w", (65_536,), 1.0, 32), ("v", (40,), 1.0, 64), ("p", (4000,), 1.0, 20))
    value = torch.zeros(65_536)
    value[place] = bad
    contribution = {"w": Entries(value), "v": Entries(torch.zeros(40)), "p": Entries(torch.zeros(4000))}
    with pytest.raises((DataError, RangeRefused)):  # as the message layer does
        by_the_message_layer(contribution, plan, masks())
    found = [masked_upload(contribution, plan, []) for _ in range(2)]
    assert all(one.out for one in found)
    for name, words in found[0].words.items():
        again = found[1].words[name]
        assert (words != again).sum() > 0.99 * words.numel()  # fresh keys
        bits = np.unpackbits(words.numpy().view(np.uint8))
        assert abs(bits.mean() - 0.5) < 6 * 0.5 / math.sqrt(bits.size)
    value[place] = 1.0  # the control
    inside = masked_upload(contribution, plan, [])
    assert not inside.out
    assert (inside.words["w"] != 0).sum() == 1


def test_an_update_is_left_as_it_was() -> None:
    value = torch.linspace(-1, 1, 100, dtype=torch.float64)
    before = value.clone()
    masked_upload({"w": Entries(value, 0.25, torch.ones(100))}, plan_of(("w", (100,), 4.0, 32)), masks())
    assert torch.equal(value, before)


def test_the_words_go_through_the_protocol_to_the_sum() -> None:
    """Five clients, four by NumPy and one by torch, with pair masks between all: the sum opens to the integers' sum."""
    plan = plan_of(("w", (1000,), 1.0, 32), ("m", (3,), 1.0, 64))
    pairs = {(i, j): secrets.token_bytes(32) for i in range(CLIENTS) for j in range(i)}
    rng = np.random.default_rng(0)
    totals, exact = None, np.zeros(1000)
    for client in range(CLIENTS):
        own = [SignedMask(secret, 1 if client == i else -1) for (i, j), secret in pairs.items() if client in (i, j)]
        value = rng.uniform(-1, 1, 1000)
        exact += np.rint(value / plan.tensors[0].step)
        contribution = {"w": Entries(torch.from_numpy(value)), "m": Entries(torch.zeros(3))}
        if client == 2:
            words = [masked_upload(contribution, plan, own).words[t.name].numpy() for t in plan.tensors]
        else:
            words = list(by_the_message_layer(contribution, plan, own).values())
        words = [flat.view(wire_dtype(t.ring)) for flat, t in zip(words, plan.tensors, strict=True)]
        totals = words if totals is None else [a + b for a, b in zip(totals, words, strict=True)]
    assert totals is not None
    assert np.array_equal(totals[0].view(np.int32), exact)
    assert not totals[1].any()
