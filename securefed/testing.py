"""For test suites: a gate on what an algorithm's messages give away.

def test_my_method_keeps_rows_to_itself():
    assert_leakage_below(0.2, my_contribute, clients, start=first, combine=follow)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from securefed.auditing.own import GATED, SECRETS, VIEWS, Clients, OwnAudit, OwnCell, Secret, audit_algorithm
from securefed.auditing.statistics import FOUND, seeds_for
from securefed.errors import ConfigError

__all__ = ["assert_leakage_below"]


def assert_leakage_below(
    limit: float,
    algorithm: Any,
    clients: Clients | None = None,
    *,
    views: Sequence[str] = ("server",),
    secrets: Sequence[Secret] = GATED,
    **audit: Any,
) -> OwnAudit:
    """Fail where an attack leaks `limit` or more, or where the audit is too weak to tell.

    Args:
        limit: 0 = nothing beyond public knowledge, 1 = exact.
        algorithm, clients, audit: as `securefed.audit_algorithm` takes them; or a finished `OwnAudit` alone.
        views: those that have to stay below: `("sum only",)` for a method that always runs under secure aggregation.
        secrets: of gram, samples, labels, membership, confirmation; confirmation is not asked for by default, since
            only noise withstands it.

    Returns:
        The audit, for further assertions.

    Raises:
        AssertionError: the upper end of some interval reaches `limit`, or a single client was reconstructed, or one row
            or column; or the audit was blind: a leak of `limit` would not have been detected, no attack on a secret
            ran, or the one that did does not explain the messages. The message holds the whole table.
        ConfigError: the limit is outside (0, 1), a view or secret is unknown, or nothing was audited.
    """
    if not 0 < limit < 1:
        raise ConfigError(f"the limit lies between 0 and 1, not {limit}")
    looks, sought = _names(views, VIEWS, "views"), _names(secrets, SECRETS, "secrets")
    found = algorithm if isinstance(algorithm, OwnAudit) else _audit(algorithm, clients, looks, audit)
    cells = [cell for cell in found.cells if cell.view in looks and cell.secret in sought]
    if not cells:
        raise ConfigError(f"no attack on {', '.join(sought)} ran: {'; '.join(found.skipped) or 'no such view'}")
    above = [
        f"{cell.view}, {cell.secret}, {cell.attack}: up to {cell.leakage.high:.2f}{_more(cell, limit)}"
        for cell in cells
        if cell.leakage.high >= limit
    ]
    above += [
        f"{cell.view}, {cell.secret}, {cell.attack}: {cell.given_away} was reconstructed"
        for cell in cells
        if cell.given_away
    ]
    if above:
        raise AssertionError(f"leakage is not below {limit:g}: {'; '.join(above)}\n{found}")
    weak = [reason for view in looks for secret in sought if (reason := found.unseen(view, secret)) is not None]
    weak += [
        f"{cell.view}, {cell.secret}, {cell.attack}: only a leak of {cell.verdict.detectable:.2f} would have been seen"
        f"{_more(cell, limit)}"
        for cell in cells
        if cell.verdict.word not in FOUND and not cell.verdict.detectable <= limit
    ]
    if weak:
        raise AssertionError(f"the audit is too weak for {limit:g}: {'; '.join(weak)}\n{found}")
    return found


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


def _names(given: Sequence[str], known: Sequence[str], what: str) -> tuple[Any, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ConfigError(f"{what} are {', '.join(known)}; not {', '.join(map(repr, unknown)) or 'none at all'}")
    return names


def _audit(algorithm: Any, clients: Clients | None, views: Sequence[str], audit: dict[str, Any]) -> OwnAudit:
    if clients is None:
        raise ConfigError("give the clients' rows, or a finished audit")
    return audit_algorithm(algorithm, clients, view=views, **audit)
