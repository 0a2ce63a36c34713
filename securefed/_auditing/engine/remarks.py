"""Write the remarks beside a cell's verdict, such as the leak that would have been noticed, or how many runs leaked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from securefed._auditing.engine.column_scores import first_few
from securefed._auditing.engine.statistics import (
    EXPOSED_FROM,
    INCONCLUSIVE,
    NOT_DETECTED,
    PARTIAL_FROM,
    RECONSTRUCTED,
    SIGHTED,
    Interval,
    Verdict,
    reaches_far,
)


class Judged(Protocol):
    """The part of a cell (`results.Cell`) that remarks read."""

    @property
    def verdict(self) -> Verdict: ...
    @property
    def leakage(self) -> Interval: ...
    @property
    def null_leakage(self) -> Interval: ...
    @property
    def bound(self) -> str: ...
    @property
    def worse_than(self) -> str: ...
    @property
    def open(self) -> str: ...
    @property
    def without(self) -> str: ...
    @property
    def asked(self) -> int: ...
    @property
    def explained(self) -> float: ...
    @property
    def residual(self) -> float: ...
    @property
    def reconstructed(self) -> bool: ...
    @property
    def given_away(self) -> str: ...
    @property
    def highest(self) -> float: ...
    @property
    def part(self) -> str: ...
    @property
    def columns(self) -> Sequence[str]: ...


def remarks_on(cell: Judged) -> str:
    """Return the remarks on a cell in brackets, after a space; empty if there are none."""
    remarks = [cell.bound] if cell.bound else []
    if cell.verdict.word == NOT_DETECTED and not cell.bound:
        # `detectable`: the smallest leak that would have shown in 8 of 10 such audits; NaN for one seed
        power = f"it would have noticed a leak from {cell.verdict.detectable:.2f} on, of the kind that it looks for"
        remarks.append("one seed: no power" if math.isnan(cell.verdict.detectable) else power)
        if min(cell.leakage.mean, cell.null_leakage.high) >= PARTIAL_FROM:
            remarks.append(f"guessing gives up to {cell.null_leakage.high:.2f}")
    if cell.worse_than:
        remarks.append(cell.worse_than)
    if cell.open:
        remarks.append(f"the rest may be known: the messages leave open {cell.open}")
    if cell.without:
        remarks.append(f"not tested by the strongest attack, {cell.without}, which did not run")
    scattered = not cell.without or not cell.verdict.detectable < 1
    if cell.verdict.word == INCONCLUSIVE and scattered and not cell.explained < SIGHTED and cell.leakage.seeds > 1:
        far = reaches_far(cell.leakage, cell.null_leakage) and cell.verdict.detectable < 1
        scatter = "its results, or those of chance, scatter too much for any leak to be noticed"
        remarks.append("its interval reaches far beyond chance, so that its silence says nothing" if far else scatter)
    if cell.leakage.seeds < cell.asked:
        remarks.append(f"{cell.leakage.seeds} of {cell.asked} seeds")
        if cell.leakage.seeds == 1 and cell.verdict.word == INCONCLUSIVE:
            remarks[-1] += ", and one alone tells nothing"
    if cell.explained < 1:
        remarks.append(f"explained {cell.explained:.0%} of the runs, residual {cell.residual:.1e}")
    if cell.reconstructed and cell.leakage.mean < RECONSTRUCTED:
        remarks.append(f"{cell.given_away} was reconstructed: {cell.highest:.2f}")
    elif cell.part:
        remarks.append(f"{cell.part} was read")
    if cell.columns and cell.leakage.mean < EXPOSED_FROM:
        remarks.append(f"read column by column: {first_few(cell.columns)}")
    return f" ({'; '.join(remarks)})" if remarks else ""
