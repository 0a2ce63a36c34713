"""Conclusions of a report in sentences, for readers who know no cryptography.

For each algorithm: what plain messages give away, what each defence changes, and the cheapest defence that keeps the
leakage acceptable. The other modules of the report and the gate use the selections made here.

A cell is one attack on one secret in one view (what an attacker sees), over all runs; its owner is whose data the
secret is: one client's, the federation's (all clients' together) or a record's. A situation is an algorithm, a defence,
a view and a secret; several attacks may have tried it. A leakage is 1 for an exact estimate and 0 for one no better
than a guess.

A cell's verdict (`statistics.verdict`) is one of four words: exposed (a leakage of .9 or more) or partial, which state
a leak (FOUND); not detected, with the smallest leak that would have been (`detectable`); or inconclusive.
`cell.explained` is the share of the runs whose messages the attack's estimate explains, NaN where it cannot tell; below
SIGHTED, .8, a search counts as failed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.results import CLIENT, FEDERATION, NOT_COVERED, RECORD, Cell
from securefed._auditing.engine.statistics import EXPOSED, FOUND, INCONCLUSIVE, NOT_DETECTED, SIGHTED
from securefed._auditing.registered.attacker import CHANGING_SURVIVORS
from securefed._auditing.report.report_words import in_sentence, listed, secret_words, short

ALONE: Final = ("server", "sum only", CHANGING_SURVIVORS)
"""Views of the server alone, without the help of a client or key holder."""
PLAIN: Final = "plain"
ADDED: Final = "found by an attack on sums of the messages, which whoever reads the messages can add up"
"""Note of a cell that stands for unprotected messages, though the attack was made on sums (`plain_sums`)."""
ONE_CLIENT: Final = "one client's data"
ALL_CLIENTS: Final = "all clients' pooled data"


@dataclass(frozen=True)
class Remedy:
    """A defence that keeps a leak below a level.

    Attributes:
        defense: its name.
        leakage: upper end of the interval in its worst view of the server alone.
        bytes: traffic, as a multiple of that of plain messages; NaN where these were not run.
        utility: of its final model.
        lost: utility of plain messages' model less this one; NaN likewise.
    """

    defense: str
    leakage: float
    bytes: float
    utility: float
    lost: float


def strongest(cells: Iterable[Cell], *, by_owner: bool = False) -> dict[tuple[str, str, str, str], Cell]:
    """Select the cell of highest `weight` for each situation: algorithm, defence, view and secret.

    Args:
        cells: to select from.
        by_owner: count all secrets of one owner (a client, the federation) as one, as the report's first tables do.
    """
    out: dict[tuple[str, str, str, str], Cell] = {}
    for cell in cells:
        key = (cell.algorithm, cell.defense, cell.view, cell.owner if by_owner else cell.secret)
        if key not in out or weight(cell) > weight(out[key]):
            out[key] = cell
    return out


def weight(cell: Cell) -> tuple[int, float]:
    """Rank a cell by how much it tells: what it found comes first, by mean leakage.

    Then follows silence: of an attack that explains the messages, then of one that failed, then of one that cannot
    tell: `cell.explained`, the share of the runs whose messages its estimate explains, is then NaN. So the silence of
    an attack that cannot tell never hides that another one failed.
    """
    if cell.verdict.word in FOUND:
        return 3, cell.leakage.mean
    if cell.verdict.word == INCONCLUSIVE:
        return 1, cell.leakage.mean
    return 0 if math.isnan(cell.explained) else 2, cell.leakage.mean


def worst(report: Report, algorithm: str, defense: str, owner: str) -> Cell | None:
    """Select the cell that leaks most to the server alone; `None` if nothing was attacked.

    Of several views in which nothing was found, an inconclusive one counts as the worst.
    """
    cells = [c for c in report.of(algorithm) if (c.defense, c.owner) == (defense, owner) and c.view in ALONE]
    return max(
        strongest(cells, by_owner=True).values(),
        key=lambda c: (c.verdict.word in FOUND, c.verdict.word == INCONCLUSIVE, c.leakage.mean),
        default=None,
    )


def remedy(report: Report, algorithm: str, level: float, owners: Sequence[str] = (CLIENT,)) -> Remedy | None:
    """Find the cheapest defence of `remedies`, whose arguments it has.

    Returns:
        The defence; `None` if no audited defence is shown to keep the leak below the level.
    """
    return next(iter(remedies(report, algorithm, level, owners)), None)


def remedies(
    report: Report,
    algorithm: str,
    level: float,
    owners: Sequence[str] = (CLIENT,),
    views: Sequence[str] = ALONE,
) -> list[Remedy]:
    """Find the defences under which the data of every named owner leak at most `level` to the server alone.

    Every attack on one of `views` counts with the upper end of its interval, and so does membership that was found.

    Args:
        report: of the audit.
        algorithm: its name in the report.
        level: leakage that is accepted.
        owners: whose data count.
        views: names of the views that count.

    Returns:
        The defences, the cheapest first: least utility lost (to a hundredth), then fewest bytes. A defence is not
        among them if in one of the views the attack that found most did not explain the messages, or would not have
        noticed a leak of `level`; nor if a secret that plain messages give away, membership included, was not attacked
        under it.
    """
    found = []
    seen = [cell for cell in report.of(algorithm) if cell.view in views and cell.owner in owners]
    members = [cell for cell in report.of(algorithm) if cell.view in views and cell.owner == RECORD]
    leaked = {cell.secret for cell in (*seen, *members) if cell.defense == PLAIN and cell.verdict.word in FOUND}
    for defense in dict.fromkeys(cell.defense for cell in report.of(algorithm)):
        cells = [cell for cell in seen if cell.defense == defense]
        records = [cell for cell in members if cell.defense == defense]
        leaks = [cell.leakage.high for cell in cells]
        leaks += [cell.leakage.high for cell in records if cell.verdict.word in FOUND]
        # nothing is shown by attacks that could have missed such a leak, nor where a secret was not attacked that plain
        # messages give away
        # a leak that is known of sums does not say that a failed attack on single messages would find no more
        attacked = strongest((cell for cell in cells if cell.note != ADDED), by_owner=True)
        unknown = any(_blind(cell, level) for cell in attacked.values())
        unknown |= not leaked <= {cell.secret for cell in (*cells, *records)}
        if cells and max(leaks) <= level and not unknown:
            found.append(_remedy(report, cells[0], max(leaks)))
    return sorted(found, key=lambda item: (round(max(item.lost, 0.0), 2), item.bytes))


def _blind(cell: Cell, level: float) -> bool:
    """Whether a leak of this level could be there without the attack's showing it.

    A search that does not explain the messages ended elsewhere: what it found is the least that leaks, not the most.
    """
    quiet = cell.verdict.word == NOT_DETECTED and not cell.verdict.detectable <= level
    return quiet or cell.verdict.word == INCONCLUSIVE or cell.explained < SIGHTED


def _remedy(report: Report, cell: Cell, leak: float) -> Remedy:
    plain = next((c for c in report.of(cell.algorithm) if c.defense == PLAIN), None)
    more = cell.bytes_per_client_round / plain.bytes_per_client_round if plain else math.nan
    lost = plain.utility - cell.utility if plain else math.nan
    return Remedy(cell.defense, leak, more, cell.utility, lost)


def finding(report: Report, algorithm: str) -> str:
    """Say in a sentence each what plain messages give away and what the audited defences change."""
    return f"{_in_the_clear(report, algorithm)} {_defended(report, algorithm)}".strip()


def _in_the_clear(report: Report, algorithm: str) -> str:
    """Say what plain messages give away of one client's data, by the worst cell of a server without help."""
    cell = worst(report, algorithm, PLAIN, CLIENT)
    if cell is None:
        return "Plain messages were not attacked in this audit."
    rounds = report.settings[algorithm]["rounds"]
    what = secret_words(report.settings[algorithm]["secret"] if cell.secret == CLIENT else cell.secret)
    if cell.verdict.word == EXPOSED:
        return (
            f"Whoever runs the server of {short(algorithm)} can compute {what} from {rounds} rounds of plain messages "
            f"(in {cell.exposed_seeds} of {cell.leakage.seeds} runs to nine tenths or better, median error "
            f"{cell.error_median:.1g})."
        )
    if cell.verdict.word == NOT_DETECTED:
        return (
            f"From {rounds} rounds of plain messages of {short(algorithm)} no attack here learnt more about {what} "
            f"than could be guessed without them; {_power(cell)}."
        )
    if cell.verdict.word == INCONCLUSIVE:
        return (
            f"Whether {rounds} rounds of plain messages of {short(algorithm)} give away {what} is open: {why(cell)}, "
            "which says nothing about whether the data are safe."
        )
    some = ""
    if cell.exposed_seeds:
        some = f" (in {cell.exposed_seeds} of {cell.leakage.seeds} runs nine tenths or more)"
    how = (
        " by an attack on the sums of them; attacks on single messages found less or failed"
        if cell.note == ADDED
        else ""
    )
    return (
        f"From {rounds} rounds of plain messages of {short(algorithm)} the server comes {cell.leakage.mean:.0%} of the "
        f"way from a guess to {what}{some}{how}."
    )


def why(cell: Cell) -> str:
    """Say why a cell is inconclusive."""
    if not cell.explained < SIGHTED:
        return "the results, or those of chance, scatter so much that no leak would have been noticed"
    where = "" if cell.explained == 0 else f" in {1 - cell.explained:.0%} of the runs"
    return f"the attack did not fit the messages{where}, with a residual of {cell.residual:.1g}"


def _defended(report: Report, algorithm: str) -> str:
    """Say what the defences leave open; those with the same effect share a sentence."""
    alike: dict[str, list[str]] = {}
    for defense in dict.fromkeys(cell.defense for cell in report.of(algorithm)):
        effect = "" if defense == PLAIN else _effect(report, algorithm, defense)
        if effect:
            alone = [cell for cell in report.of(algorithm) if cell.defense == defense and cell.view in ALONE]
            early = any(cell.epsilon == NOT_COVERED for cell in alone)  # noise came after what the server saw
            aside = "where the server sees the sums before the noise, " if early else ""
            alike.setdefault(aside + effect, []).append(in_sentence(defense))
    return " ".join(f"Under {listed(names)}, {effect}." for effect, names in alike.items())


def _effect(report: Report, algorithm: str, defense: str) -> str:
    """Say in a clause what one defence leaves open and what utility it costs; empty where nothing was attacked."""
    one, all_ = (worst(report, algorithm, defense, owner) for owner in (CLIENT, FEDERATION))
    cell = one or all_
    if cell is None:
        return ""
    words = [_leaks(one, ONE_CLIENT)] if one is not None else []
    if all_ is not None and (one is None or all_.verdict.word in FOUND):
        words.append(_leaks(all_, ALL_CLIENTS))
    if words == [_leaks(cell, ONE_CLIENT), _leaks(cell, ALL_CLIENTS)]:
        words = [_leaks(cell, f"{ONE_CLIENT} and {ALL_CLIENTS}")]
    plain = worst(report, algorithm, PLAIN, CLIENT)
    cost = ""
    if plain is not None and plain.utility - cell.utility >= 0.01:
        measure = report.settings[algorithm]["utility"]
        cost = f", at the price of {measure}: {cell.utility:.2f} and not {plain.utility:.2f}"
    return " and ".join(words) + cost


def _leaks(cell: Cell, whose: str) -> str:
    """Say in a clause what a cell found."""
    how = " from sums over different sets of clients" if cell.view == CHANGING_SURVIVORS else ""
    if cell.verdict.word == NOT_DETECTED:
        return f"the attacks here learnt nothing of {whose}"
    if cell.verdict.word == INCONCLUSIVE:
        return f"it is open whether {whose} leak ({why(cell)})"
    if cell.verdict.word == EXPOSED:
        return f"{whose} can still be computed{how}"
    return f"the server still comes {cell.leakage.mean:.0%} of the way to {whose}{how}"


def _power(cell: Cell) -> str:
    """Say in a clause how small a leak would have been noticed, of a cell in which none was found."""
    if math.isnan(cell.verdict.detectable):
        return "one run alone does not say how small a leak would have been noticed"
    checked = " by an attack that does not check its result against the messages" if math.isnan(cell.explained) else ""
    seen = f"a leak of {cell.verdict.detectable:.0%} would have been noticed"
    return f"{seen}, of a kind that these attacks look for{checked}"
