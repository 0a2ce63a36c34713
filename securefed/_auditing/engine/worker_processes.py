"""Run an audit's tasks, such as one seed of one algorithm, in worker processes.

The workers are forked from a fork server (`multiprocessing`'s start method `forkserver`): a process that has imported
everything and has started no thread, so that a worker starts at once and inherits no lock.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import TypeVar

from threadpoolctl import threadpool_limits

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")
_PRELOADED = ["securefed._auditing.registered.seed_run", "sklearn.datasets"]
"""Modules that the fork server imports; they import nearly all that a task needs."""

_HERE = threading.RLock()
"""Held by the thread whose tasks run in this process: the limit on threads is the whole process's."""


def warm_up() -> None:
    """Start the fork server, so that it imports while the caller does; both take about two seconds."""
    _context()
    forkserver.ensure_running()


def run_all(
    tasks: Sequence[Task], workers: int, work: Callable[[Task], Outcome], finished: Callable[[Task, Outcome], None]
) -> None:
    """Call `finished(task, work(task))` for each task, in the order in which they end.

    Args:
        tasks: arguments of `work`.
        workers: number of processes; with one worker or one task everything runs in this process, which is limited to
            one thread, as a worker is, until the call ends; a second thread's tasks wait for that.
        work: a function of a module, which the workers import.
        finished: called in this process.

    Raises:
        BaseException: a task raised it; tasks that have not begun are dropped.
    """
    if workers == 1 or len(tasks) <= 1:
        with _HERE, threadpool_limits(1):
            for task in tasks:
                finished(task, work(task))
        return
    # one thread for each worker: tasks are small, and as many run at once as there are cores
    with ProcessPoolExecutor(workers, mp_context=_context(), initializer=threadpool_limits, initargs=(1,)) as pool:
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
