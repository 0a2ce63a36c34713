"""Limit the wall-clock time that the attacks on one view take together.

The audits of a user's own algorithm and of a training loop make one `TimeBudget` for each view that they attack.
Attacks ask it before each client step (`client_replay`), which may be slow.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from securefed.errors import TranscriptError


@dataclass(frozen=True)
class TimeBudget:
    """Wall-clock time that an attack may take; a client step may also be slow because it waits.

    Attributes:
        seconds: total time in seconds.
        until: time at which it ends, on the clock of `time.monotonic`.
    """

    seconds: float
    until: float

    @classmethod
    def of(cls, seconds: float) -> TimeBudget:
        """Start a budget of so many seconds now."""
        return cls(seconds, time.monotonic() + seconds)

    @property
    def remaining(self) -> float:
        """Seconds that remain; negative if the budget is spent."""
        return self.until - time.monotonic()

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
