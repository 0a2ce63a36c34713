"""Make cells of attempts: one cell for each algorithm, defence, view, attack and secret, over all seeds.

An attempt is one scored attack on one view of one run (a seed); a cell holds means over the runs, intervals and the
verdict. `audit_report.make_report` calls `gather` once, at the end of an audit.

Leakage is 1 for an exact estimate and 0 for one no better than the guess without messages; the null is the leakage of
the same attack on messages that say nothing about the target, which is what chance gives. `RunFacts` hold what a run
cost. Since a defence such as secure aggregation leaves the sums as they are, most views are made from one cheaper run
with the same sums, and only some runs are of the defence itself (`RunFacts.real`): these give its bytes and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from securefed._auditing.engine.column_scores import columns_read, first_few
from securefed._auditing.engine.explained_messages import fall_back_on_guess
from securefed._auditing.engine.results import FEDERATION, NOT_COVERED, Attempt, Cell, RunFacts, owner
from securefed._auditing.engine.statistics import (
    EXPOSED,
    EXPOSED_FROM,
    FOUND,
    PARTIAL,
    RECONSTRUCTED,
    SIGHTED,
    Interval,
    interval,
    verdict,
)


def gather(
    attempts: Iterable[Attempt], facts: Iterable[RunFacts], covered: Mapping[str, Collection[str]], seeds: int = 0
) -> list[Cell]:
    """Make cells, in order of their first attempt.

    Args:
        attempts: the attempts of all seeds.
        facts: costs of all runs. A run that was made for one view names it; the run of all other views of a defence has
            the view "", and every defence of an attempt has one or the other.
        covered: by defence with noise, the views that its epsilon covers.
        seeds: number of seeds that were asked for.

    Raises:
        KeyError: an attempt's view has no facts.
    """
    groups: dict[tuple[str, ...], list[Attempt]] = {}
    for attempt in attempts:
        key = (attempt.algorithm, attempt.defense, attempt.view, attempt.attack, attempt.secret)
        groups.setdefault(key, []).append(attempt)
    runs: dict[tuple[str, str, str], list[RunFacts]] = {}
    for fact in facts:
        runs.setdefault((fact.algorithm, fact.defense, fact.view), []).append(fact)
    return [
        _cell(group, runs.get((algorithm, defense, view)) or runs[algorithm, defense, ""], covered, seeds)
        for (algorithm, defense, view, *_), group in groups.items()
    ]


def _cell(
    group: Sequence[Attempt], runs: Sequence[RunFacts], covered: Mapping[str, Collection[str]], seeds: int
) -> Cell:
    """Make one cell.

    Args:
        group: the attempts of one attack on one secret, seed by seed.
        runs: costs of the runs behind them.
        covered: as in `gather`.
        seeds: as in `gather`.
    """
    first = group[0]
    # where an estimate does not explain its messages, the attacker may prefer the guess, of leakage 0
    leaks, nulls = fall_back_on_guess(group)
    leak, null = interval(leaks), interval(nulls)
    explained = _mean([float(a.explained) for a in group if a.explained is not None])
    whole = [a for a in group if a.reconstructs]  # runs that gave all of the secret away
    parts = [a for a in group if a.part_leakage >= RECONSTRUCTED]  # runs that gave one column or row away
    # the run that gave most away, among those that count as reconstructions
    reconstruction = max([*(a.leakage for a in whole), *(a.part_leakage for a in parts)], default=-math.inf)
    part = ""
    if parts and not whole:  # name the part in the first such run
        whose = "all clients' rows" if owner(first.secret) == FEDERATION else f"client {parts[0].target}"
        part = f"{parts[0].part} of {whose}"
    epsilon: float | str | None = None
    if first.defense in covered:
        epsilon = runs[0].epsilon if first.view in covered[first.defense] else NOT_COVERED
    real = [run for run in runs if run.real]
    judged = verdict(leak, null, explained=explained, highest=reconstruction)
    columns, most = columns_read([(a.columns, a.null_columns) for a in group])
    if columns and judged.word not in FOUND:
        judged = replace(judged, word=EXPOSED if most else PARTIAL)  # the word follows the columns that are known best
    if first.secret == "people" and judged.word in FOUND and not part:  # nearly right is enough to be about people
        part = f"{max(group, key=lambda a: a.part_leakage).part} of all clients' rows"
    left_open = next((a.open for a in group if a.open), "")
    if judged.word in FOUND or not explained >= SIGHTED:
        left_open = ""
    return Cell(
        algorithm=first.algorithm,
        defense=first.defense,
        view=first.view,
        attack=first.attack,
        secret=first.secret,
        leakage=leak,
        null_leakage=null,
        error=_mean([a.error for a in group]),
        error_median=median(a.error for a in group),
        baseline_error=_mean([a.baseline for a in group]),
        verdict=judged,
        utility=_mean([run.utility for run in runs]),
        bytes_per_client_round=_mean([run.bytes_per_client_round for run in real]),
        seconds_per_round=_mean([run.seconds_per_round for run in real]),
        epsilon=epsilon,
        failed=sum(a.failed for a in group),
        exposed_seeds=sum(a.leakage >= EXPOSED_FROM for a in group),
        residual=_mean([a.residual for a in group]),
        rank=_mean([float(a.rank) for a in group]),
        unknowns=first.unknowns,
        condition=_mean([a.condition for a in group]),
        note="; ".join(filter(None, (_note(runs, real), *_read(first, leak, columns, part, left_open)))),
        explained=explained,
        highest=max(leaks),
        tpr=_mean([a.tpr for a in group]),
        client=max(whole or group, key=lambda a: a.leakage).target or 0,
        asked=seeds,
        part=part,
        reconstructed=bool(whole),
        derived=all(a.derived for a in group),
        open=left_open,
        columns=columns,
    )


def _read(first: Attempt, leak: Interval, columns: Sequence[str], part: str, left_open: str) -> tuple[str, ...]:
    """Say which columns and people an attack read where the mean does not say it, and what it leaves open.

    Args:
        first: an attempt of the attack.
        leak: its leakage.
        columns: names of the columns that were read.
        part: the column, row or people that were read in some run.
        left_open: what the messages cannot determine.
    """
    named = first_few(columns) if columns and leak.mean < EXPOSED_FROM else ""
    people = part if first.secret == "people" else ""
    return (
        f"{first.attack} leaves open {left_open}" if left_open else "",
        f"{first.attack} read these columns: {named}" if named else "",
        f"{first.attack} read {people}" if people else "",
    )


def _note(runs: Sequence[RunFacts], real: Sequence[RunFacts]) -> str:
    """Say which runs are the defence itself; empty if all are."""
    if not real:
        return "no seed ran the defence itself: its view is made from the sums of the run in the clear"
    # a real run whose sums were compared with the cheap run's may have fewer rounds
    compared = min((run.rounds for run in real if run.identical is not None), default=0)
    part = f", {compared} rounds of it" if 0 < compared < max(run.rounds for run in runs) else ""
    if not part and len(real) == len(runs):
        return ""
    return (
        f"{len(real)} of {len(runs)} seeds ran the defence itself{part} (a defence without noise is compared bit for "
        "bit with the quantised run); the other views come from the run with the same sums of integers"
    )


def _mean(values: Sequence[float]) -> float:
    """Average the values that are not NaN."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
