"""What each rank does where the masks of rank 0 are made by its device and those of the others by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

import securefed.torch
from securefed.torch import MaskingState, _state
from securefed.torch._device_sums import DeviceSums
from securefed.torch._sums import MaskedSums
from tests.torch import workers
from tests.torch.ranks import Found, caught
from tests.torch.workers import gradient, loss, network, protected


class ChaChaSums(MaskedSums):
    """Sums of a rank without a card, under the stream of those with one."""

    stream = "chacha20"


@contextmanager
def kinds(chosen: Callable[[int], type[MaskedSums]]) -> Iterator[None]:
    """Let every rank make its sums as `chosen` says."""
    before = _state.sums_for
    _state.sums_for = lambda group, device: chosen(dist.get_rank(group))(group, device)
    try:
        yield
    finally:
        _state.sums_for = before


def together(rank: int) -> Found:
    """Ranks with and without a device that makes masks: equal gradients, overflow, lies, and streams that differ."""
    found: Found = {}
    with kinds(lambda rank: ChaChaSums if rank == 1 else DeviceSums):
        found |= {f"parity/{name}": value for name, value in parity(rank).items()}
        found |= {f"overflow/{name}": value for name, value in workers.overflow(rank).items()}
        found |= {f"own/{name}": value for name, value in own(rank).items()}
        found |= {f"lie/{name}": value for name, value in lie(rank).items()}
    with kinds(lambda rank: MaskedSums if rank == 2 else DeviceSums), caught(found, "mixed"):
        MaskingState(bound=1.0)
    return found


def parity(rank: int) -> Found:
    """The gradients of ten steps, masked by devices and masked by NumPy, from the same batches."""
    means: dict[str, list[torch.Tensor]] = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        for kind in (DeviceSums, MaskedSums):
            with kinds(lambda _, kind=kind: ChaChaSums if kind is DeviceSums and dist.get_rank() == 1 else kind):
                model, state = protected(network(dtype), bound=1.0)
                steps = means.setdefault(f"{name} {kind.__name__}", [])
                for step in range(10):
                    model.zero_grad()
                    loss(model, rank, step, dtype).backward()
                    assert not state.overflowed
                    steps.append(gradient(model).float())
    return {name: torch.stack(steps).numpy() for name, steps in means.items()}


def own(rank: int) -> Found:
    """`secure_all_reduce` of integers in floats, exact, at both rings and some lengths; then one beyond the bound."""
    found: Found = {}
    for ring in (32, 64):
        state = MaskingState(bound=1.0, ring=ring)
        for length in (0, 1, 7, 5000):
            values = torch.arange(length, dtype=torch.float64) * (rank + 1)
            securefed.torch.secure_all_reduce(values, state, bound=2.0**14)
            found[f"{ring} {length}"] = bool((values == 6 * torch.arange(length)).all())
        for bad in (3.0, torch.nan, -torch.inf):
            values = torch.full((40,), bad if rank == 0 else 1.0)
            with caught(found, f"{ring} {bad}"):
                securefed.torch.secure_all_reduce(values, state, bound=2.0)
    return found


def lie(rank: int) -> Found:
    """What rank 0 sends twice, and a rank that leaves its masks out."""
    sent: list[torch.Tensor] = []
    found: Found = {}
    state = MaskingState(bound=1.0)
    with workers.wire(lambda words: sent.append(words.clone())):
        for _ in range(2):
            securefed.torch.secure_all_reduce(torch.zeros(20_000), state, bound=1.0)
        with caught(found, "out"):
            securefed.torch.secure_all_reduce(torch.full((20_000,), 2.0 if rank == 0 else 0.0), state, bound=1.0)
    found |= {f"sent {k}": words.numpy() for k, words in enumerate(sent)}
    if rank == 0:
        sums: Any = state._sums
        sums._masks.of_call = lambda call: []
    with caught(found, "no masks"):
        securefed.torch.secure_all_reduce(torch.zeros(10), state, bound=1.0)
    return found
