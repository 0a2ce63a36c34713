"""Results that each part of a nightly run returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One part of a night.

    Attributes:
        name: of the part.
        passed: whether nothing failed. Surviving mutants do not fail a night; they are listed.
        seconds: wall time.
        figures: what was counted, in words.
        notes: lines for the page, such as the mutants that survived, or the end of a failing log.
    """

    name: str
    passed: bool
    seconds: float
    figures: str
    notes: tuple[str, ...] = ()
