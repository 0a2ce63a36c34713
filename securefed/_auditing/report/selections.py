"""Select what the sentences of a report are about: the strongest attacks, and the defences that hold.

The modules of the report and the gate use these selections. A cell is one attack on one secret in one view (what an
attacker sees), over all runs; its owner is whose data the secret is: one client's, the federation's (all clients'
together) or a record's. A situation is an algorithm, a defence, a view and a secret; several attacks may have tried it.
A leakage is 1 for an exact estimate and 0 for one no better than a guess.

A cell's verdict (`statistics.verdict`) is one of four words: exposed (a leakage of .9 or more) or partial, which state
a leak (FOUND); not detected, with the smallest leak that would have been (`detectable`); or inconclusive.
`cell.runs.explained` is the share of the runs whose messages the attack's estimate explains, NaN where it cannot tell;
below SIGHTED, .8, a search counts as failed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from securefed._auditing.engine.audit_result import AUDIT, AuditResult
from securefed._auditing.engine.results import CLIENT, PARTS, RECORD, Cell
from securefed._auditing.engine.run_costs import RunCosts
from securefed._auditing.engine.statistics import EXPOSED, FOUND, INCONCLUSIVE, NOT_DETECTED, PARTIAL, SIGHTED, upper
from securefed.attacks.views import CHANGING_SURVIVORS, SMALLEST_SUM

ALONE: Final = ("server", "sum only", SMALLEST_SUM, CHANGING_SURVIVORS)
"""Views of the server alone, without the help of a client or key holder. `alone` adds what declared colluders tell."""
PLAIN: Final = "plain"
_ANOTHER_PARTY: Final = frozenset({"paillier", "paillier_threshold", "ckks"})
"""Defences that need a key holder or a dealer, whom all trust, beside server and clients: no saving of bytes is worth
one where a defence without it holds."""
ONE_CLIENT: Final = "one client's data"
ALL_CLIENTS: Final = "all clients' pooled data"


@dataclass(frozen=True)
class Remedy:
    """A defence that keeps a leak below a level.

    Attributes:
        defense: its name.
        leakage: the smallest leak that is excluded, as far as the attacks see: the largest upper end of an interval,
            or what the attack that sees best would have noticed if that is more; over the views of the server alone.
        bytes: traffic, as a multiple of that of plain messages; NaN where these were not run.
        utility: the utility of its final model.
        lost: utility of plain messages' model less this one; NaN where plain messages were not run.
    """

    defense: str
    leakage: float
    bytes: float
    utility: float
    lost: float


def alone(report: AuditResult) -> tuple[str, ...]:
    """List the views of a server without help, other than that of the clients that the audit declared to collude."""
    colluders = report.settings.get(AUDIT, {}).get("colluders", 0)
    return (*ALONE, f"collusion({colluders})") if colluders else ALONE


def strongest(cells: Iterable[Cell], *, by_owner: bool = False) -> dict[tuple[str, str, str, str], Cell]:
    """Select the cell of highest `weight` for each situation: algorithm, defence, view and secret.

    Args:
        cells: the cells to select from.
        by_owner: count all secrets of one owner (a client, the federation) as one, as the report's first tables do;
            exposed statistics of a client (`PARTS`) then say that its data are exposed in part.
    """
    out: dict[tuple[str, str, str, str], Cell] = {}
    for one in cells:
        cell = _as_part(one) if by_owner else one
        key = (cell.algorithm, cell.defense, cell.view, cell.owner if by_owner else cell.secret)
        if key not in out or weight(cell) > weight(out[key]):
            out[key] = cell
    return out


def _as_part(cell: Cell) -> Cell:
    """Return a cell as it counts for its owner: exposed statistics are a part of the data."""
    whole = cell.secret not in PARTS or cell.verdict.word != EXPOSED
    return cell if whole else replace(cell, verdict=replace(cell.verdict, word=PARTIAL))


def weight(cell: Cell) -> tuple[int, float]:
    """Rank a cell by how much it tells: what it found comes first, by mean leakage, of statistics after data.

    Then follows silence: of an attack that explains the messages, then of one that failed, then of one that cannot
    tell: `cell.runs.explained`, the share of the runs whose messages its estimate explains, is then NaN. So the silence
    of an attack that cannot tell never hides that another one failed.
    """
    if cell.verdict.word in FOUND:
        return (3 if cell.secret in PARTS else 4), cell.leakage.mean
    if cell.verdict.word == INCONCLUSIVE:
        return 1, cell.leakage.mean
    return 0 if math.isnan(cell.runs.explained) else 2, cell.leakage.mean


def worst(report: AuditResult, algorithm: str, defense: str, owner: str) -> Cell | None:
    """Select the cell that leaks most to the server alone; `None` if nothing was attacked.

    Of several views in which nothing was found, an inconclusive one counts as the worst.
    """
    cells = [c for c in report.of(algorithm) if (c.defense, c.owner) == (defense, owner) and c.view in alone(report)]
    return max(
        strongest(cells, by_owner=True).values(),
        key=lambda c: (c.verdict.word in FOUND, c.verdict.word == INCONCLUSIVE, c.leakage.mean),
        default=None,
    )


def remedies(report: AuditResult, algorithm: str, level: float, views: Sequence[str] = ALONE) -> list[Remedy]:
    """Find the defences under which one client's data leak at most `level` to the server alone.

    Every attack on one of `views` counts with the upper end of its interval, and so does membership that was found.

    Args:
        report: the report of the audit.
        algorithm: its name in the report.
        level: leakage that is accepted.
        views: names of the views that count.

    Returns:
        The defences, the cheapest first: least utility lost (to a hundredth), then without a key holder, then fewest
        bytes. A defence is not among them if in one of the views the attack that found most did not explain the
        messages, or would not have noticed a leak of `level`; nor if a secret that plain messages give away, membership
        included, was not attacked under it.
    """
    found = []
    seen = [cell for cell in report.of(algorithm) if cell.view in views and cell.owner == CLIENT]
    members = [cell for cell in report.of(algorithm) if cell.view in views and cell.owner == RECORD]
    leaked = {cell.secret for cell in (*seen, *members) if cell.defense == PLAIN and cell.verdict.word in FOUND}
    for defense in dict.fromkeys(cell.defense for cell in report.of(algorithm)):
        cells = [cell for cell in seen if cell.defense == defense]
        records = [cell for cell in members if cell.defense == defense]
        leaks = [upper(cell.leakage) for cell in cells]
        leaks += [upper(cell.leakage) for cell in records if cell.verdict.word in FOUND]
        # nothing is shown by attacks that could have missed such a leak, nor where a secret was not attacked that plain
        # messages give away
        # a leak that is known of sums does not say that a failed attack on single messages would find no more
        attacked = strongest((cell for cell in cells if not cell.reach.added), by_owner=True)
        unknown = any(_blind(cell, level) for cell in attacked.values())
        unknown |= not leaked <= {cell.secret for cell in (*cells, *records)}
        if cells and max(leaks) <= level and not unknown:
            noticed = [cell.verdict.detectable for cell in attacked.values() if cell.verdict.word == NOT_DETECTED]
            found.append(_remedy(report, cells[0], max([*leaks, *noticed])))
    return sorted(found, key=lambda item: (round(max(item.lost, 0.0), 2), item.defense in _ANOTHER_PARTY, item.bytes))


def _blind(cell: Cell, level: float) -> bool:
    """Whether a leak of this level could be there without the attack's showing it.

    A search that does not explain the messages ended elsewhere: what it found is the least that leaks, not the most.
    """
    quiet = cell.verdict.word == NOT_DETECTED and not cell.verdict.detectable <= level
    return quiet or cell.verdict.word == INCONCLUSIVE or cell.runs.explained < SIGHTED


def _remedy(report: AuditResult, cell: Cell, leak: float) -> Remedy:
    plain = next((c for c in report.of(cell.algorithm) if c.defense == PLAIN), None)
    run, bare = report.cost(cell), report.cost(plain) if plain else RunCosts("", "")
    more = run.bytes_per_client_round / bare.bytes_per_client_round
    return Remedy(cell.defense, leak, more, run.utility, bare.utility - run.utility)
