"""Masks, control words, fixed point and bound of the masked all-reduce, without processes."""

from __future__ import annotations

import secrets

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from securefed import Array
from securefed.errors import ConfigError, MaskMismatch, PlanError
from securefed.torch._bound import GradientBound
from securefed.torch._encoding import add_rounded, decode_into, largest, rounding_error, trouble_of
from securefed.torch._masking import CONTROL, Call, RankMasks, Trouble, planned, read_control, spoil
from securefed.torch._precompute import MaskStore
from tests.torch.ranks import byte_statistic

RINGS = st.sampled_from([32, 64])
FOUR = 4


def decoded(words: torch.Tensor, unit: float, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(words.numel(), dtype=dtype)
    decode_into(out, words, unit)
    return out


def all_masks(ranks: int, session: bytes = b"session") -> list[RankMasks]:
    pairs = {frozenset((a, b)): secrets.token_bytes(32) for a in range(ranks) for b in range(a)}
    common = secrets.token_bytes(32)
    return [
        RankMasks(session, own, {peer: pairs[frozenset((own, peer))] for peer in range(ranks) if peer != own}, common)
        for own in range(ranks)
    ]


def masked(masks: RankMasks, call: Call, values: torch.Tensor) -> Array:
    words = masks.expand(call)
    add_rounded(torch.from_numpy(words.view(f"<i{words.itemsize}"))[:-CONTROL], values, call.step)
    return words


def opened(masks: RankMasks, call: Call, sent: list[Array]) -> Array:
    total = np.sum(sent, axis=0, dtype=sent[0].dtype)
    masks.remove_common(total, call)
    return total


@given(st.integers(3, 6), st.integers(0, 40), RINGS, st.integers(0, 2**40), st.integers(-20, 20))
def test_masks_cancel_and_the_sum_is_that_of_the_rounded_values(ranks, length, ring, number, exponent) -> None:
    bound = 2.0**exponent
    plan = planned(bound, ring, ranks)
    call = Call("hook", number, length, ring, plan.step)
    rng = np.random.default_rng(number)
    values = [torch.from_numpy(rng.uniform(-bound, bound, length)) for _ in range(ranks)]
    masks = all_masks(ranks)
    total = opened(masks[1], call, [masked(m, call, v) for m, v in zip(masks, values, strict=True)])
    assert read_control(total, call) is None
    words = torch.from_numpy(total.view(f"<i{total.itemsize}"))[:-CONTROL]
    mean = decoded(words, plan.step / ranks, torch.float64)
    exact = torch.stack(values).mean(0) if length else mean
    assert (mean - exact).abs().max().item() <= plan.step / 2 + bound * 1e-15 if length else True


@given(st.sampled_from(["number", "length", "step", "kind", "session", "none", "no masks", "one check word"]), RINGS)
def test_a_rank_of_another_call_or_without_masks_is_found(difference, ring) -> None:
    masks, call = all_masks(3), Call("hook", 7, 50, ring, 0.5)
    others = {
        "number": Call("hook", 8, 50, ring, 0.5),
        "step": Call("hook", 7, 50, ring, 1.0),
        "kind": Call("own", 7, 50, ring, 0.5),
    }
    sent = [m.expand(call) for m in masks]
    if difference == "session":
        sent[2] = all_masks(3)[2].expand(call)
    elif difference == "no masks":
        sent[2][:] = 0
    elif difference == "one check word":
        sent[2][-1] += 1
    elif difference == "length":
        sent[2] = masks[2].expand(Call("hook", 7, 51, ring, 0.5))[1:]
    elif difference != "none":
        sent[2] = masks[2].expand(others[difference])
    total = opened(masks[0], call, sent)
    if difference == "none":  # the control
        assert read_control(total, call) is None
        assert not total.any()
    else:
        with pytest.raises(MaskMismatch, match="did not cancel in call 'hook 7: 50 values"):
            read_control(total, call)


@pytest.mark.parametrize("trouble", list(Trouble))
@pytest.mark.parametrize("out", [(0,), (2,), (0, 1), (0, 1, 2)])
def test_trouble_shows_in_the_sum_and_the_sum_is_noise(trouble, out) -> None:
    masks, call = all_masks(3), Call("hook", 0, 4096, 32, 1.0)
    sent = [m.expand(call) for m in masks]
    for rank in out:
        spoil(sent[rank], trouble)
    total = opened(masks[0], call, sent)
    assert read_control(total, call) is trouble
    assert byte_statistic(total[:-CONTROL]) < 6
    clear = opened(masks[0], call, [m.expand(call) for m in masks])
    assert byte_statistic(clear[:-CONTROL]) > 12  # the control: without trouble the sum is 0


def test_values_that_are_not_finite_count_for_more_than_large_ones() -> None:
    masks, call = all_masks(3), Call("hook", 0, 8, 32, 1.0)
    sent = [m.expand(call) for m in masks]
    spoil(sent[0], Trouble.TOO_LARGE)
    spoil(sent[1], Trouble.NOT_FINITE)
    assert read_control(opened(masks[2], call, sent), call) is Trouble.NOT_FINITE


def gradients(ranks: int) -> tuple[Call, list[torch.Tensor]]:
    """2^16 words of gradients: standard deviation 1 under a bound of 64, as after the first step."""
    generator = torch.Generator().manual_seed(0)
    plan = planned(64.0, 32, ranks)
    return Call("hook", 3, 1 << 16, 32, plan.step), [torch.randn(1 << 16, generator=generator) for _ in range(ranks)]


def test_what_ranks_links_and_coalitions_see_is_uniform() -> None:
    """Six standard deviations of a chi-square over 2^18 bytes; unmasked words are found beyond twelve."""
    masks, (call, values) = all_masks(FOUR), gradients(FOUR)
    sent = [masked(m, call, v) for m, v in zip(masks, values, strict=True)]
    plain = [sent[k] - masks[k].expand(call) for k in range(FOUR)]
    assert min(byte_statistic(words) for words in plain) > 12
    assert byte_statistic(np.sum(plain, axis=0, dtype=np.uint32)) > 12
    for words in sent:  # the first message of a rank, to the next one or on its link
        assert byte_statistic(words) < 6
    for start in range(FOUR):  # a ring of links: sums of neighbours, up to all ranks
        for size in range(1, FOUR + 1):
            members = [(start + k) % FOUR for k in range(size)]
            assert byte_statistic(np.sum([sent[m] for m in members], axis=0, dtype=np.uint32)) < 6
    known = opened(masks[3], call, sent)  # the coalition of ranks 2 and 3 against 0 and 1
    for victim, other in ((0, 1), (1, 0)):
        seen = sent[victim].copy()
        for colluder in (2, 3):
            seen += _pair_stream(masks[colluder], victim, call)
        if victim == 0:
            masks[3].remove_common(seen, call)
        assert byte_statistic(seen) < 6
        assert byte_statistic(seen + _pair_stream(masks[other], victim, call)) > 12  # with the last stream it is open
    assert byte_statistic(known) > 12  # the sum is for all ranks


def _pair_stream(masks: RankMasks, peer: int, call: Call) -> Array:
    """The stream that a rank shares with `peer`, as it adds it."""
    own = RankMasks.__new__(RankMasks)
    peers = [rank for rank in range(FOUR) if rank != _rank_of(masks)]
    own._own, own._stream = [masks._pairs[peers.index(peer)]], masks._stream
    return own.expand(call)


def _rank_of(masks: RankMasks) -> int:
    return sum(mask.sign < 0 for mask in masks._pairs)  # it subtracts the streams of the ranks below


def test_no_two_calls_have_a_stream_in_common() -> None:
    (masks, *_), call = all_masks(3), Call("hook", 1, 300, 32, 0.5)
    streams = [
        masks.expand(other)[:300]
        for other in (
            call, Call("hook", 2, 300, 32, 0.5), Call("own", 1, 300, 32, 0.5), Call("hook", 1, 301, 32, 0.5),
            Call("hook", 1, 300, 32, 0.25),
        )
    ]  # fmt: skip
    assert (masks.expand(call)[:300] == streams[0]).all()
    for place, one in enumerate(streams):
        for other in streams[:place]:
            assert byte_statistic(np.concatenate([one - other])) < 6
            assert (one == other).sum() <= 1


@given(RINGS, st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
def test_a_value_and_its_decoding_differ_by_half_a_step_and_rounding(ring, dtype) -> None:
    values = torch.linspace(-3, 3, 70_001).to(dtype)  # more than one part
    step = planned(3.0, ring, 3).step
    words = torch.zeros(values.numel(), dtype=torch.int32 if ring == 32 else torch.int64)
    add_rounded(words, values, step)
    back = decoded(words, step, dtype).double()
    assert (back - values.double()).abs().max().item() <= step / 2 + 3 * rounding_error(dtype)
    assert largest(words) == round(float(values.double().abs().max()) / step)


def test_trouble_is_seen_and_named() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        fine = torch.tensor([1.0, -2.0, 0.0], dtype=dtype)
        assert trouble_of(fine, 2.0) is None
        assert trouble_of(-fine, 2.0) is None
        assert trouble_of(fine, 1.9) is Trouble.TOO_LARGE
        for bad in (torch.inf, -torch.inf, torch.nan):
            assert trouble_of(torch.tensor([1.0, bad, 0.0], dtype=dtype), 2.0) is Trouble.NOT_FINITE
    assert trouble_of(torch.zeros(0), 1.0) is None


@given(st.floats(1e-20, 1e20), st.integers(3, 200), RINGS)
def test_as_many_bounds_as_there_are_ranks_fit_the_ring(bound, ranks, ring) -> None:
    plan = planned(bound, ring, ranks)
    assert ranks * np.ceil(bound / plan.step) <= 2 ** (ring - 1) - 1
    assert ranks * bound / plan.step > 2 ** (ring - 1) / 4  # no more than two bits are lost
    assert plan.error >= ranks * plan.step / 2


def test_the_bound_follows_the_mean_and_recovers() -> None:
    bound = GradientBound(1.0, 64.0, 32, 3, ceiling=2.0**120)
    bound.summed(0.25)
    assert bound.value == 16.0
    bound.lost(Trouble.NOT_FINITE)
    assert bound.value == 16.0
    for factor in (16, 16**2, 16**4):
        before = bound.value
        bound.lost(Trouble.TOO_LARGE)
        assert bound.value == before * factor
    for _ in range(9):
        bound.lost(Trouble.TOO_LARGE)
    assert np.isfinite(bound.value)
    before = bound.value
    bound.summed(0.0)  # a batch without gradients, perhaps: those of the step before it would still fit
    assert bound.value == before / 16
    for _ in range(2):
        bound.summed(0.0)  # below the resolution: follows it downwards
    assert bound.value < 2.0**120 / 2**20
    for _ in range(20):
        bound.summed(0.0)
    assert bound.value > 0
    assert 1 / bound.plan.step < float(np.finfo(np.float32).max)


@pytest.mark.parametrize("ceiling", [None, 16.0])
def test_a_rank_that_sends_the_largest_allowed_entry_in_every_step_cannot_drown_the_others(ceiling) -> None:
    """Without a ceiling the bound grows by headroom / ranks a step: after seven steps all other entries round to 0."""
    ranks, rng = 4, np.random.default_rng(0)
    bound, true = GradientBound(1.0, 64.0, 32, ranks, ceiling=ceiling), rng.normal(size=(ranks - 1, 1000)) * 1e-2
    for _ in range(40):
        step, spike = bound.plan.step, np.zeros(1000)
        spike[-1] = bound.value * 0.999
        mean = np.rint(np.vstack([true, spike]) / step).sum(0) * step / ranks
        exact = true.sum(0)[:-1] / ranks
        assert np.abs(mean[:-1] - exact).max() < 0.01 * np.sqrt(np.mean(exact**2))
        bound.summed(float(np.abs(mean).max()))
    assert bound.value <= bound.ceiling <= 2.0**20
    free = GradientBound(1.0, 64.0, 32, ranks, ceiling=2.0**120)  # the control
    for _ in range(8):
        free.summed(free.value * 0.999 / ranks)
    assert free.plan.step > 10 * np.abs(true).max()


def test_the_ceiling_follows_from_the_first_sum_and_steps_beyond_it_end_the_run() -> None:
    bound = GradientBound(1.0, 64.0, 32, 3)
    for _ in range(4):
        bound.lost(Trouble.TOO_LARGE)
    assert bound.value == bound.ceiling == 2.0**20
    bound.summed(0.5)
    assert bound.ceiling == 2.0**20  # it never rises
    calm = GradientBound(1.0, 64.0, 32, 3)
    calm.summed(0.25)
    assert (calm.value, calm.ceiling) == (16.0, 16.0 * 2**10)
    calm.summed(1e6)
    assert calm.value == calm.ceiling
    for _ in range(19):
        calm.lost(Trouble.TOO_LARGE)
    assert not calm.stuck
    calm.lost(Trouble.TOO_LARGE)
    assert calm.stuck
    calm.summed(0.25)
    assert not calm.stuck


@pytest.mark.parametrize("ceiling", [0.5, float("nan"), 2.0**121, "8"])
def test_a_ceiling_out_of_range_is_refused(ceiling) -> None:
    with pytest.raises(ConfigError, match=r"ceiling must be a number from bound \(1\)"):
        GradientBound(1.0, 64.0, 32, 3, ceiling=ceiling)


@pytest.mark.parametrize("arguments", [(0.0, 64.0), (float("nan"), 64.0), (float("inf"), 64.0), (1.0, 0.5), ("1", 2.0)])
def test_bounds_out_of_range_are_refused(arguments) -> None:
    with pytest.raises(ConfigError, match="must be a number between"):
        GradientBound(*arguments, 32, 3)


def test_too_many_ranks_for_the_ring_are_refused() -> None:
    with pytest.raises(PlanError, match="too many for a 32-bit ring"):
        planned(1.0, 32, 2**31)


def test_masks_computed_ahead_are_those_of_the_call_and_handed_out_once() -> None:
    (masks, *_), calls = all_masks(3), [Call("hook", k, 1000, 32, 0.5) for k in range(3)]
    store = MaskStore(masks)
    store.expect(calls)
    assert (store.take(calls[1]) == masks.expand(calls[1])).all()
    first = store.take(calls[0])
    first[:] = 0  # callers write into them
    assert (store.take(calls[0]) == masks.expand(calls[0])).all()
    store.give_back([first])
    store.expect(calls)  # in the buffer that was given back
    assert (store.take(calls[0]) == masks.expand(calls[0])).all()
    store.expect([])
    assert (store.take(calls[2]) == masks.expand(calls[2])).all()
