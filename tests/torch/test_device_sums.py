"""Masked all-reduce whose masks and checks are made on the device, beside ranks that make them in NumPy.

The device here is the processor (`make test-gpu` runs the kernel itself). Three gloo processes; ranks 0 and 2 sum on
their device, rank 1 in NumPy.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from securefed.defenses._secure_aggregation.chacha_stream import segment_key
from securefed.defenses._secure_aggregation.masks import SignedMask
from securefed.errors import ConfigError
from securefed.torch import MaskingState
from securefed.torch._device_sums import DeviceSums, sums_for
from securefed.torch._masking import Call, RankMasks
from securefed.torch._sums import MaskedSums
from tests.torch import workers_device
from tests.torch.ranks import Found, byte_statistic, spawn_once


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return spawn_once("device", workers_device.together, 3, tmp_path_factory)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_means_are_those_of_masks_made_in_numpy_bit_for_bit(three, dtype) -> None:
    for found in three:
        ours, theirs = found[f"parity/{dtype} DeviceSums"], found[f"parity/{dtype} MaskedSums"]
        assert ours.tobytes() == theirs.tobytes()
        assert np.abs(ours).max() > 0.01
        assert ours.tobytes() == three[0][f"parity/{dtype} DeviceSums"].tobytes()


def test_overflow_is_found_on_all_ranks_as_it_is_without_a_device(three) -> None:
    for found in three:
        flags = found["overflow/flags"]
        assert flags[:, 0].tolist() == [False, True, False, True, False, False]
        assert (flags[:, 1] == flags[:, 0]).all()
        assert (flags[:, 2] != flags[:, 0]).all()
        assert found["overflow/moved 0"].item() is False
        assert found["overflow/moved 1"].item() is True


@pytest.mark.parametrize("ring", [32, 64])
def test_own_sums_are_exact_and_a_value_out_of_range_is_said_on_all_ranks(three, ring) -> None:
    for found, length in itertools.product(three, (0, 1, 7, 5000)):
        assert found[f"own/{ring} {length}"]
    for found, bad in itertools.product(three, ("3.0", "nan", "-inf")):
        assert str(found[f"own/{ring} {bad}"]).startswith("RangeRefused: the values of some rank are beyond the bound")


def test_words_are_uniform_and_new_in_every_call_whether_or_not_a_rank_is_out(three) -> None:
    for found in three:
        words = [found[f"lie/sent {k}"] for k in range(3)]
        assert all(byte_statistic(one) < 6 for one in words)
        assert all(byte_statistic(a - b) < 6 for a, b in itertools.combinations(words, 2))
        assert str(found["lie/out"]).startswith("RangeRefused")
    assert byte_statistic(np.arange(20_006, dtype=np.int32)) > 12  # the control


def test_a_rank_that_leaves_its_masks_out_is_found(three) -> None:
    assert all(str(found["lie/no masks"]).startswith("MaskMismatch") for found in three)


def test_ranks_with_another_stream_are_refused_by_name(three) -> None:
    for found in three:
        text = str(found["mixed"])
        assert text.startswith("ConfigError: the ranks differ in the masks' stream, which follows from device=")
        assert "aes-128-ctr" in text and "chacha20" in text


def keys_of_calls(derive: Callable[[RankMasks, Call], list[SignedMask]]) -> tuple[int, int]:
    """How many keys of ChaCha20 three ranks make in several calls, and how many there should be: one a stream."""
    pairs, common = {k: secrets.token_bytes(32) for k in (1, 2, 3)}, secrets.token_bytes(32)
    facts = ((0, 9, 32, 1.0), (1, 9, 32, 1.0), (1, 8, 32, 1.0), (1, 9, 64, 1.0), (1, 9, 32, 0.5))
    calls = [Call("hook", *one) for one in facts] + [Call("own", *one) for one in facts]  # type: ignore[arg-type]
    found = set()
    for session, own in itertools.product((b"one", b"other"), range(3)):
        agreed = {peer: pairs[own + peer] for peer in range(3) if peer != own}
        ranks = RankMasks(session, own, agreed, common, "chacha20")
        for call in calls:
            masks = [*derive(ranks, call), ranks.common_of_call(call)]
            found |= {
                segment_key(mask.secret, width, segment) for mask in masks for width in (4, 8) for segment in (0, 1)
            }
    return len(found), 2 * len(calls) * (3 + 1) * 2 * 2


def test_no_two_calls_pairs_or_ranks_have_a_key_of_chacha20_in_common() -> None:
    """Three pairs and the common stream, in two sessions; both ends of a pair have its key."""
    found, wanted = keys_of_calls(lambda ranks, call: ranks.of_call(call))
    assert found == wanted
    found, wanted = keys_of_calls(lambda ranks, call: ranks.of_call(replace(call, kind="hook")))  # the control
    assert found < wanted


def test_a_processor_sums_as_before_and_a_card_makes_its_masks_where_triton_is(monkeypatch) -> None:
    assert type(sums_for(None, torch.device("cpu"))) is MaskedSums
    monkeypatch.setattr("securefed.torch._device_sums.is_installed", lambda module: module == "triton")
    assert type(sums_for(None, torch.device("cuda"))) is DeviceSums
    monkeypatch.setattr("securefed.torch._device_sums.is_installed", lambda module: False)
    assert type(sums_for(None, torch.device("cuda"))) is MaskedSums


def sharded(name: str) -> nn.Module:
    """A module of the class by which FSDP2, FSDP and DeepSpeed are recognised, whose set-up needs processes."""
    if name == "FSDP2":
        inner = nn.Linear(2, 2)
        inner.__class__ = type("FSDPLinear", (FSDPModule, nn.Linear), {})
        return nn.Sequential(inner)
    home, kind = (
        ("torch.distributed.fsdp", "FullyShardedDataParallel")
        if name == "FSDP"
        else ("deepspeed.runtime", "DeepSpeedEngine")
    )
    return type(kind, (nn.Module,), {"__module__": home})()


@pytest.mark.parametrize("name", ["FSDP2", "FSDP", "ZeRO"])
def test_sharded_models_are_refused_by_name_with_what_to_do(name) -> None:
    with pytest.raises(ConfigError, match=rf"{name} \(.*reduce-scatter.*Train with DistributedDataParallel"):
        MaskingState(sharded(name), bound=1.0)
    with pytest.raises(ConfigError, match="got Linear"):  # the control: another module is no sharded one
        MaskingState(nn.Linear(2, 2), bound=1.0)
