"""Decide whether an audit stays below a limit on leakage, and whether it could have seen a leak of that size.

A gate fails a build or a test where an algorithm leaks more than a limit. The report of an audit holds cells: one
attack on one secret in one view (what an attacker sees), with the mean leakage over seeds (1 is exact, 0 a guess
without messages), its 95 % interval, the leakage of the attack on meaningless messages (chance), and a verdict. A cell
also says

    verdict.detectable    the smallest mean leakage that would have been noticed in 8 of 10 repetitions; NaN of one seed
    sighted               the attack ran on most seeds and explained their messages, so that its silence means something
    searches              the attack looks for this secret wherever messages may hide it, not only rows that they show
    derived               its estimate was computed from that of another secret
    given_away            whose data, or which row or column, a single run reconstructed; empty if none
    remarks               these and other reservations, in words

Two gates use the same report. `securefed audit --fail-above` asks `reasons`: no cell above the limit, none unknown, and
nothing left out, in all views and of all secrets or in those of the user's choice.
`securefed.testing.assert_leakage_below` asks `leaks`, `absent` and `blind`: every cell strictly below the limit,
nothing left out, and for each secret a search that had the power to find a leak of the limit's size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from securefed._auditing.engine.audit_result import AuditResult
from securefed._auditing.engine.incomplete_results import NOT_ATTACKED
from securefed._auditing.engine.results import CLIENT, FEDERATION, IMPLIED, ON_REQUEST, POOLED, SECRETS, Cell, Secret
from securefed._auditing.engine.statistics import FOUND, INCONCLUSIVE, seeds_for, upper
from securefed._auditing.report.report_words import why_inconclusive
from securefed._auditing.report.selections import strongest
from securefed.attacks.views import (
    ACTIVE_SERVER,
    CHANGING_SURVIVORS,
    KEY_HOLDER_VIEW,
    RELEASED,
    SERVER_VIEW,
    SMALLEST_SUM,
    SUM_ONLY,
)
from securefed.errors import ConfigError


@dataclass(frozen=True)
class Reason:
    """One reason for a gate to fail.

    Attributes:
        kind: `above`, `unknown`, `did not run`, `not attacked`; between two audits `grew`, `new`, `no longer known`,
            `no longer tried`.
        where: algorithm, defence, view, attack and secret, as far as the reason extends.
        said: figures, or why.
    """

    kind: str
    where: str
    said: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.said}"


NO_CELL = "it holds no cell"
"""Reason of an audit without any result."""
VIEWS: Final = (SERVER_VIEW, SUM_ONLY, SMALLEST_SUM, CHANGING_SURVIVORS, KEY_HOLDER_VIEW, RELEASED, ACTIVE_SERVER)
"""Views of an audit of registered algorithms, beside those of colluding clients."""
OWNERS: Final = (CLIENT, FEDERATION)
"""Secrets of an audit of registered algorithms."""
_COLLUSION: Final = re.compile(r"collusion\(\d+\)")
"""Name of the view of a server that so many clients help."""


def require_limit(limit: float, name: str) -> None:
    """Refuse a limit that no leak could exceed, or that every audit exceeds.

    Args:
        limit: a leakage: 0 is nothing, 1 is exact.
        name: the name of the option, for the message.

    Raises:
        ConfigError: the limit is not a number of at least 0 and below 1.
    """
    if not (math.isfinite(limit) and 0 <= limit < 1):
        raise ConfigError(
            f"{name} takes a leakage of at least 0 (nothing leaks) and below 1 (all is exact, so that no cell is above "
            f"it); got {limit:g}"
        )


def reasons(report: AuditResult, limit: float, views: Sequence[str] = (), secrets: Sequence[str] = ()) -> list[Reason]:
    """List every reason to fail; empty if all that was asked for ran, is known, and leaks at most `limit`.

    Of named views and secrets all must have been attacked for every algorithm, and one under every defence.

    Not promised: that no other attack finds more.

    Args:
        report: the report of the audit.
        limit: a leakage, which the upper end of every interval in the report must not exceed; below 10 seeds these
            intervals are too narrow (`upper`), and the gate may pass a leak somewhat above the limit.
        views: names of the views that count; all by default.
        secrets: names of the secrets that count; all by default.
    """
    cells = [
        cell for cell in report.cells if (not views or cell.view in views) and (not secrets or cell.secret in secrets)
    ]
    above = [
        Reason("above", _where(cell, cell.attack), f"up to {cell.leakage.high:.3f}")
        for cell in cells
        if not cell.leakage.high <= limit
    ]
    unknown = [
        Reason("unknown", _where(cell), why_inconclusive(cell))
        for cell in strongest(cells).values()
        if cell.verdict.word == INCONCLUSIVE
    ]
    gaps = [item for item in report.missing if not views or not item.view or item.view in views]
    out = (
        above + unknown + [Reason(item.kind, item.where, item.said.removeprefix(f"{NOT_ATTACKED}: ")) for item in gaps]
    )
    if not report.cells and not gaps:
        out.append(Reason("did not run", "the audit", NO_CELL))
    return out + _unattacked(report, cells, views, secrets)


def _unattacked(
    report: AuditResult, cells: Sequence[Cell], views: Sequence[str], secrets: Sequence[str]
) -> list[Reason]:
    """List the named views and secrets that no attack looked at, of an algorithm or of one defence.

    Args:
        report: the report of the audit.
        cells: those of its cells that count.
        views: names of the views that count; empty for all.
        secrets: names of the secrets that count; empty for all.
    """
    out = []
    for algorithm in dict.fromkeys(cell.algorithm for cell in report.cells):
        own = [cell for cell in cells if cell.algorithm == algorithm]
        attacked = {name for cell in own for name in (cell.view, cell.secret)}
        for name in (*views, *secrets):
            if name not in attacked:
                out.append(Reason("did not run", f"{algorithm}, {name}", "no attack looked there"))
        for defense in dict.fromkeys(cell.defense for cell in report.cells if cell.algorithm == algorithm):
            if own and not any(cell.defense == defense for cell in own):
                where = " or ".join(", ".join(names) for names in (views, secrets) if names)
                out.append(Reason("did not run", f"{algorithm}, {defense}", f"no attack looked at {where} under it"))
    return out


def require_names(views: Sequence[str], secrets: Sequence[str], options: tuple[str, str]) -> None:
    """Refuse names of views and secrets that no audit has.

    Args:
        views: names of views.
        secrets: names of secrets.
        options: the names of both options, for the message.

    Raises:
        ConfigError: a name is unknown.
    """
    wrong = [name for name in views if name not in VIEWS and not _COLLUSION.fullmatch(name)]
    if wrong:
        known = f"{', '.join(VIEWS)}, or collusion(N) for N clients that help the server"
        raise ConfigError(f"{options[0]} takes {known}; got {', '.join(wrong)}")
    if wrong := [name for name in secrets if name not in (*OWNERS, *SECRETS)]:
        raise ConfigError(
            f"{options[1]} takes {', '.join(OWNERS)}, or of an algorithm of your own {', '.join(SECRETS)}; got "
            f"{', '.join(wrong)}"
        )


def leaks(report: AuditResult, limit: float, views: Sequence[str], secrets: Sequence[Secret]) -> list[str]:
    """List every cell whose `upper` end reaches the limit, and every client, row or column that was reconstructed.

    The scatter of a silent estimate that was computed from another secret's does not count where an attack on its own
    secret has the power that the limit needs.

    Args:
        report: the report of the audit.
        limit: a leakage.
        views: names of the views that count.
        secrets: names of the secrets that count.

    Returns:
        One sentence for each; empty if nothing leaks that much.
    """
    cells = _chosen(report, views, secrets)
    out = [
        f"{_place(cell)}: up to {upper(cell.leakage):.2f}{_seeds_needed(cell, limit)}"
        for cell in cells
        if upper(cell.leakage) >= limit and (cell.verdict.word in FOUND or not _covered(cell, cells, limit))
    ]
    return out + [f"{_place(cell)}: {cell.given_away} was reconstructed" for cell in cells if cell.given_away]


def absent(report: AuditResult, views: Sequence[str]) -> list[str]:
    """List what did not run of some view that counts, in sentences; an algorithm or a defence stands for all its views.

    Args:
        report: the report of the audit.
        views: names of the views that count.
    """
    return [str(item) for item in report.missing if not item.view or item.view in views]


def blind(report: AuditResult, limit: float, views: Sequence[str], secrets: Sequence[Secret]) -> list[str]:
    """List every secret that no attack searched for, and every attack that would not have seen a leak of `limit`.

    The arguments are those of `leaks`; there is one sentence for each.
    """
    cells = _chosen(report, views, secrets)
    out = [text for view in views for secret in secrets if (text := unsearched(report, view, secret)) is not None]
    return out + [
        f"{_place(cell)}: {_seen(cell.verdict.detectable)} would have been seen{_seeds_needed(cell, limit)}"
        for cell in cells
        if cell.secret not in IMPLIED
        and cell.verdict.word not in FOUND
        and not cell.verdict.detectable <= limit
        and not _covered(cell, cells, limit)
    ]


def _seen(detectable: float) -> str:
    """Say which leak would have been seen; one above 1 does not exist."""
    return f"only a leak of {detectable:.2f}" if detectable <= 1 else "no leak, not even of everything,"


def unsearched(report: AuditResult, view: str, secret: Secret) -> str | None:
    """Say why no attack would have seen a leak of a secret in a view; `None` if one would, or if there is none to see.

    Only an attack whose estimate was scored for this very secret has searched for it. Pooled secrets, the data of all
    clients together, are asked of sums only. Counts of labels are a secret only where labels are classes that the
    clients hold in different shares. What follows from other secrets is not searched for by itself.
    """
    if secret in IMPLIED or (secret in ON_REQUEST and not asks_for(report, "distances")):
        return None
    if (secret == "labels" and not has_label_counts(report)) or (secret in POOLED and view != SUM_ONLY):
        return None
    cells = [c for c in report.cells if c.view == view and c.secret == secret and c.searches]
    if any(cell.sighted for cell in cells):
        return None
    unsure = [f"{cell.attack}{cell.remarks}" for cell in cells]
    skipped = [reason for reason in report.skipped if reason.startswith(view)]
    return f"{view}, {secret}: no attack would have seen a leak: {'; '.join([*unsure, *skipped]) or 'none was tried'}"


def has_label_counts(report: AuditResult) -> bool:
    """Whether counts of labels were among the secrets."""
    return asks_for(report, "labels")


def asks_for(report: AuditResult, secret: str) -> bool:
    """Whether a secret beside the rows was among those that the audit looked for."""
    return any(secret in report.settings[name].get("also attacked", "") for name in report.algorithms)


def _chosen(report: AuditResult, views: Sequence[str], secrets: Sequence[Secret]) -> list[Cell]:
    return [cell for cell in report.cells if cell.view in views and cell.secret in secrets]


def _covered(cell: Cell, cells: Iterable[Cell], limit: float) -> bool:
    """Whether another attack makes up for a cell without power.

    One does if this cell's estimate was only computed from that of another secret, and the other attack searched for
    this secret itself with the power that the limit needs.
    """
    return cell.reach.derived and any(
        other.searches and other.sighted and (other.verdict.word in FOUND or other.verdict.detectable <= limit)
        for other in cells
        if (other.view, other.secret) == (cell.view, cell.secret)
    )


def _seeds_needed(cell: Cell, limit: float) -> str:
    """Say how many seeds would decide, of a cell in which nothing was found; empty if something was."""
    if cell.verdict.word in FOUND:
        return ""
    if cell.leakage.seeds < 2:
        return ", for one seed has no spread: give 10"
    needed = seeds_for(cell.leakage, cell.null_leakage, limit)
    if needed is None:
        means = f"mean {cell.leakage.mean:.2f}, chance {cell.null_leakage.mean:.2f}"
        return f", which more seeds will not change ({means})"
    return f", about {needed} seeds would tell" if needed > cell.leakage.seeds else ""


def _place(cell: Cell) -> str:
    return f"{cell.view}, {cell.secret}, {cell.attack}"


def _where(cell: Cell, attack: str = "") -> str:
    return ", ".join(name for name in (cell.algorithm, cell.defense, cell.view, attack, cell.secret) if name)
