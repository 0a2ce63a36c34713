"""A clock that a test sets by hand."""

from __future__ import annotations


class HandClock:
    """A clock of budgets; it stands still unless `seconds` are changed, or where `step` is given, at client steps."""

    def __init__(self, step: float = 0.0) -> None:
        self.seconds, self.step = 0.0, step

    def now(self) -> float:
        return self.seconds

    def count(self, rows: int) -> None:
        self.seconds += self.step
