"""Write the remarks beside a cell's verdict, such as the leak that would have been noticed, or how many runs leaked."""

from __future__ import annotations

import math
from typing import Protocol

from securefed._auditing.engine.cell_parts import Reach, Read, RunCounts
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
from securefed.attacks.views import SERVER_VIEW


class Judged(Protocol):
    """The part of a cell (`results.Cell`) that remarks read."""

    @property
    def verdict(self) -> Verdict: ...
    @property
    def leakage(self) -> Interval: ...
    @property
    def null_leakage(self) -> Interval: ...
    @property
    def secret(self) -> str: ...
    @property
    def view(self) -> str: ...
    @property
    def runs(self) -> RunCounts: ...
    @property
    def read(self) -> Read: ...
    @property
    def reach(self) -> Reach: ...
    @property
    def given_away(self) -> str: ...
    def figure(self, name: str) -> float: ...


def worse_than(cell: Judged) -> str:
    """Say what guess a client's batch statistics were read worse than, and why; empty elsewhere."""
    if cell.secret != "statistics" or not cell.leakage.mean < 0:
        return ""
    why = "over several batches the weights move between what is read"
    if cell.view != SERVER_VIEW:
        why = "a sum shows the mean over its clients"
    return (
        "worse than a guess: guessed are mean and variance of all clients' rows together, which a client's own are "
        f"near, and {why}"
    )


def remarks_on(cell: Judged) -> str:
    """Return the remarks on a cell in brackets, after a space; empty if there are none."""
    remarks = [cell.reach.bound] if cell.reach.bound else []
    if cell.verdict.word == NOT_DETECTED and not cell.reach.bound:
        # `detectable`: the smallest leak that would have shown in 8 of 10 such audits; NaN for one seed
        power = f"it would have noticed a leak from {cell.verdict.detectable:.2f} on, of the kind that it looks for"
        remarks.append("one seed: no power" if math.isnan(cell.verdict.detectable) else power)
        if min(cell.leakage.mean, cell.null_leakage.high) >= PARTIAL_FROM:
            remarks.append(f"guessing gives up to {cell.null_leakage.high:.2f}")
    if worse := worse_than(cell):
        remarks.append(worse)
    if cell.reach.open:
        remarks.append(f"the rest may be known: the messages leave open {cell.reach.open}")
    if cell.reach.without:
        remarks.append(f"not tested by the strongest attack, {cell.reach.without}, which did not run")
    scattered = not cell.reach.without or not cell.verdict.detectable < 1
    if cell.verdict.word == INCONCLUSIVE and scattered and not cell.runs.explained < SIGHTED and cell.leakage.seeds > 1:
        far = reaches_far(cell.leakage, cell.null_leakage) and cell.verdict.detectable < 1
        scatter = "its results, or those of chance, scatter too much for any leak to be noticed"
        remarks.append("its interval reaches far beyond chance, so that its silence says nothing" if far else scatter)
    if cell.leakage.seeds < cell.runs.asked:
        remarks.append(f"{cell.leakage.seeds} of {cell.runs.asked} seeds")
        if cell.leakage.seeds == 1 and cell.verdict.word == INCONCLUSIVE:
            remarks[-1] += ", and one alone tells nothing"
    if cell.runs.explained < 1:
        remarks.append(f"explained {cell.runs.explained:.0%} of the runs, residual {cell.figure('residual'):.1e}")
    if cell.read.whole and cell.leakage.mean < RECONSTRUCTED:
        remarks.append(f"{cell.given_away} was reconstructed: {cell.runs.highest:.2f}")
    elif cell.read.part:
        remarks.append(f"{cell.read.part} was read")
    if cell.read.columns and cell.leakage.mean < EXPOSED_FROM:
        remarks.append(f"read column by column: {first_few(cell.read.columns)}")
    return f" ({'; '.join(remarks)})" if remarks else ""
