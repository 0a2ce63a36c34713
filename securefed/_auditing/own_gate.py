"""What holds an audit of one's own algorithm back at a limit: leaks that reach it, and what it could not have seen."""

from __future__ import annotations

from collections.abc import Sequence

from securefed._auditing.own import OwnAudit
from securefed._auditing.own_tally import OwnCell, Secret
from securefed._auditing.statistics import FOUND, seeds_for


def leaks(found: OwnAudit, limit: float, views: Sequence[str], secrets: Sequence[Secret]) -> list[str]:
    """Every cell whose interval reaches the limit, and every client, row or column that was reconstructed."""
    cells = [cell for cell in found.cells if cell.view in views and cell.secret in secrets]
    out = [
        f"{cell.view}, {cell.secret}, {cell.attack}: up to {cell.leakage.high:.2f}{_more(cell, limit)}"
        for cell in cells
        if cell.leakage.high >= limit
    ]
    out += [
        f"{cell.view}, {cell.secret}, {cell.attack}: {cell.given_away} was reconstructed"
        for cell in cells
        if cell.given_away
    ]
    return out


def blind(found: OwnAudit, limit: float, views: Sequence[str], secrets: Sequence[Secret]) -> list[str]:
    """Every secret that no attack was scored for, and every attack that would not have seen a leak of `limit`."""
    cells = [cell for cell in found.cells if cell.view in views and cell.secret in secrets]
    out = [reason for view in views for secret in secrets if (reason := found.unseen(view, secret)) is not None]
    out += [
        f"{cell.view}, {cell.secret}, {cell.attack}: only a leak of {cell.verdict.detectable:.2f} would have been seen"
        f"{_more(cell, limit)}"
        for cell in cells
        if cell.verdict.word not in FOUND and not cell.verdict.detectable <= limit and not _covered(cell, cells, limit)
    ]
    return out


def _covered(cell: OwnCell, cells: Sequence[OwnCell], limit: float) -> bool:
    """Whether the cell only follows from an attack on another secret, and one on this secret would have seen."""
    return cell.derived and any(
        other.searches and other.sighted and (other.verdict.word in FOUND or other.verdict.detectable <= limit)
        for other in cells
        if (other.view, other.secret) == (cell.view, cell.secret)
    )


def _more(cell: OwnCell, limit: float) -> str:
    """How many seeds would tell, of a cell in which nothing was found; empty where something was."""
    if cell.verdict.word in FOUND:
        return ""
    if cell.leakage.seeds < 2:
        return ", for one seed has no spread: give 10"
    needed = seeds_for(cell.leakage, cell.null, limit)
    if needed is None:
        return f", which more seeds will not change (mean {cell.leakage.mean:.2f}, chance {cell.null.mean:.2f})"
    return f", about {needed} seeds would tell" if needed > cell.leakage.seeds else ""
