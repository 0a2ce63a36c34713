"""An audit's worker processes: forked from a server that has imported everything, before any thread was started."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import TypeVar

from threadpoolctl import threadpool_limits

A = TypeVar("A")
T = TypeVar("T")
_PRELOADED = ["securefed._auditing.runs", "sklearn.datasets"]


def warm_up() -> None:
    """Start the server, which then imports while the caller does: two seconds that need not be waited for twice."""
    _context()
    forkserver.ensure_running()


def run_all(tasks: Sequence[A], workers: int, work: Callable[[A], T], finished: Callable[[A, T], None]) -> None:
    """`finished(task, work(task))` for each task, in the order they end; in this process where one is enough.

    Raises:
        BaseException: whatever a task raises; tasks that have not begun are dropped.
    """
    if workers == 1 or len(tasks) <= 1:
        _start_worker()
        for task in tasks:
            finished(task, work(task))
        return
    with ProcessPoolExecutor(workers, mp_context=_context(), initializer=_start_worker) as pool:
        futures = {pool.submit(work, task): task for task in tasks}
        try:
            for future in as_completed(futures):
                finished(futures[future], future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _start_worker() -> None:
    """One thread a process: tasks are small, and as many run at once as there are cores."""
    threadpool_limits(1)
