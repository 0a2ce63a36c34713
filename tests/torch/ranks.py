"""Run a function on several gloo processes, and several ranks in threads of this one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from filelock import FileLock
from torch import multiprocessing

from securefed import Array
from securefed.defenses import Identities
from securefed.torch import _agreement
from securefed.torch._agreement import AgreedSettings, Agreement

Found = dict[str, Any]
Worker = Callable[[int], Found]


def spawn(worker: Worker, ranks: int, folder: Path, *, leaves: bool = False) -> list[Found]:
    """What `worker(rank)` returned on each of `ranks` gloo processes; `leaves`: a rank may end early.

    A process that ends badly after it wrote its result (gloo may abort where a peer is gone) has done its work.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # a server of forks imports torch and the workers once for all ranks
    get_context("forkserver").set_forkserver_preload([worker.__module__])
    started = multiprocessing.start_processes(
        _process, (worker, ranks, str(folder), leaves), ranks, join=False, start_method="forkserver"
    )
    for process in started.processes:
        process.join(240)
    if not all((folder / f"{rank}.npz").exists() for rank in range(ranks)):
        started.join(1)  # raises what went wrong
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(ranks)]


def spawn_once(
    name: str, worker: Worker, ranks: int, factory: pytest.TempPathFactory, *, leaves: bool = False
) -> list[Found]:
    """`spawn`, once for all workers of pytest that ask for it under this name: the first one runs it."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with FileLock(shared / f"{name}.lock"):
        results = [shared / name / f"{rank}.npz" for rank in range(ranks)]
        if all(path.exists() for path in results):
            return [dict(np.load(path)) for path in results]
        return spawn(worker, ranks, shared / name, leaves=leaves)


def _process(rank: int, worker: Worker, ranks: int, folder: str, leaves: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    np.savez(Path(folder) / f"{rank}.npz", **worker(rank))
    if not leaves:
        dist.barrier()
        dist.destroy_process_group()


@contextmanager
def caught(found: Found, name: str) -> Iterator[None]:
    """Keep the type and text of the error that the block raises; `none` where it raises none."""
    found[name] = "none"
    try:
        yield
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"


class ThreadSum:
    """An all-reduce between threads, one for each rank; `tamper(rank, call, total)` may alter what one of them sees."""

    def __init__(self, ranks: int, tamper: Callable[[int, int, Array], Array] | None = None) -> None:
        self._tamper, self._changed = tamper, threading.Condition()
        self._given: list[list[Array]] = [[] for _ in range(ranks)]
        self._gone: set[int] = set()

    def __call__(self, rank: int, array: Array) -> Array:
        call = len(self._given[rank])
        with self._changed:
            self._given[rank].append(array)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._complete(call) or self._lost(call))
            if not self._complete(call):
                raise ConnectionError("a rank is gone")
        total = np.sum([given[call] for given in self._given], axis=0, dtype=array.dtype)
        return total if self._tamper is None else self._tamper(rank, call, total)

    def leave(self, rank: int) -> None:
        with self._changed:
            self._gone.add(rank)
            self._changed.notify_all()

    def _complete(self, call: int) -> bool:
        return all(len(given) > call for given in self._given)

    def _lost(self, call: int) -> bool:
        return any(len(self._given[rank]) <= call for rank in self._gone)


def agreements(
    ranks: int,
    settings: Callable[[int], AgreedSettings] = lambda rank: AgreedSettings(32, 1.0, 64.0, 0.0, False),
    identities: Callable[[int], Identities | None] = lambda rank: None,
    tamper: Callable[[int, int, Array], Array] | None = None,
    module: Callable[[int], Any] = lambda rank: _agreement,
) -> list[Agreement | Exception]:
    """Agree on keys between ranks; return each rank's agreement or error. `module(rank)` is the code that it runs."""
    add, found = ThreadSum(ranks, tamper), [RuntimeError("not run")] * ranks

    def one(rank: int) -> None:
        try:
            found[rank] = module(rank).agree_on_keys(
                rank, ranks, settings(rank), identities(rank), lambda array: add(rank, array)
            )
        except Exception as error:
            found[rank] = error
            add.leave(rank)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def byte_statistic(words: Array) -> float:
    """Chi-square of the bytes against uniform bytes, in standard deviations above its mean (255 degrees of freedom)."""
    counts = np.bincount(np.ascontiguousarray(words).view(np.uint8).reshape(-1), minlength=256)
    expected = counts.sum() / 256
    return float((((counts - expected) ** 2 / expected).sum() - 255) / np.sqrt(2 * 255))
