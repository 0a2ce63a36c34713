"""Report the progress of a long command: a bar on a terminal, a line now and then where the output goes to a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Report = Callable[[int, int | None, str], None]
"""Called with the number of finished parts, that of all (`None` where it is not known), and what was finished last."""

INTERVAL: Final = 15.0
"""Seconds between two lines in a file."""


@contextmanager
def progress(name: str, console: Console, *, silent: bool = False) -> Iterator[Report]:
    """Show the progress of a command until the block ends.

    Args:
        name: the name of the command, shown until a part has finished.
        console: standard error, in general. On a terminal a bar is drawn, and removed at the end.
        silent: show nothing.
    """
    if silent:
        yield lambda done, total, what: None
    elif console.is_terminal:
        with _bar(console) as bar:
            task = bar.add_task(name, total=None)
            yield lambda done, total, what: bar.update(task, completed=done, total=total, description=escape(what))
    else:
        yield _lines(name, console)


def _bar(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
    )


def _lines(name: str, console: Console) -> Report:
    """Return a function that prints a line at the start and at most every `INTERVAL` seconds, with the time left."""
    started = shown = time.monotonic()

    def show(done: int, total: int | None, what: str) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < INTERVAL and done:
            return
        shown, spent = now, now - started
        left = f", about {spent * (total - done) / done:.0f} s left" if total and done else ""
        of = f" of {total}" if total else ""
        console.print(
            f"{name}: {done}{of} after {spent:.0f} s{left} ({what})", soft_wrap=True, highlight=False, markup=False
        )

    return show
