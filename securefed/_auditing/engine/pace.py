"""Say how far a long task is and how long it will take: a line after five seconds, then one every fifteen.

The lines come at their times whether or not a part has ended, so that a task of few long parts is not silent. Commands
write them to standard error; functions of the library log them (logger `securefed.progress`, level INFO) where the
caller gives no `progress` of its own.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any, Final, TypeVar

from securefed._auditing.engine.time_left import PlannedParts

FIRST: Final = 5.0
"""Seconds until the first line with an estimate."""
EVERY: Final = 15.0
"""Seconds between two later lines."""
_TICK: Final = 0.5
"""Seconds between two looks at the clock."""
LOGGER: Final = logging.getLogger("securefed.progress")
Progress = Callable[[int, int | None, str], None]
"""Called with the number of finished parts, that of all (`None` where it is not known), and what was finished last."""
Function = TypeVar("Function", bound=Callable[..., Any])


class Pace:
    """The progress of one task, and the lines that are due.

    Args:
        name: the name of the task, at the start of every line.
        clock: returns seconds.
        parallel: most parts that run at once.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic, parallel: int | None = None) -> None:
        self._name, self._clock, self._parallel = name, clock, parallel or os.cpu_count() or 1
        self._started = clock()
        self._next = FIRST
        self._done, self._what = 0, "it starts"
        self._total: int | None = None
        self._plan: PlannedParts | None = None
        self._lock = Lock()

    def plan(self, kinds: Mapping[str, str], parallel: int) -> None:
        """Take note of the parts to come, so that the time left follows from the kinds of those that have ended.

        Args:
            kinds: by part (what `note` is told of it) its kind, in the order in which they begin.
            parallel: most parts that run at once.
        """
        with self._lock:
            self._plan = PlannedParts(kinds, parallel, self._clock())

    def note(self, done: int, total: int | None, what: str) -> None:
        """Take note of finished parts."""
        with self._lock:
            self._done, self._total, self._what = done, total, what
            if self._plan is not None:
                self._plan.ended(what, self._clock())

    def due(self) -> str | None:
        """Return the line that is due by now, once; `None` where none is."""
        with self._lock:
            spent = self._clock() - self._started
            if spent < self._next:
                return None
            self._next = FIRST + EVERY * (1 + (spent - FIRST) // EVERY)
            return self._line(spent)

    def line(self) -> str:
        """Return the line of this moment."""
        return self._line(self._clock() - self._started)

    def left(self) -> str:
        """Say how long the rest takes; empty where nothing is known."""
        return self._left(self._clock() - self._started)

    def _line(self, spent: float) -> str:
        of = f" of {self._total}" if self._total else ""
        left = self._left(spent)
        return f"{self._name}: {self._done}{of} after {spent:.0f} s{left and f', {left}'} ({self._what})"

    def _left(self, spent: float) -> str:
        """Extrapolate from the parts that have ended; before that, from how long the first ones have run."""
        if not self._total or spent < FIRST:
            return ""
        if self._plan is not None:
            seconds, known = self._plan.left(self._clock())
            return f"{'about' if known else 'at least'} {seconds:.0f} s left"
        if self._done:
            return f"about {spent * (self._total - self._done) / self._done:.0f} s left"
        most = min(self._parallel, self._total)
        return f"at least {spent * (self._total / most - 1):.0f} s left" if self._total > most else ""


@dataclass(frozen=True)
class Noted:
    """A `Progress` that a pace takes note of, and that can be told the parts to come.

    Attributes:
        pace: the pace.
        shown: called after the pace has taken note.
    """

    pace: Pace
    shown: Progress

    def __call__(self, done: int, total: int | None, what: str) -> None:
        """Take note of finished parts."""
        self.pace.note(done, total, what)
        self.shown(done, total, what)


def announce(progress: Callable[[int, int, str], None] | None, kinds: Mapping[str, str], parallel: int) -> None:
    """Tell what notes progress which parts come, and of which kind each is; a caller's own function is told nothing."""
    if isinstance(progress, Noted):
        progress.pace.plan(kinds, parallel)


@contextmanager
def ticking(pace: Pace, write: Callable[[str], None]) -> Iterator[Noted]:
    """Write every line of a pace when it is due, until the block ends.

    Args:
        pace: the pace.
        write: writes a line; called in a thread of its own too.

    Yields:
        What notes progress.
    """
    ended = Event()

    def show() -> None:
        if (line := pace.due()) is not None:
            write(line)

    def tick() -> None:
        while not ended.wait(_TICK):
            show()

    thread = Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield Noted(pace, lambda done, total, what: show())
    finally:
        ended.set()
        thread.join()


@contextmanager
def logged_lines(name: str) -> Iterator[Noted]:
    """Log the lines of a task until the block ends; yield what notes progress."""
    with ticking(Pace(name), lambda line: LOGGER.info("%s", line)) as note:
        yield note


def logged(function: Function) -> Function:
    """Make a function log its progress where its caller gives no `progress`."""

    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if named.get("progress") is not None:
            return function(*arguments, **named)
        with logged_lines(function.__name__) as note:
            return function(*arguments, **(named | {"progress": note}))

    return wrapped  # type: ignore[return-value]
