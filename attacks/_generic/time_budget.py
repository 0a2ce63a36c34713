"""Limit the time that the attacks on one view take together, on a clock that tests replace by one that counts work.

The audits of a user's own algorithm and of a training loop make one `TimeBudget` for each view that they attack.
Attacks ask it before each client step (`client_replay`), which may be slow. All of them read `clock()`: the wall's, as
a client step may also be slow because it waits. Under a `StepClock` time passes by client steps and by evaluations of a
search alone, so that the same audit does the same work on any machine and under any load.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from securefed.errors import TranscriptError


class Clock(Protocol):
    """The clock of budgets."""

    def now(self) -> float:
        """Return the time in seconds, from any start."""

    def count(self, rows: int) -> None:
        """Note that a client step was run, or a search's objective evaluated, on so many rows."""


class WallClock:
    """Time as it passes; work that is counted does not move it."""

    def now(self) -> float:
        """Return the seconds of `time.monotonic`."""
        return time.monotonic()

    def count(self, rows: int) -> None:
        """Do nothing: the work took its time."""


class StepClock:
    """Time that work alone moves: a budget on this clock is one of steps.

    Args:
        step: seconds of a client step or an evaluation.
        row: seconds of each row, on top.
    """

    def __init__(self, step: float = 1e-3, row: float = 1e-4) -> None:
        self.step, self.row, self._seconds = step, row, 0.0

    def now(self) -> float:
        """Return the seconds of all work that was counted."""
        return self._seconds

    def count(self, rows: int) -> None:
        """Let the time of one step on so many rows pass."""
        self._seconds += self.step + rows * self.row


_CLOCK: ContextVar[Clock] = ContextVar("clock", default=WallClock())  # noqa: B039 # it holds no state


def clock() -> Clock:
    """Return the clock of this thread's budgets."""
    return _CLOCK.get()


@contextmanager
def on_clock(replacement: Clock) -> Iterator[Clock]:
    """Measure budgets by another clock in a `with` block, in this thread."""
    token = _CLOCK.set(replacement)
    try:
        yield replacement
    finally:
        _CLOCK.reset(token)


@dataclass(frozen=True)
class TimeBudget:
    """Time that an attack may take, on the clock of `clock()`.

    Attributes:
        seconds: total time in seconds.
        until: time at which it ends.
    """

    seconds: float
    until: float

    @classmethod
    def of(cls, seconds: float) -> TimeBudget:
        """Start a budget of so many seconds now."""
        return cls(seconds, clock().now() + seconds)

    @property
    def remaining(self) -> float:
        """Seconds that remain; negative if the budget is spent."""
        return self.until - clock().now()

    def check(self) -> None:
        """Check that there is time left.

        Raises:
            TranscriptError: the budget is spent.
        """
        if self.remaining < 0:
            raise TranscriptError(
                f"its {self.seconds:.0f} s were not enough for its client steps; allow more `seconds`, or audit fewer "
                "or smaller clients"
            )
