"""Run every seed of every subject of an audit: here one after the other, or in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from securefed._auditing.engine.audit_report import Subject
from securefed._auditing.engine.pace import announce
from securefed._auditing.engine.seed_result import SeedResult
from securefed._auditing.engine.unfinished_tasks import Unfinished
from securefed._auditing.engine.worker_processes import run_all

Progress = Callable[[int, int, str], None]
"""Called with (tasks done, tasks in all, name of the task just done)."""
Task = tuple[Any, int]
"""A subject of the audit, and the seed to run."""


def audit_seed(task: Task) -> SeedResult:
    """Run and attack one seed of a subject."""
    subject: Subject = task[0]
    return subject.audit_seed(task[1])


def run_tasks(
    tasks: Sequence[Task],
    work: Callable[[Task], Any],
    progress: Progress | None,
    *,
    workers: int | None = None,
    part: str = "",
    kept: Unfinished | None = None,
) -> list[Any]:
    """Run all tasks but those whose results are kept.

    Args:
        tasks: the tasks to run.
        work: runs a task; with workers a function of a module.
        progress: told of every task that ends.
        workers: number of processes; `None` runs the tasks in order, in this process and with all of its threads.
        part: the part of the audit, before the name of a task that is done.
        kept: keeps the results until all are there; `None` for nothing.

    Returns:
        The results, in the order of the tasks.
    """
    done: dict[tuple[str, int], Any] = {}
    for task in tasks:
        if kept is not None and (known := kept.find(*_key(task))) is not None:
            done[_key(task)] = known

    def finished(task: Task, result: Any) -> None:
        done[_key(task)] = result
        if kept is not None:
            kept.keep(*_key(task), result)
        if progress is not None:
            progress(len(done), len(tasks), named(task))

    def named(task: Task) -> str:
        return "{}{}, seed {}".format(part, *_key(task))

    left = [task for task in tasks if _key(task) not in done]
    if workers is not None:
        announce(progress, {named(task): task[0].name for task in left}, workers)
    if progress is not None and not done:
        progress(0, len(tasks), f"{part}the first one runs")
    if workers is None:
        for task in left:
            finished(task, work(task))
    else:
        run_all(left, workers, work, finished)
    if kept is not None:
        kept.clear()
    return [done[_key(task)] for task in tasks]


def _key(task: Task) -> tuple[str, int]:
    return task[0].name, task[1]
