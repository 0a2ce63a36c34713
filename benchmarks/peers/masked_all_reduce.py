"""Masked all-reduce beside the plain one: `python -m benchmarks.peers.masked_all_reduce`.

Three gloo processes on this machine, one thread each. Ours and plain torch take turns, and the medians of rank 0 are
compared: a whole training step (forward, backward with the reduction, optimiser) of the convolutional network of
McMahan et al. 2017 (two 5x5 convolutions of 32 and 64 channels, a dense layer of 512; 1,663,370 parameters), and one
bare sum. CPU time is that of all threads of rank 0.
Where there are fewer processors than processes, nothing that runs beside the network or the backward pass is free.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import securefed.torch
from benchmarks.rows import Row, row, show, write

RANKS, TURNS, UNCOUNTED = 3, 41, 5
BATCHES = (32, 10)
SIZES = (100_000, 1_000_000, 10_000_000)
LIMIT = 1.3
"""Largest time of a whole step, in units of a step of plain DistributedDataParallel."""

PEER = f"torch {torch.__version__.partition('+')[0]}, in the clear"


def main() -> None:
    """Measure and write `results/masked_all_reduce.json`."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_process, (folder,), RANKS)
        found = dict(np.load(Path(folder) / "times.npz"))
    rows = [*(r for batch in BATCHES for r in _step_rows(found, batch)), *(_sum_row(found, size) for size in SIZES)]
    path = write("masked_all_reduce", rows)
    show(rows)
    print(path)


def _step_rows(found: dict[str, np.ndarray], batch: int) -> Iterator[Row]:
    (ours, plain), (cpu, plain_cpu) = found[f"step {batch}"].T
    times = float(np.median(ours) / np.median(plain))
    setting = f"CNN of 1.66e+06 parameters, batch {batch}"
    yield row("CPU of a training step", setting, list(cpu), "ms", peer=median(plain_cpu), peer_name=PEER)
    yield row(
        "whole training step", setting, list(ours), "ms", peer=median(plain), peer_name=PEER,
        target=f"<= {LIMIT} times plain DDP", met=times <= LIMIT,
    )  # fmt: skip


def _sum_row(found: dict[str, np.ndarray], size: int) -> Row:
    ours, plain = found[f"sum {size}"][:, :, 0].T
    return row("one sum over all ranks", f"{size:.0e} parameters", list(ours), "ms", peer=median(plain), peer_name=PEER)


def _process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    found = {f"step {batch}": _steps(batch) for batch in BATCHES} | {f"sum {size}": _sums(size) for size in SIZES}
    if rank == 0:
        np.savez(Path(folder) / "times.npz", **found)
    dist.barrier()
    dist.destroy_process_group()


def _cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def _steps(batch: int) -> np.ndarray:
    """Milliseconds and CPU milliseconds of each turn's step: masked, plain."""
    masked, plain = DistributedDataParallel(_cnn()), DistributedDataParallel(_cnn())
    masked.register_comm_hook(securefed.torch.MaskingState(masked, bound=1.0), securefed.torch.masked_allreduce)
    x, y = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))

    def step(model: nn.Module) -> Callable[[], None]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

        def once() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        return once

    return _turns(step(masked), step(plain))


def _sums(size: int) -> np.ndarray:
    """Milliseconds and CPU milliseconds of each turn's sum: masked, plain."""
    state, values = securefed.torch.MaskingState(bound=1.0), torch.zeros(size)
    return _turns(lambda: securefed.torch.secure_all_reduce(values, state, bound=1.0), lambda: dist.all_reduce(values))


def _turns(ours: Callable[[], object], plain: Callable[[], object]) -> np.ndarray:
    times = [[_ms(ours), _ms(plain)] for _ in range(TURNS)]
    return np.array(times[UNCOUNTED:])


def _ms(call: Callable[[], object]) -> tuple[float, float]:
    dist.barrier()
    start, cpu = time.perf_counter(), time.process_time()
    call()
    cpu = time.process_time() - cpu
    dist.barrier()
    return (time.perf_counter() - start) * 1e3, cpu * 1e3


if __name__ == "__main__":
    main()
