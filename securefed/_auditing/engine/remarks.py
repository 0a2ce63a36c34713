"""Write the remarks beside a cell's verdict, such as the leak that would have been noticed, or how many runs leaked."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from securefed._auditing.sentences.table import NOTHING, say
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
    return _remark("worse batches" if cell.view == SERVER_VIEW else "worse sums")


def remarks_on(cell: Judged) -> str:
    """Return the remarks on a cell in brackets, after a space; empty if there are none."""
    remarks = [text for text in _remarks(cell) if text]
    return f" ({' '.join(remarks)})" if remarks else ""


def _remarks(cell: Judged) -> Iterator[str]:
    yield cell.reach.bound and f"{cell.reach.bound[0].upper()}{cell.reach.bound[1:]}."
    if cell.verdict.word == NOT_DETECTED and not cell.reach.bound:
        # `detectable`: the smallest leak that would have shown in 8 of 10 such audits; NaN for one seed
        one = math.isnan(cell.verdict.detectable)
        yield _remark("one seed") if one else _remark("power", leak=cell.verdict.detectable)
        if min(cell.leakage.mean, cell.null_leakage.high) >= PARTIAL_FROM:
            yield _remark("chance", leak=cell.null_leakage.high)
    yield worse_than(cell)
    yield cell.reach.open and _remark("open", what=cell.reach.open)
    yield from inconclusive(cell)
    if cell.leakage.seeds < cell.runs.asked:
        yield _remark("seeds", count=cell.leakage.seeds, asked=cell.runs.asked)
        if cell.leakage.seeds == 1 and cell.verdict.word == INCONCLUSIVE:
            yield _remark("one of them")
    if cell.runs.explained < 1:
        yield _remark("explained", share=cell.runs.explained, residual=cell.figure("residual"))
    if cell.read.whole and cell.leakage.mean < RECONSTRUCTED:
        whose = f"{cell.given_away[0].upper()}{cell.given_away[1:]}"
        yield _remark("reconstructed", whose=whose, leak=cell.runs.highest)
    elif cell.read.part:
        yield _remark("part", part=cell.read.part)
    if cell.read.columns and cell.leakage.mean < EXPOSED_FROM:
        yield _remark("columns", columns=first_few(cell.read.columns))


def inconclusive(cell: Judged) -> Iterator[str]:
    """Say why the silence of a cell says nothing, but for a search that failed, of which its figures tell."""
    if cell.reach.without:
        yield _remark("without", attack=cell.reach.without)
    scattered = not cell.reach.without or not cell.verdict.detectable < 1
    searched = not cell.runs.explained < SIGHTED
    if cell.verdict.word == INCONCLUSIVE and scattered and searched and cell.leakage.seeds > 1:
        far = reaches_far(cell.leakage, cell.null_leakage) and cell.verdict.detectable < 1
        yield _remark("far" if far else "scatter")


def _remark(reason: str, **places: object) -> str:
    return say("remark", NOTHING, NOTHING, reason, **places)
