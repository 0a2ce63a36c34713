"""DistributedDataParallel under masks, on three and four gloo processes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.torch import workers
from tests.torch.ranks import Found, byte_statistic, spawn_once


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return spawn_once("three", workers.together, 3, tmp_path_factory)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return spawn_once("long", workers.long_parity, 3, tmp_path_factory)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return spawn_once("four", workers.four, 4, tmp_path_factory, leaves=True)


@pytest.mark.parametrize(("ranks", "steps"), [("three", 20), pytest.param("long", 200, marks=pytest.mark.exhaustive)])
def test_each_step_has_the_gradient_of_plain_ddp_within_the_planned_error(ranks, steps, request) -> None:
    for found in request.getfixturevalue(ranks):
        assert len(found["parity/plain_ratio"]) == steps
        assert found["parity/exact_ratio"].max() <= 1
        assert found["parity/plain_ratio"].max() <= 1
        assert found["parity/error"] < 1e-6
        assert not found["parity/overflowed"]


@pytest.mark.exhaustive
def test_four_ranks_agree_with_plain_ddp_too(four) -> None:
    assert all(found["parity/plain_ratio"].max() <= 1 for found in four)


def test_buckets_are_rebuilt_after_the_first_step_and_there_are_several(three) -> None:
    lengths = [list(v) for _, v in itertools.groupby(three[0]["parity/lengths"].tolist(), key=lambda pair: pair[0])]
    first, second, *_, last = ([length for _, length in step] for step in lengths)
    assert len(first) == 1 < len(second)
    assert second == last


def test_accumulated_gradients_are_those_of_plain_ddp(three) -> None:
    for found, round in itertools.product(three, range(3)):
        plain, masked = found[f"variants/accumulated {round}"]
        np.testing.assert_allclose(masked, plain, atol=1e-6)
        assert found[f"variants/calls in no_sync {round}"] == 0
        assert np.abs(plain).max() > 0.01


@pytest.mark.parametrize(("dtype", "epsilon"), [("bfloat16", 2**-7), ("float16", 2**-10), ("float64", 2**-48)])
def test_buckets_of_other_types(three, dtype, epsilon) -> None:
    """Plain DDP sums in the narrow type, three roundings; ours sums exactly and rounds once."""
    for found in three:
        plain, masked = found[f"variants/{dtype}"]
        np.testing.assert_allclose(masked, plain, rtol=4 * epsilon, atol=4 * epsilon * np.abs(plain).max())
        assert found[f"variants/{dtype} stays"]


def test_own_tensors_are_summed_in_place(three) -> None:
    for found in three:
        for dtype in ("float32", "float64", "bfloat16"):
            same, *total = found[f"variants/own torch.{dtype}"]
            assert same
            np.testing.assert_allclose(total, 4.5, atol=1e-7)
        assert found["variants/alone"] == pytest.approx(3.0, abs=1e-8)


def test_own_sums_beyond_their_bound_are_refused_on_all_ranks_and_change_nothing(three) -> None:
    for rank, found in enumerate(three):
        assert str(found["variants/beyond the bound"]).startswith("RangeRefused: the values of some rank are beyond")
        assert (found["variants/untouched"] == (9.0 if rank == 1 else 1.0)).all()
        assert str(found["variants/counts"]).startswith("ConfigError: the tensor must be a dense tensor")
        assert str(found["variants/no state"]).startswith("ConfigError: a MaskingState is needed")


def test_overflow_and_inf_of_one_rank_make_the_whole_step_inf_on_all_ranks(three) -> None:
    for found in three:
        overflowed, infinite, finite = found["overflow/flags"].T
        assert overflowed.tolist() == infinite.tolist() == (~finite).tolist()
        assert overflowed.tolist() == [False, True, False, True, False, False]
        bounds = found["overflow/bounds"]
        assert bounds[1] == 16 * bounds[0]
        assert bounds[3] == bounds[2]  # what is not finite moves no bound
        assert (bounds == three[0]["overflow/bounds"]).all()


def test_a_grad_scaler_skips_such_a_step_on_all_ranks(three) -> None:
    for found in three:
        assert not found["overflow/moved 0"]
        assert found["overflow/moved 1"]
        assert found["overflow/scales"].tolist() == [2.0, 2.0]


def test_a_huge_entry_of_one_rank_is_told_and_ends_the_run_beyond_the_ceiling(three) -> None:
    for found in three:
        errors = [float(found[f"overflow/relative error {step}"]) for step in range(5)]
        assert errors[0] < 1e-5
        assert errors[4] > 0.01
        assert "RangeRefused" in str(found["overflow/ceiling"]) and "a larger ceiling" in str(found["overflow/ceiling"])
        assert found["overflow/steps"] == 20


def test_signed_agreements_are_one_on_all_ranks(three) -> None:
    assert len({str(found["signed"]) for found in three}) == 1


def test_the_loop_and_the_sum_and_the_identities_of_the_page_run(three) -> None:
    for found in three:
        assert found["page/moved"]
        assert found["page/total"].tolist() == [3.0, 3.0]
        assert found["page/signed"]


REFUSED = {
    "buffers": "ConfigError: the model has buffers (1.running_mean",
    "unused": "ConfigError: with find_unused_parameters=True",
    "static": "ConfigError: with static_graph=True",
    "synced": "ConfigError: SyncBatchNorm at '1'",
    "sparse": "ConfigError: '0' makes sparse gradients",
    "module": "ConfigError: MaskingState takes the DistributedDataParallel",
    "quiet": "none",
    "join": "ConfigError: inside the context Join",
    "head left out": "ConfigError: some parameter's gradient never came",
    "head a tensor": "none",
    "head frozen": "none",
    "pickled": "ConfigError: a MaskingState holds secrets that serve once",
    "copied": "ConfigError: a MaskingState holds secrets that serve once",
    "ring": "ConfigError: ring must be 32 or 64; got 16",
    "bound": "ConfigError: bound must be a number between",
    "headroom": "ConfigError: headroom must be a number between",
    "settings": "ConfigError: the ranks differ in bound",
    "no state": "ConfigError: a MaskingState is needed",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_named_on_all_ranks(three, name) -> None:
    for found in three:
        assert str(found[f"refusals/{name}"]).startswith(REFUSED[name])


def test_a_group_of_two_is_refused(three) -> None:
    for found in three[:2]:
        assert str(found["refusals/pair"]).startswith("PlanError: a masked all-reduce needs 3 ranks or more")


def test_what_ranks_send_looks_uniform_and_without_masks_it_does_not(four) -> None:
    """Six and twelve standard deviations of a chi-square of 16,000 bytes and more."""
    for subset in itertools.chain.from_iterable(itertools.combinations(four, size) for size in (1, 2, 3, 4)):
        assert byte_statistic(np.sum([found["traffic/masked"] for found in subset], axis=0, dtype=np.int32)) < 6
        assert byte_statistic(np.sum([found["traffic/bare"] for found in subset], axis=0, dtype=np.int32)) > 12


@pytest.mark.parametrize("name", ["no masks", "check word", "call number", "another mean"])
def test_a_rank_that_deviates_ends_the_step_by_name_on_all_ranks(four, name) -> None:
    for found in four:
        assert str(found[f"deviations/{name}"]).startswith("MaskMismatch: the masks of the ranks did not cancel")
        assert str(found[f"deviations/{name}, next"]).startswith("MaskMismatch: an earlier sum failed")
        assert found[f"deviations/{name}, inf"]  # whoever catches the error has no gradient to step with
        assert not found["deviations/nothing, inf"]
        assert str(found["deviations/nothing"]) == "none"
        assert str(found["deviations/nothing, next"]) == "none"


def test_a_lost_rank_ends_the_step_of_the_others(four) -> None:
    for found in four[:3]:
        assert str(found["lost/step"]).startswith("RuntimeError")
