"""Run the tasks of an audit, each seed of each subject, or of an advice: here in order, or in worker processes."""

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
"""A subject of the audit, and the seed to run; of an advice the question, and the number of a setting."""


def audit_seed(task: Task) -> SeedResult:
    """Run and attack one seed of a subject."""
    subject: Subject = task[0]
    return subject.audit_seed(task[1])


def name_of(task: Task) -> str:
    """Name a task by its subject and its seed."""
    return f"{task[0].name}, seed {task[1]}"


def run_tasks(
    tasks: Sequence[Task],
    work: Callable[[Task], Any],
    progress: Progress | None,
    *,
    workers: int | None = None,
    named: Callable[[Task], str] = name_of,
    kind: Callable[[Task], str] = lambda task: str(task[0].name),
    kept: Unfinished | None = None,
    order: Callable[[Task], int] = lambda task: 0,
) -> list[Any]:
    """Run all tasks but those whose results are kept.

    Args:
        tasks: the tasks to run.
        work: runs a task; with workers a function of a module.
        progress: told of every task that ends.
        workers: number of processes; `None` runs the tasks in order, in this process and with all of its threads.
        named: names a task that has ended; each has a name of its own.
        kind: names the kind of a task; tasks of one kind take about as long.
        kept: keeps the results of seeds of subjects until all are there; `None` for nothing.
        order: key by which tasks begin; by default they begin in their order.

    Returns:
        The results, in the order of the tasks.
    """
    done: dict[str, Any] = {}
    for task in tasks:
        if kept is not None and (known := kept.find(task[0].name, task[1])) is not None:
            done[named(task)] = known

    def finished(task: Task, result: Any) -> None:
        done[named(task)] = result
        if kept is not None:
            kept.keep(task[0].name, task[1], result)
        if progress is not None:
            progress(len(done), len(tasks), named(task))

    left = sorted((task for task in tasks if named(task) not in done), key=order)
    if workers is not None:
        announce(progress, {named(task): kind(task) for task in left}, workers)
    if progress is not None and not done:
        progress(0, len(tasks), "the first one runs")
    if workers is None:
        for task in left:
            finished(task, work(task))
    else:
        run_all(left, workers, work, finished)
    if kept is not None:
        kept.clear()
    return [done[named(task)] for task in tasks]
