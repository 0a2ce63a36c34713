"""Say how sure an audit is, in a few sentences for a reader who knows no statistics.

A run, also called a seed, is one repetition of the training. A cell of the report is one attack on one secret in one
view (what an attacker sees), over all runs. Cells of one algorithm, defence, view and secret make a situation, for
which the cell of the strongest attack counts. The secrets of one owner (a client, all clients) count as one secret
where the report does not name them. `detectable` of a verdict is the smallest mean leakage that would have been noticed
in 8 of 10 repetitions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from securefed._auditing.engine.audit_result import AUDIT, AuditResult, rows_cut
from securefed._auditing.engine.incomplete_results import NOT_ATTACKED
from securefed._auditing.engine.results import Cell
from securefed._auditing.engine.statistics import ENOUGH, FEWEST, INCONCLUSIVE, NOT_DETECTED
from securefed._auditing.report.observers import names_secrets
from securefed._auditing.report.selections import strongest
from securefed._auditing.report.sentence import Sentence, sentence
from securefed._auditing.sentences.table import NOTHING, counted


def sureness(report: AuditResult) -> list[Sentence]:
    """List what bounds the audit's figures: the runs, what would have been noticed, and what is not known.

    Of few runs the sentence on runs comes last, since the command for more runs stands below it.
    """
    # `confirmation` cells are left out: an adversary who knows all other rows can confirm a record by any message
    # without noise, so that they prove little
    cells = (cell for cell in report.cells if cell.owner != "confirmation")
    best = list(strongest(cells, by_owner=not names_secrets(report)).values())
    runs = counted(report.settings[AUDIT]["seeds"], "run")
    enough = [] if few(report) else [sentence("sure", NOTHING, NOTHING, "enough", runs=runs)]
    fewer = any(cell.leakage.seeds < cell.runs.asked for cell in strongest(report.cells).values())
    return [
        *cut(report),
        *enough,
        *([sentence("sure", NOTHING, NOTHING, "some fewer")] if fewer else []),
        *_power(best),
        *_unknown(best),
        *few(report),
    ]


def few(report: AuditResult) -> list[Sentence]:
    """Warn where an audit has few runs; the command for more runs (`enough_seeds`) stands below it."""
    seeds = report.settings[AUDIT]["seeds"]
    if seeds >= ENOUGH:
        return []
    reason = "one run" if seeds == 1 else "too few" if seeds < FEWEST else "few"
    return [sentence("sure", NOTHING, NOTHING, reason, runs=counted(seeds, "run"), enough=ENOUGH)]


def cut(report: AuditResult) -> list[Sentence]:
    """Say that clients were cut to fewer rows, and what that does to verdicts; empty if they were not."""
    words = rows_cut(report.settings[AUDIT])
    return [sentence("sure", NOTHING, NOTHING, "cut", cut=words)] if words else []


def gaps(report: AuditResult) -> Iterator[Sentence]:
    """Count what was asked for and did not run, or for some seeds only, or was not attacked."""
    left = sum(item.kind == NOT_ATTACKED for item in report.missing)
    for reason, count in (("did not run", len(report.missing) - left), ("not attacked", left)):
        if count:
            yield sentence("sure", NOTHING, NOTHING, reason, parts=counted(count, "part"))


def _power(best: Sequence[Cell]) -> Iterator[Sentence]:
    """Say how small a leak would have been noticed where none was found."""
    quiet = [cell.verdict.detectable for cell in best if cell.verdict.word == NOT_DETECTED and not cell.reach.bound]
    seen = sorted(value for value in quiet if not math.isnan(value))
    counts = {"count": len(quiet), "situations": len(best)}
    if seen:
        yield sentence("sure", NOTHING, NOTHING, "power", least=seen[0], most=seen[-1], **counts)
    elif quiet:
        yield sentence("sure", NOTHING, NOTHING, "no power", **counts)


def _unknown(best: Sequence[Cell]) -> Iterator[Sentence]:
    """Count the situations whose attacks failed or scatter too much."""
    if count := sum(cell.verdict.word == INCONCLUSIVE for cell in best):
        yield sentence("sure", NOTHING, NOTHING, "not known", count=count, situations=len(best))
