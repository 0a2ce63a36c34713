"""Run an audit's tasks, such as one seed of one algorithm, in worker processes.

The workers are forked from a fork server (`multiprocessing`'s start method `forkserver`): a process that has imported
everything and has started no thread, so that a worker starts at once and inherits no lock. Workers do not run the
caller's program again, unless a task needs a class of it (`caller_program`). Where workers cannot run, or one ends
early, this process runs what is left, and says so in the log.
"""

from __future__ import annotations

import logging
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pickle import PicklingError
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from securefed._auditing.engine.caller_program import MAIN, main_is_importable, main_module_hidden, needed_modules

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")
_LOG = logging.getLogger("securefed.audit")
_NO_MAIN = (
    "they need classes of the main program, which other processes cannot import; put the classes into a module, or "
    'save the program as a file whose calls stand under `if __name__ == "__main__":`'
)
_PRELOADED = ["securefed._auditing.registered.seed_run", "sklearn.datasets"]
"""Modules that the fork server imports; they import nearly all that a task needs."""

_HERE = threading.RLock()
"""Held by the thread whose tasks run in this process: the limit on threads is the whole process's."""


def warm_up() -> None:
    """Start the fork server, so that it imports while the caller does; both take about two seconds."""
    _preloading(multiprocessing.get_context("forkserver"))
    forkserver.ensure_running()


def run_all(
    tasks: Sequence[Task], workers: int, work: Callable[[Task], Outcome], finished: Callable[[Task, Outcome], None]
) -> None:
    """Call `finished(task, work(task))` for each task, in the order in which they end.

    Args:
        tasks: arguments of `work`.
        workers: number of processes; with one worker or one task everything runs in this process, which is limited to
            one thread, as a worker is, until the call ends; a second thread's tasks wait for that. So do tasks that no
            worker can run, and those that are left when a worker ends early.
        work: a function of a module, which the workers import.
        finished: called in this process.

    Raises:
        BaseException: a task raised it; tasks that have not begun are dropped.
    """
    left = list(tasks)
    if workers > 1 and len(left) > 1:
        left = _run_in_workers(left, workers, work, finished)
    with _HERE, threadpool_limits(1):
        for task in left:
            finished(task, work(task))


def _run_in_workers(
    tasks: list[Task], workers: int, work: Callable[[Task], Outcome], finished: Callable[[Task, Outcome], None]
) -> list[Task]:
    """Run tasks in processes; return those that are left for this one."""
    reason, modules = "", tuple[str, ...]()
    try:
        modules = needed_modules(tasks, work)
    except (PicklingError, AttributeError, TypeError) as error:
        reason = f"a setting cannot be sent to another process ({error})"
    whole = MAIN in modules
    if whole and not main_is_importable():
        reason = _NO_MAIN
    if reason:
        _LOG.warning("all parts run in this process, one after the other: %s", reason)
        return tasks
    context = _preloading(multiprocessing.get_context("forkserver") if whole else _WithoutMainContext())
    imported = () if whole else modules
    left: list[Task] = []
    # one thread for each worker: tasks are small, and as many run at once as there are cores
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(imported,)) as pool:
        futures: dict[Future[Outcome], Task] = {}
        try:
            for task in tasks:
                _submit(pool, work, task, futures, left)
            for future in as_completed(futures):
                if isinstance(future.exception(), BrokenProcessPool):
                    left.append(futures[future])
                else:
                    finished(futures[future], future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if left:
        _LOG.warning(
            "a worker process ended early; the results of %d parts are kept, and this process runs the other %d",
            len(tasks) - len(left),
            len(left),
        )
    return [task for task in tasks if any(task is other for other in left)]


def _submit(
    pool: ProcessPoolExecutor,
    work: Callable[[Task], Outcome],
    task: Task,
    futures: dict[Future[Outcome], Task],
    left: list[Task],
) -> None:
    """Hand a task to the workers; a pool that broke in the meantime takes none, and the task is left."""
    try:
        futures[pool.submit(work, task)] = task
    except BrokenProcessPool:
        left.append(task)


def _begin(modules: Sequence[str]) -> None:
    """Prepare a worker: one thread, and the modules that register classes of the caller's."""
    threadpool_limits(1)
    for name in modules:
        import_module(name)


class _WithoutMain(ForkServerProcess):
    """A worker that does not run the caller's program."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 - the name that multiprocessing calls
        with main_module_hidden():
            return ForkServerProcess._Popen(process_obj)


class _WithoutMainContext(ForkServerContext):
    """The start method `forkserver` with such workers."""

    Process = _WithoutMain


def _preloading(context: ForkServerContext) -> ForkServerContext:
    context.set_forkserver_preload(_PRELOADED)
    return context
