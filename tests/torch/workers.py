"""What each rank does in the tests with processes; every function returns what the test looks at."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import securefed.torch
from securefed.defenses import Identities
from securefed.torch import MaskingState
from tests.torch.ranks import Found, caught

SMALL_BUCKETS = 0.01
"""Bucket size in MB under which the network's gradients travel in several buckets."""

Alter = Callable[[torch.Tensor], None]


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 60), nn.Tanh(), nn.Linear(60, 40), nn.Tanh(), nn.Linear(40, 5)).to(dtype)


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(16, 20, generator=generator).to(dtype), torch.randint(0, 5, (16,), generator=generator)


def loss(model: nn.Module, rank: int, step: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x, y = batch(rank, step, dtype)
    return nn.functional.cross_entropy(model(x).float(), y)


def gradient(model: nn.Module) -> torch.Tensor:
    parts = [p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]
    return torch.cat(parts).clone()


def protected(
    module: nn.Module, *, views: bool = False, **options: Any
) -> tuple[DistributedDataParallel, MaskingState]:
    model = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS, gradient_as_bucket_view=views)
    state = MaskingState(model, **{"bound": 1.0} | options)
    model.register_comm_hook(state, securefed.torch.masked_allreduce)
    return model, state


@contextmanager
def wire(alter: Alter) -> Iterator[None]:
    """Let `alter` see, and change, each tensor before the backend sums it."""
    real = dist.all_reduce

    def all_reduce(tensor: torch.Tensor, **rest: Any) -> Any:
        alter(tensor)
        return real(tensor, **rest)

    dist.all_reduce = all_reduce
    try:
        yield
    finally:
        dist.all_reduce = real


def parity(rank: int, steps: int) -> Found:
    """Steps of plain and masked DDP from equal parameters, and the exact mean beside them."""
    plain, (model, state) = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS), protected(network())
    local, optimizer = network(), torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    exact_ratio, plain_ratio, lengths = [], [], []
    for step in range(steps):
        for other in (model, local):
            for own, value in zip(other.parameters(), plain.parameters(), strict=True):
                own.data.copy_(value.data)
        planned = state.error
        for other in (plain, local):
            other.zero_grad()
            loss(other, rank, step).backward()
        model.zero_grad()
        with wire(lambda words, step=step: lengths.append((step, words.numel()))):
            loss(model, rank, step).backward()
        own = gradient(local).double()
        exact, most = own.clone(), own.abs()
        dist.all_reduce(exact)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        exact /= dist.get_world_size()
        rounding = 4 * torch.finfo(torch.float32).eps * most  # DDP divides and sums; decoding rounds three times
        exact_ratio.append(float(((gradient(model) - exact).abs() / (planned + rounding)).max()))
        plain_ratio.append(float(((gradient(model) - gradient(plain)).abs() / (planned + 2 * rounding)).max()))
        optimizer.step()
    return {
        "exact_ratio": exact_ratio, "plain_ratio": plain_ratio, "lengths": lengths,
        "error": planned, "overflowed": state.overflowed,
    }  # fmt: skip


def variants(rank: int) -> Found:
    """Accumulation, narrow types, the ring of 64 bits, own sums."""
    found: Found = {}
    plain, (model, state) = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS), protected(network())
    for round in range(3):
        calls = state._calls
        for other in (plain, model):
            other.zero_grad()
            with other.no_sync():
                loss(other, rank, 10 * round).backward()
                loss(other, rank, 10 * round + 1).backward()
            found[f"calls in no_sync {round}"] = state._calls - calls if other is model else 0
            loss(other, rank, 10 * round + 2).backward()
        found[f"accumulated {round}"] = np.array([gradient(plain).numpy(), gradient(model).numpy()])
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        plain = DistributedDataParallel(network(dtype), bucket_cap_mb=SMALL_BUCKETS)
        ring = 64 if dtype == torch.float64 else 32
        model, state = protected(network(dtype), ring=ring, views=dtype == torch.bfloat16)
        for step in range(2):
            for other in (plain, model):
                other.zero_grad()
                loss(other, rank, step, dtype).backward()
        name = str(dtype).removeprefix("torch.")
        found[name] = np.array([gradient(plain).double().numpy(), gradient(model).double().numpy()])
        found[f"{name} stays"] = all(p.grad.dtype == dtype for p in model.parameters())
    found |= own_sums(rank, state)
    return found


def own_sums(rank: int, state: MaskingState) -> Found:
    found: Found = {}
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        tensor = torch.full((3, 4), rank + 0.5, dtype=dtype).t()
        same = securefed.torch.secure_all_reduce(tensor, state, bound=4.0)
        found[f"own {dtype}"] = np.array([same is tensor, *tensor.double().reshape(-1).tolist()])
    alone = MaskingState(bound=1.0)
    found["alone"] = float(securefed.torch.secure_all_reduce(torch.tensor(1.0), alone, bound=1.0))
    tensor = torch.full((4,), 9.0 if rank == 1 else 1.0)
    with caught(found, "beyond the bound"):
        securefed.torch.secure_all_reduce(tensor, state, bound=2.0)
    found["untouched"] = tensor.numpy()
    with caught(found, "counts"):
        securefed.torch.secure_all_reduce(torch.ones(3, dtype=torch.int64), state, bound=2.0)
    with caught(found, "no state"):
        securefed.torch.secure_all_reduce(tensor, dist.group.WORLD, bound=2.0)
    return found


def overflow(rank: int) -> Found:
    """One rank's gradient is beyond the bound, then not finite, under a GradScaler and without."""
    found: Found = {}
    model, state = protected(network(), bound=4.0)
    flags, bounds = [], []
    for step in range(6):
        model.zero_grad()
        scale = 1e4 if (step, rank) == (1, 2) else torch.inf if (step, rank) == (3, 0) else 1.0
        (scale * loss(model, rank, step)).backward()
        flags.append([state.overflowed, bool(torch.isinf(gradient(model)).all()),
                      bool(torch.isfinite(gradient(model)).all())])  # fmt: skip
        bounds.append(state.bound.value)
    found |= {"flags": flags, "bounds": bounds}
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=4.0), torch.optim.SGD(model.parameters(), lr=0.1)
    before, scales = copy.deepcopy(model.module.state_dict()), []
    for step in range(2):
        optimizer.zero_grad()
        bad = torch.nan if (step, rank) == (0, 1) else 1.0
        scaler.scale(bad * loss(model, rank, step)).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moved = any((value != before[name]).any() for name, value in model.module.state_dict().items())
        found[f"moved {step}"] = bool(moved)
    found |= ceiling(rank)
    return found | {"scales": scales}


def ceiling(rank: int) -> Found:
    """One rank has a huge entry: below the ceiling all others lose digits and are told, beyond it there is no sum."""
    found: Found = {}
    model, state = protected(network(), bound=1.0, ceiling=2.0**40)
    for step in range(5):
        model.zero_grad()
        lie = 0.9 * state.bound.value * model.module[0].bias[0] if rank == 1 else 0.0
        (loss(model, rank, step) + lie).backward()
        found[f"relative error {step}"] = state.relative_error
    model, state = protected(network(), bound=4.0, ceiling=4.0)
    with caught(found, "ceiling"):
        for step in range(30):
            found["steps"] = step + 1
            model.zero_grad()
            (loss(model, rank, step) * (1e6 if rank == 2 else 1.0)).backward()
    return found


def traffic(rank: int) -> Found:
    """What this rank hands to the backend in a step, and the same step's words without masks."""
    sent: list[torch.Tensor] = []
    model, state = protected(network())
    for step in range(2):
        sent.clear()
        with wire(lambda words: sent.append(words.clone())):
            model.zero_grad()
            loss(model, rank, step).backward()
    taken = state._sums.store.take
    bare: list[torch.Tensor] = []
    with wire(lambda words: bare.append(words.clone())), caught({}, "ignored"):
        state._sums.store.take = lambda call: np.zeros_like(taken(call))
        model.zero_grad()
        loss(model, rank, 2).backward()
    types = {str(words.dtype) for words in sent}
    assert types == {"torch.int32"}, types
    return {"masked": torch.cat(sent).numpy(), "bare": torch.cat(bare).numpy()}


def deviations(rank: int) -> Found:
    """Ranks that leave out their masks, lie in a check word, are at another call, or saw another mean."""
    found: Found = {}

    def play(name: str, tamper: Callable[[MaskingState], None], alter: Alter = lambda words: None) -> None:
        model, state = protected(network())
        loss(model, rank, 0).backward()
        if rank == 1:
            tamper(state)
        model.zero_grad()
        with caught(found, name), wire(alter if rank == 1 else lambda words: None):
            loss(model, rank, 1).backward()
        found[f"{name}, inf"] = bool(torch.isinf(gradient(model)).all())
        with caught(found, f"{name}, next"):
            loss(model, rank, 1).backward()

    def without_masks(state: MaskingState) -> None:
        taken = state._sums.store.take
        state._sums.store.take = lambda call: np.zeros_like(taken(call))

    def next_call(state: MaskingState) -> None:
        state._calls += 1

    def other_mean(state: MaskingState) -> None:
        state.bound.summed(100.0)

    def lies(words: torch.Tensor) -> None:
        words[-1] += 1

    play("nothing", lambda state: None)
    play("no masks", without_masks)
    play("check word", lambda state: None, lies)
    play("call number", next_call)
    play("another mean", other_mean)
    return found


def refusals(rank: int) -> Found:
    """Every setting that is refused, by name."""
    found: Found = {}
    batch_norm = nn.Sequential(nn.Linear(20, 5), nn.BatchNorm1d(5))
    shown = DistributedDataParallel(copy.deepcopy(batch_norm))
    quiet = DistributedDataParallel(copy.deepcopy(batch_norm), forward_sync_buffers=False)
    unused = DistributedDataParallel(network(), find_unused_parameters=True)
    static = DistributedDataParallel(network(), static_graph=True)
    sparse = nn.Sequential(nn.EmbeddingBag(9, 20, sparse=True), nn.Linear(20, 5))
    synced = DistributedDataParallel(copy.deepcopy(batch_norm), forward_sync_buffers=False)
    synced.module = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(batch_norm))
    for name, model in {
        "buffers": shown, "unused": unused, "static": static, "synced": synced, "module": network(),
        "sparse": DistributedDataParallel(sparse),
    }.items():  # fmt: skip
        with caught(found, name):
            MaskingState(model, bound=1.0)
    with caught(found, "quiet"):
        MaskingState(quiet, bound=1.0)
    pair = dist.new_group([0, 1])
    if rank < 2:
        with caught(found, "pair"):
            MaskingState(group=pair, bound=1.0)
    model, state = protected(network())
    with caught(found, "join"), model.join():
        loss(model, rank, 0).backward()
    for name in ("left out", "a tensor", "frozen"):
        module = _LeftOut(torch.Tensor.clone if name == "a tensor" else _Scores)
        module.first.requires_grad_(name != "frozen")
        model, state = protected(module)
        loss(model, rank, 0).backward()  # of all parameters: afterwards there are several buckets
        module.used = False
        with caught(found, f"head {name}"):
            loss(model, rank, 1).backward()
    for name, call in {"pickled": pickle.dumps, "copied": copy.deepcopy}.items():
        with caught(found, name):
            call(state)
    for name, options in {"ring": {"ring": 16}, "bound": {"bound": -1.0}, "headroom": {"headroom": 0.5}}.items():
        with caught(found, name):
            MaskingState(**{"bound": 1.0} | options)
    with caught(found, "settings"):
        MaskingState(bound=1.0 + (rank == 2))
    plain = DistributedDataParallel(network())
    plain.register_comm_hook(None, securefed.torch.masked_allreduce)
    with caught(found, "no state"):
        loss(plain, rank, 0).backward()
    return found


class _Scores:
    """An output in which the state does not find the tensor."""

    def __init__(self, scores: torch.Tensor) -> None:
        self.scores = scores

    def float(self) -> torch.Tensor:
        return self.scores.float()


class _LeftOut(nn.Module):
    """A network whose first layer may be left out; its gradient travels in the last bucket."""

    def __init__(self, output: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.first, self.rest, self.output, self.used = nn.Linear(20, 20), network(), output, True

    def forward(self, x: torch.Tensor) -> Any:
        return self.output(self.rest(self.first(x) if self.used else x))


def lost(rank: int) -> Found:
    """The last rank ends after two steps; what the others' next step does."""
    found: Found = {}
    model, _ = protected(network())
    for step in range(2):
        model.zero_grad()
        loss(model, rank, step).backward()
    if rank < dist.get_world_size() - 1:
        with caught(found, "step"):
            loss(model, rank, 2).backward()
    return found


def shared_identities(rank: int) -> Identities:
    """The same identities on all ranks, for tests alone: a rank of a real run has its own private key only."""
    every = Identities.generate(3)
    keys: list[Any] = [[every.public, every.own] if rank == 0 else None]
    dist.broadcast_object_list(keys)
    return Identities(*keys[0])


def long_parity(rank: int) -> Found:
    """Many steps on three ranks."""
    return {f"parity/{name}": value for name, value in parity(rank, 200).items()}


def together(rank: int) -> Found:
    """All that needs three ranks and no failure, in one start of the processes."""
    every = shared_identities(rank)
    signed = MaskingState(bound=1.0, identities=Identities(every.public, {rank: every.own[rank]}))
    found = {"signed": signed.fingerprint}
    parts = {
        "parity": lambda rank: parity(rank, 20),
        "variants": variants,
        "overflow": overflow,
        "refusals": refusals,
        "page": page,
    }
    for part, play in parts.items():
        found |= {f"{part}/{name}": value for name, value in play(rank).items()}
    return found


def four(rank: int) -> Found:
    """All that needs four ranks."""
    found = {f"traffic/{name}": value for name, value in traffic(rank).items()}
    found |= {f"deviations/{name}": value for name, value in deviations(rank).items()}
    found |= {f"parity/{name}": value for name, value in parity(rank, 5).items()}
    return found | {f"lost/{name}": value for name, value in lost(rank).items()}  # last, as a rank ends in it


def page(rank: int) -> Found:
    """The loop, the identities and the sum of docs/torch.md."""
    text = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    loop, signed, total, _ = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    net = network()
    before = [value.detach().clone() for value in net.parameters()]
    names: dict[str, Any] = {
        "DistributedDataParallel": DistributedDataParallel,
        "network": net,
        "batches": [batch(rank, step) for step in range(3)],
        "optimizer": torch.optim.SGD(net.parameters(), lr=0.1),
        "loss_function": nn.functional.cross_entropy,
    }
    exec(loop, names)  # noqa: S102 - our own page
    moved = any((value != old).any() for value, old in zip(net.parameters(), before, strict=True))
    names["tensor"] = torch.ones(2)
    exec(total, names)  # noqa: S102
    every = shared_identities(rank)
    names |= {f"public_{peer}": every.public[peer] for peer in range(3)} | {"rank": rank}
    kept = {rank: every.own[rank]}
    exec(signed.replace("key = new_identity()", f"key = {kept[rank]!r}"), names)  # noqa: S102
    return {"moved": bool(moved), "total": names["total"].numpy(), "signed": len(names["state"].fingerprint) == 49}
