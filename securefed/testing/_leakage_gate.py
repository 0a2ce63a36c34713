"""A check for test suites that limits how much an algorithm's messages leak.

    def test_my_method_keeps_rows_to_itself():
        assert_leakage_below(0.2, my_contribute, clients, start=first, combine=follow)

An audit runs the algorithm several times and attacks what an observer sees of each run (a view: the server's messages,
or the sums only) for several secrets. The leakage of an attack is 0 where it does no better than a guess from public
facts, and 1 where it is exact; each mean over the runs has a 95 % interval. The secrets are these:

    samples, gram, labels           one client's rows, their Gram matrix X^T X, its number of rows of each class
    distances                       squared distances between one client's columns (`audit_algorithm(unknown=...)`)
    membership                      whether a given row took part, for an attacker who has rows like the clients'
    confirmation                    the same, for an attacker who knows all other rows
    pooled samples, pooled gram     rows and Gram matrix of all clients together
    client, federation              of a report of `securefed.audit`: one client's, and all clients' data
    column means, class means       means of one client's columns, over its rows and over those of each class
    counts                          how many of one client's rows have each category, and each two of them together
    people                          the row of one person, or the mean of two to four, in all clients' data together
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.clear_runs import VIEWS
from securefed._auditing.engine.results import GATED, ON_REQUEST, POOLED, SECRETS, Secret
from securefed._auditing.gate.leakage_limits import (
    OWNERS,
    absent,
    asks_for,
    blind,
    has_label_counts,
    leaks,
    reasons,
    require_names,
)
from securefed._auditing.own.own_audit import Clients, audit_algorithm
from securefed._hyperparameters import check_number
from securefed.attacks.views import SUM_ONLY
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
) -> Report:
    """Fail if an attack leaks `limit` or more, or if the audit is too weak to decide.

    Args:
        limit: largest leakage that is allowed, above 0 and below 1.
        algorithm: as `securefed.audit_algorithm` takes it; or the `Report` of a finished audit, alone. That of
            `securefed.audit` is judged as by `securefed audit --fail-above`.
        clients: their rows, one `securefed.Dataset` each; not with a finished audit.
        views: those that have to stay below: `("sum only",)` for a method that always runs under secure aggregation;
            in a report of `securefed.audit` any of its views.
        secrets: those of the module's list that have to stay below; all but confirmation by default, which only noise
            withstands. Pooled ones are attacked in the view "sum only" alone, so that the default `views` do not check
            them: add that view, and leave pooled secrets out for a method whose purpose is a pooled statistic. A
            secret that is named here and cannot be attacked is refused.
        **audit: further arguments of `securefed.audit_algorithm`; none with a finished audit.

    Returns:
        The audit, for further assertions.

    Raises:
        AssertionError: the upper end of some interval reaches `limit`, or some run's attack reconstructed one client's
            data, or one row or column of them, whatever the mean; or the audit was blind: a leak of `limit` would not
            have been detected, no attack was scored for a secret, the one that was does not explain the messages, or
            something that the audit was asked for did not run. The message holds the whole table.
        ConfigError: the limit is outside (0, 1), a view or secret is unknown, a named secret cannot be attacked in the
            views or data, nothing was audited, or a finished audit came with clients or further arguments.
    """
    check_number("limit", limit, below=1, positive=True)
    ignored = [*(["clients"] if clients is not None else []), *audit]
    if isinstance(algorithm, Report) and ignored:
        raise ConfigError(f"a finished audit is judged as it is; leave out {', '.join(ignored)}")
    if isinstance(algorithm, Report) and any(cell.secret in OWNERS for cell in algorithm.cells):
        return _registered(algorithm, limit, views, OWNERS if secrets is GATED else secrets)
    looks, sought = _names(views, VIEWS, "views"), _names(secrets, SECRETS, "secrets")
    found = algorithm if isinstance(algorithm, Report) else _audit(algorithm, clients, looks, audit)
    if secrets is not GATED:
        _require_attackable(sought, looks, found)
    cells = [cell for cell in found.cells if cell.view in looks and cell.secret in sought]
    if not cells:
        raise ConfigError(f"no attack on {', '.join(sought)} ran: {'; '.join(found.skipped) or 'no such view'}")
    above = leaks(found, limit, looks, sought)  # a sentence for each leak
    if above:
        raise AssertionError(f"leakage is not below {limit:g}: {'; '.join(above)}\n{found}")
    gaps = absent(found, looks)  # a sentence for each algorithm, defence, view or attack that did not run
    if gaps:
        raise AssertionError(f"the audit did not run all that it was asked for: {'; '.join(gaps)}\n{found}")
    weak = blind(found, limit, looks, sought)  # a sentence for each attack that would not have noticed such a leak
    if weak:
        raise AssertionError(f"the audit is too weak for {limit:g}: {'; '.join(weak)}\n{found}")
    return found


def _registered(report: Report, limit: float, views: Sequence[str], secrets: Sequence[str]) -> Report:
    """Judge the report of registered algorithms."""
    looks, sought = ((names,) if isinstance(names, str) else tuple(names) for names in (views, secrets))
    require_names(looks, sought, ("views", "secrets"))
    if found := reasons(report, limit, looks, sought):
        raise AssertionError(f"leakage is not below {limit:g}: {'; '.join(map(str, found))}\n{report}")
    return report


def _names(given: Sequence[str], known: Sequence[str], what: str) -> tuple[Any, ...]:
    """Return one name or several as a tuple; raise `ConfigError` for none, or one that is not known."""
    names = (given,) if isinstance(given, str) else tuple(given)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ConfigError(f"{what} must be of {', '.join(known)}; got {', '.join(map(repr, unknown)) or 'none'}.")
    return names


def _require_attackable(secrets: Sequence[Secret], views: Sequence[str], report: Report) -> None:
    """Raise `ConfigError` for a secret that no attack can look for, which would pass whatever leaks."""
    if (pooled := [name for name in secrets if name in POOLED]) and SUM_ONLY not in views:
        raise ConfigError(
            f'{", ".join(pooled)}: pooled secrets are attacked in the view "{SUM_ONLY}" alone; add it to views, or '
            "leave them out of secrets"
        )
    if "labels" in secrets and not has_label_counts(report):
        raise ConfigError("labels: the clients' data hold no counts of classes; leave labels out of secrets")
    if (names := [name for name in secrets if name in ON_REQUEST]) and not asks_for(report, "distances"):
        raise ConfigError(f"{', '.join(names)}: the audit was not asked for distances; leave them out of secrets")


def _audit(algorithm: Any, clients: Clients | None, views: Sequence[str], audit: dict[str, Any]) -> Report:
    if clients is None:
        raise ConfigError(
            "clients must be the clients' rows, one securefed.Dataset each; got None. Give them, or a finished audit."
        )
    return audit_algorithm(algorithm, clients, view=views, **audit)
