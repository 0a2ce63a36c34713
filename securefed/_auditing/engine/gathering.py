"""Make cells of attempts: one cell for each algorithm, defence, view, attack and secret, over all seeds.

An attempt is one scored attack on one view of one run (a seed); a cell holds means over the runs, intervals and the
verdict. `audit_report.make_report` calls `gather` once, at the end of an audit.

Leakage is 1 for an exact estimate and 0 for one no better than the guess without messages; the null is the leakage of
the same attack on messages that say nothing about the target, which is what chance gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from securefed._auditing.engine.cell_parts import EstimateFigures, Figures, MembershipFigures, Reach, Read, RunCounts
from securefed._auditing.engine.column_scores import columns_read
from securefed._auditing.engine.explained_messages import fall_back_on_guess
from securefed._auditing.engine.results import FEDERATION, Attempt, Cell, owner
from securefed._auditing.engine.run_costs import mean_known
from securefed._auditing.engine.statistics import (
    EXPOSED,
    EXPOSED_FROM,
    FOUND,
    PARTIAL,
    RECONSTRUCTED,
    SIGHTED,
    interval,
    verdict,
)


def gather(attempts: Iterable[Attempt], seeds: int = 0) -> list[Cell]:
    """Make cells, in order of their first attempt.

    Args:
        attempts: the attempts of all seeds.
        seeds: number of seeds that were asked for.
    """
    groups: dict[tuple[str, ...], list[Attempt]] = {}
    for attempt in attempts:
        key = (attempt.algorithm, attempt.defense, attempt.view, attempt.attack, attempt.secret)
        groups.setdefault(key, []).append(attempt)
    return [_cell(group, seeds) for group in groups.values()]


def _cell(group: Sequence[Attempt], seeds: int) -> Cell:
    """Make one cell of the attempts of one attack on one secret, seed by seed."""
    first = group[0]
    # where an estimate does not explain its messages, the attacker may prefer the guess, of leakage 0
    leaks, nulls = fall_back_on_guess(group)
    leak, null = interval(leaks), interval(nulls)
    explained = mean_known([float(a.explained) for a in group if a.explained is not None])
    whole = [a for a in group if a.reconstructs]  # runs that gave all of the secret away
    parts = [a for a in group if a.part_leakage >= RECONSTRUCTED]  # runs that gave one column or row away
    # the run that gave most away, among those that count as reconstructions
    reconstruction = max([*(a.leakage for a in whole), *(a.part_leakage for a in parts)], default=-math.inf)
    part = ""
    if parts and not whole:  # name the part in the first such run
        whose = "all clients' rows" if owner(first.secret) == FEDERATION else f"client {parts[0].target}"
        part = f"{parts[0].part} of {whose}"
    judged = verdict(leak, null, explained=explained, highest=reconstruction)
    columns, most = columns_read([(a.columns, a.null_columns) for a in group])
    if columns and judged.word not in FOUND:
        judged = replace(judged, word=EXPOSED if most else PARTIAL)  # the word follows the columns that are known best
    if first.secret == "people" and judged.word in FOUND and not part:  # nearly right is enough to be about people
        part = f"{max(group, key=lambda a: a.part_leakage).part} of all clients' rows"
    left_open = next((a.open for a in group if a.open), "")
    if judged.word in FOUND or not explained >= SIGHTED:
        left_open = ""
    client = max(whole or group, key=lambda a: a.leakage).target or 0
    return Cell(
        algorithm=first.algorithm,
        defense=first.defense,
        view=first.view,
        attack=first.attack,
        secret=first.secret,
        leakage=leak,
        null_leakage=null,
        verdict=judged,
        runs=RunCounts(
            asked=seeds,
            failed=sum(a.failed for a in group),
            exposed=sum(a.leakage >= EXPOSED_FROM for a in group),
            highest=max(leaks),
            explained=explained,
        ),
        figures=_figures(group),
        read=Read(client, bool(whole), part, columns),
        reach=Reach(
            derived=all(a.derived for a in group),
            open=left_open,
            bound=first.bound if all(a.bound for a in group) else "",
        ),
    )


def _figures(group: Sequence[Attempt]) -> Figures:
    """Average the figures of the attack's family; a rate of true positives tells that it recognises records."""
    if not all(math.isnan(a.tpr) for a in group):
        return MembershipFigures(mean_known([a.tpr for a in group]))
    return EstimateFigures(
        error=mean_known([a.error for a in group]),
        error_median=median(a.error for a in group),
        baseline_error=mean_known([a.baseline for a in group]),
        residual=mean_known([a.residual for a in group]),
        rank=mean_known([float(a.rank) for a in group]),
        unknowns=group[0].unknowns,
        condition=mean_known([a.condition for a in group]),
    )
