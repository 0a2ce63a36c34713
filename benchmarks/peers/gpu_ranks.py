"""Masked all-reduce for `python -m benchmarks gpu`: three ranks on one processor or one card, and one rank of NCCL."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import securefed.torch
from benchmarks.rows import Row, row
from securefed.torch import MaskingState, _state
from securefed.torch._device_sums import DeviceSums
from securefed.torch._masking import Call, RankMasks, planned
from securefed.torch._sums import MaskedSums

RANKS, TURNS, UNCOUNTED, STEPS = 3, 9, 2, 200
WAYS = {"aes-128-ctr": "MaskedSums", "chacha20": "ChaChaSums", "chacha20, on its device": "DeviceSums"}
"""By name in the table, the class that makes the masks."""


class ChaChaSums(MaskedSums):
    """Masks of ChaCha20 that NumPy makes ahead in a thread, as those of AES."""

    stream = "chacha20"


def _state_of(kind: str, model: nn.Module | None, device: str) -> MaskingState:
    """Make a state whose sums are of this class."""
    made = {"MaskedSums": MaskedSums, "ChaChaSums": ChaChaSums, "DeviceSums": DeviceSums}[kind]
    usual = _state.sums_for
    _state.sums_for = made
    try:
        return MaskingState(model, bound=1.0, device=device)
    finally:
        _state.sums_for = usual


def sum_rows(device: str, sizes: Sequence[int]) -> Iterator[Row]:
    """Time bare sums over three gloo ranks, by each way to make masks, beside the plain all-reduce."""
    found = _run(_sums, (device, tuple(sizes)))
    for size in sizes:
        for way in WAYS:
            ours, plain = found[f"{way} {size}"].T
            target = {"target": "<= 1.2 times plain", "met": bool(median(ours) <= 1.2 * median(plain))}
            judged = target if device == "cuda" and way.endswith("device") and size == 10**8 else {}
            yield row(
                "one sum over three ranks", f"{size:.0e} float32 on {device}, {way}", list(ours), "ms",
                peer=float(median(plain)), peer_name="torch, in the clear", **judged,
            )  # fmt: skip


def training_rows() -> Iterator[Row]:
    """Time training steps of ResNet-18 on the card, and compare gradients over the steps with the plan."""
    yield from sum_rows("cuda", (10**7, 10**8))
    found = _run(_training, ())
    ours, plain = found["steps"].T
    yield row(
        "training step of ResNet-18", "batch 64 of 32 x 32, 3 ranks on one card, gloo", list(ours), "ms",
        peer=float(median(plain)), peer_name="torch, in the clear", target="<= 1.1 times plain",
        met=bool(median(ours) <= 1.1 * median(plain)),
    )  # fmt: skip
    worst = float(found["ratio"])
    yield row(
        "largest difference of a mean gradient", f"{STEPS} steps", [worst], "x the plan", target="<= 1", met=worst <= 1
    )


def nccl_rows() -> Iterator[Row]:
    """Sum on one rank of NCCL: the words travel as integers, and open to the rank's own values."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        sums, values = DeviceSums(None, torch.device("cuda")), torch.rand(10**6, device="cuda")
        sums.use(RankMasks(b"benchmark", 0, {}, bytes(32), "chacha20"))
        plan = planned(1.0, 32, RANKS)
        call = Call("own", 0, values.numel(), 32, plan.step)
        (opened,) = sums.open([sums.start(call, values, 1.0)])
        wrong = (opened.words.double() * plan.step - values.double()).abs().max().item() / plan.step
        dist.destroy_process_group()
    right = {"target": "<= 1/2", "met": wrong <= 0.5}
    yield row("NCCL, one rank: largest error", "1e+06 float32", [wrong], "x the step", **right)


def _run(work: Callable[..., dict[str, np.ndarray]], arguments: tuple[object, ...]) -> dict[str, np.ndarray]:
    """Run a function on three gloo ranks; return what rank 0 found."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_process, (folder, work, arguments), RANKS)
        return dict(np.load(Path(folder) / "found.npz"))


def _process(rank: int, folder: str, work: Callable[..., dict[str, np.ndarray]], arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    found = work(*arguments)
    if rank == 0:
        np.savez(Path(folder) / "found.npz", **found)
    dist.barrier()
    dist.destroy_process_group()


def _sums(device: str, sizes: Sequence[int]) -> dict[str, np.ndarray]:
    """Milliseconds of each turn's sum, masked and plain, by way and size."""
    found = {}
    for way, kind in WAYS.items():
        state = _state_of(kind, None, device)
        for size in sizes:
            values = torch.zeros(size, device=device)
            found[f"{way} {size}"] = _turns(
                lambda v=values, s=state: securefed.torch.secure_all_reduce(v, s, bound=1.0),
                lambda v=values: dist.all_reduce(v),
            )
    return found


def _training() -> dict[str, np.ndarray]:
    """Milliseconds of each turn's step, masked and plain, and the largest difference of gradients over the plan's."""
    models = [DistributedDataParallel(resnet18().cuda(), device_ids=[0], broadcast_buffers=False) for _ in range(2)]
    state = MaskingState(models[0], bound=1.0)
    models[0].register_comm_hook(state, securefed.torch.masked_allreduce)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    generator = torch.Generator("cuda").manual_seed(dist.get_rank())
    x = torch.randn(64, 3, 32, 32, device="cuda", generator=generator)
    y = torch.randint(0, 10, (64,), device="cuda", generator=generator)

    def step(which: int) -> None:
        optimizers[which].zero_grad()
        nn.functional.cross_entropy(models[which](x), y).backward()
        optimizers[which].step()

    times = _turns(lambda: step(0), lambda: step(1))
    return {"steps": times, "ratio": np.array(_largest_ratio(models, state, optimizers, x, y))}


def _largest_ratio(
    models: Sequence[nn.Module], state: MaskingState, optimizers: Sequence[torch.optim.Optimizer],
    x: torch.Tensor, y: torch.Tensor,
) -> float:  # fmt: skip
    """Mask the plain model's own gradients, of every step, and compare the mean with the plain one's."""
    worst = 0.0
    for step in range(STEPS):
        for model in models:
            model.zero_grad()
        models[0].load_state_dict(models[1].state_dict())
        local = nn.functional.cross_entropy(models[1].module(x + 0.01 * step), y)  # no reduction: rank's own gradient
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(local, list(models[1].module.parameters()))])
        bound = float(gradient.abs().max())
        together = torch.tensor(bound)
        dist.all_reduce(together, op=dist.ReduceOp.MAX)
        plain, masked = gradient.double().clone(), gradient.double().clone()
        dist.all_reduce(plain)
        securefed.torch.secure_all_reduce(masked, state, bound=float(together))
        plan = planned(float(together), 32, RANKS)
        worst = max(worst, float((masked - plain).abs().max()) / (RANKS * plan.step / 2 * (1 + 1e-6)))
        nn.functional.cross_entropy(models[1](x), y).backward()
        optimizers[1].step()
    return worst


def _turns(ours: Callable[[], object], plain: Callable[[], object]) -> np.ndarray:
    times = [[_ms(ours), _ms(plain)] for _ in range(TURNS)]
    return np.array(times[UNCOUNTED:])


def _ms(call: Callable[[], object]) -> float:
    dist.barrier()
    start = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    dist.barrier()
    return (time.perf_counter() - start) * 1e3


class _Block(nn.Module):
    """A block of He et al. 2016: two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18() -> nn.Module:
    """Make ResNet-18 for pictures of 32 x 32 and 10 classes: 11.2 million parameters."""
    torch.manual_seed(0)
    blocks = [_Block(64, 64, 1), _Block(64, 64, 1)]
    for before, after in ((64, 128), (128, 256), (256, 512)):
        blocks += [_Block(before, after, 2), _Block(after, after, 1)]
    start = (nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    return nn.Sequential(*start, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
