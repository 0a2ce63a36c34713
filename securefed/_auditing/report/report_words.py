"""Names and explanations that the report uses for algorithms, defences and secrets.

Readers of the report may know no cryptography: the names are the usual ones of the papers, and `glossary` explains each
word of the pages. All modules of the report, the gate and the terminal take their words from here, and the templates
use the functions that format figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from securefed._auditing.engine.remarks import inconclusive
from securefed._auditing.engine.results import Cell
from securefed._auditing.engine.statistics import INCONCLUSIVE, NOT_DETECTED, PARTIAL_FROM, SIGHTED
from securefed._auditing.report.palette import tone
from securefed._auditing.sentences.table import NOTHING, say

WORSE: Final = "worse than a guess"
"""A leakage below 0, in words."""
ATTACKS_FAILED: Final = "attacks failed"
"""Stands in a cell instead of its leakage where the search failed: any figure there would look like a finding."""
COUNTS: Final = (
    "A leak is stated where the interval's lower end is above .05 and above what guessing gives; a high mean with a "
    "wide interval is no finding."
)
"""How a mean leakage becomes a verdict, for the page and the terminal."""


def figure(value: float | None, form: str) -> str:
    """Format a number; empty if it is not known."""
    return "" if value is None or math.isnan(value) else format(value, form)


def arrow(pair: Iterable[float | None], form: str) -> str:
    """Format a figure of two audits: "before → after"; `None` is written as "none"."""
    return " → ".join("none" if value is None else format(value, form) for value in pair)


def times(pair: tuple[float, float]) -> str:
    """Format by what factor a figure of two audits changed; empty if the earlier one is 0."""
    before, after = pair
    return f" (× {after / before:.2f})" if before > 0 else ""


def ranged(values: Iterable[float]) -> str:
    """Format (value, low, high) as a value with the ends of its interval."""
    return "{:.2f} ({:.2f} to {:.2f})".format(*values)


def style(verdict: str) -> str:
    """Return the style class of a verdict."""
    return tone(verdict).name


def leak_text(value: float | None) -> str:
    """Format a leakage: two decimals, in words below 0, empty if it is not known.

    Below 0 the estimate is further from the secret than the guess. How much further says nothing of the data.
    """
    if value is None or math.isnan(value):
        return ""
    return WORSE if round(value, 2) < 0 else f"{round(value, 2) + 0.0:.2f}"


def interval_text(low: float | None, high: float | None) -> str:
    """Format an interval of leakages; what lies below 0 is no better than the guess, so only its upper end counts."""
    if low is None or high is None or math.isnan(low) or math.isnan(high) or round(high, 2) < 0:
        return ""
    return f"up to {leak_text(high)}" if round(low, 2) < 0 else f"{leak_text(low)} to {leak_text(high)}"


def search_failed(cell: Cell) -> bool:
    """Whether a cell is inconclusive since its attack explained the messages of too few runs."""
    return cell.verdict.word == INCONCLUSIVE and cell.runs.explained < SIGHTED


def runs_text(cell: Cell) -> str:
    """Say that the strongest attack did not test a cell, or none did, or on how few runs it rests; else empty."""
    if cell.reach.bound:
        return "by argument, not by an attack"
    if cell.reach.without and cell.verdict.word == INCONCLUSIVE:
        return "not tested by the strongest attack"
    return f"{cell.leakage.seeds} of {cell.runs.asked} runs" if cell.leakage.seeds < cell.runs.asked else ""


def chance_text(cell: Cell) -> str:
    """Say why a leakage above 0 is no finding: what guessing gives, or that its interval is too wide.

    Empty for other verdicts, and where the mean is too small for the question to arise.
    """
    if cell.verdict.word != NOT_DETECTED or cell.leakage.mean < PARTIAL_FROM:
        return ""
    if cell.null_leakage.high > PARTIAL_FROM:
        return f"guessing gives up to {leak_text(cell.null_leakage.high)}"
    # of few runs the verdict rests on a wider interval than the one that is shown
    widened = f", with the interval widened for {cell.leakage.seeds} runs" if cell.leakage.low > PARTIAL_FROM else ""
    return f"not clear of {PARTIAL_FROM:g}{widened}"


@cache
def glossary() -> Mapping[str, str]:
    """Read what each word of the pages means, in the order of the page."""
    text = (files("securefed._auditing.report") / "glossary.tsv").read_text(encoding="utf-8")
    lines = [line.partition("\t") for line in text.splitlines() if not line.startswith("#")]
    return {word: meaning for word, _, meaning in lines}


def why_inconclusive(cell: Cell) -> str:
    """Say why a cell is inconclusive."""
    if (said := list(inconclusive(cell))) or not cell.runs.explained < SIGHTED:
        return " ".join(said or [say("remark", NOTHING, NOTHING, "scatter")])
    residual = cell.figure("residual")
    return say("remark", NOTHING, NOTHING, "failed", share=1 - cell.runs.explained, residual=residual)
