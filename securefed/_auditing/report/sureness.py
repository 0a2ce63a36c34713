"""Say how sure an audit is, in a few sentences for a reader who knows no statistics.

`first_screen` shows what `sureness` and `gaps` return on the report's first page, and the terminal's summary
(`_commands.display`) shows `runs_sentence` and `lying`. A run, also called a seed, is one repetition of the training.

A cell of the report is one attack on one secret in one view (what an attacker sees), over all runs. Cells of one
algorithm, defence, view and secret make a situation, for which the cell of the strongest attack counts. The secrets of
one owner (a client, all clients) count as one secret where the report does not name them. `detectable` of a verdict is
the smallest mean leakage that would have been noticed in 8 of 10 repetitions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from securefed._auditing.engine.audit_result import AUDIT, AuditResult, rows_cut
from securefed._auditing.engine.incomplete_results import NOT_ATTACKED
from securefed._auditing.engine.results import Cell
from securefed._auditing.engine.statistics import ENOUGH, INCONCLUSIVE, NOT_DETECTED
from securefed._auditing.report.observers import FEWEST, names_secrets
from securefed._auditing.report.report_words import leak_text
from securefed._auditing.report.selections import strongest
from securefed.attacks.views import ACTIVE_SERVER


def sureness(report: AuditResult) -> list[str]:
    """List what bounds the audit's figures: the runs, what would have been noticed, and what is not known."""
    seeds = report.settings[AUDIT]["seeds"]
    # `confirmation` cells are left out: an adversary who knows all other rows can confirm a record by any message
    # without noise, so that they prove little
    cells = (cell for cell in report.cells if cell.owner != "confirmation")
    best = list(strongest(cells, by_owner=not names_secrets(report)).values())
    said = (_power(best), _unknown(best), lying(report), runs_sentence(seeds, some_fewer(report)))
    # of few runs the sentence on runs comes last, since the page shows the command for more runs below it
    ordered = said if seeds < ENOUGH else (said[-1], *said[:-1])
    return [sentence for sentence in (_cut(report), *ordered) if sentence]


def lying(report: AuditResult) -> str:
    """Say that the audit tried no server that chooses its broadcasts, and which option does; empty if it did or cannot.

    A report without a command is of an audit that has no such option.
    """
    if not report.command or any(cell.view == ACTIVE_SERVER for cell in report.cells) or "--active" in report.command:
        return ""
    return "The server was taken to follow the protocol. A server that lies was not tried: add --active to the command."


def gaps(report: AuditResult) -> str:
    """Count what was asked for and did not run, or for some seeds only, or was not attacked; empty for nothing."""
    left = sum(item.kind == NOT_ATTACKED for item in report.missing)
    count = len(report.missing) - left
    ran = f"{count} part{'s' * (count > 1)} of the audit did not run, or not in full" if count else ""
    were = "parts ran and were" if left > 1 else "part ran and was"
    unread = f"{left} {were} not attacked, since no attack here reads such messages"
    return "; ".join(filter(None, (ran, unread if left else "")))


def some_fewer(report: AuditResult) -> bool:
    """Whether some situation rests on fewer runs than the audit has."""
    return any(cell.leakage.seeds < cell.runs.asked for cell in strongest(report.cells).values())


def runs_sentence(seeds: int, some_fewer: bool = False) -> str:
    """Say how many runs there were; where they are few, also how many to rely on.

    The sentence then ends in a colon: page and terminal show the command for more runs (`enough_seeds`) after it.

    Args:
        seeds: number of runs.
        some_fewer: whether some figure rests on fewer runs than that.
    """
    if seeds == 1:
        return f"One run only, so that chance may have made any figure. Rely on {ENOUGH} runs or more:"
    few = ""
    if seeds < FEWEST:
        few = f" That is too few to say that nothing leaks. Rely on {ENOUGH} runs or more:"
    elif seeds < ENOUGH:
        few = f" {ENOUGH} would make them narrower, and are the fewest to rely on:"
    runs = f"up to {seeds} runs" if some_fewer else f"{seeds} runs"
    named = "; where it rests on fewer, their number stands beside it" if some_fewer else ""
    return f"Every figure is the mean of {runs} with other random draws, with a 95 % interval{named}.{few}"


def _cut(report: AuditResult) -> str:
    """Say that clients were cut to fewer rows, and what that does to verdicts; empty if they were not."""
    cut = rows_cut(report.settings[AUDIT])
    if not cut:
        return ""
    return (
        f"Every figure is of {cut}, since the local step is too slow for the time given. Fewer rows usually leak more, "
        "so no verdict here is one on all rows: allow more `seconds`."
    )


def _power(best: Sequence[Cell]) -> str:
    """Say how small a leak would have been noticed where none was found; empty where nothing was quiet."""
    quiet = [cell.verdict.detectable for cell in best if cell.verdict.word == NOT_DETECTED and not cell.reach.bound]
    if not quiet:
        return ""
    said = f"“No leak found” ({len(quiet)} of {len(best)} situations) is true of leaks that these attacks can see"
    seen = sorted(value for value in quiet if not math.isnan(value))
    if not seen:
        return f"{said}; one run does not say how small a leak they would have noticed."
    ends = [leak_text(value) for value in (seen[0], seen[-1])]
    size = f"mean leaks of {ends[0]}" if ends[0] == ends[1] else f"mean leaks from {ends[0]} (best case) to {ends[1]}"
    return f"{said}, and they notice {size}. Others may find more."


def _unknown(best: Sequence[Cell]) -> str:
    """Count the situations whose attacks failed or scatter too much; empty if there are none."""
    count = sum(cell.verdict.word == INCONCLUSIVE for cell in best)
    if not count:
        return ""
    return f"“Not known” ({count} of {len(best)}): the attacks failed or scatter too much. That is no sign of safety."
