"""A masked sum and a masked upload whose masks the kernel makes; everything else of them is tested without it."""

from __future__ import annotations

import secrets
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from securefed.defenses._secure_aggregation.chacha_stream import CHACHA20
from securefed.torch import _device_encoding, _device_masks, _device_sums
from securefed.torch._device_sums import DeviceSums
from securefed.torch._masking import CONTROL, Call, RankMasks, planned
from tests.torch.test_device_encoding import by_the_message_layer, plan_of, same


@pytest.fixture(autouse=True)
def no_processor_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_device_masks, "_add_on_processor")


@pytest.mark.parametrize("ring", [32, 64])
def test_the_sum_of_ranks_with_and_without_the_kernel_opens(ring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks 0 and 1 by the kernel, rank 2 by NumPy."""
    pairs, common = {k: secrets.token_bytes(32) for k in (1, 2, 3)}, secrets.token_bytes(32)
    masks = [
        RankMasks(b"session", own, {peer: pairs[own + peer] for peer in range(3) if peer != own}, common, CHACHA20)
        for own in range(3)
    ]
    sent: list[torch.Tensor] = []
    finished = SimpleNamespace(wait=lambda: None)
    monkeypatch.setattr(
        _device_sums.dist, "all_reduce", lambda words, **options: (sent.append(words.clone()), finished)[1]
    )
    plan = planned(1.0, ring, 3)
    call = Call("own", 0, 40, ring, plan.step)
    values = torch.arange(40) / 64
    started = []
    for own in (0, 1):
        sums = DeviceSums(None, torch.device("cpu"))
        sums.use(masks[own])
        started.append((sums, sums.start(call, values, 1.0)))
    words = masks[2].expand(call)
    words[:-CONTROL] += np.rint(values.numpy() / plan.step).astype(np.int64).astype(words.dtype)
    total = sent[0] + sent[1] + torch.from_numpy(words.view(f"<i{words.itemsize}"))
    sums, first = started[0]
    first.words.copy_(total)
    (opened,) = sums.open([first])
    assert opened.error is None and opened.trouble is None
    assert torch.equal(opened.words.double() * plan.step, values.double() * 3)


@pytest.mark.parametrize("ring", [20, 32, 64])
def test_an_upload_by_the_kernel_is_that_of_the_message_layer(ring) -> None:
    plan = plan_of(("a", (3, 20), 1.0, ring), ("b", (), 1.0, 64), ("c", (30,), 1.0, ring))
    values = {tensor.name: torch.rand(tensor.shape) for tensor in plan.tensors}
    contribution = {name: _device_encoding.Entries(value, 0.3) for name, value in values.items()}
    masks = [_device_encoding.SignedMask(secrets.token_bytes(32), sign) for sign in (1, -1)]
    ours = _device_encoding.masked_upload(contribution, plan, masks)
    assert same(ours, by_the_message_layer(contribution, plan, masks))
    values["a"][2, 2] = torch.nan
    assert _device_encoding.masked_upload(contribution, plan, masks).out
