"""Audit a caller's own code, a client step or a torch loop, by a run in the clear.

The run is made once a seed, without any defence, and attacked in two views: the server's, which holds the target's own
messages, and the sums alone. Secure aggregation without noise leaves the server just these sums, so that what is found
in them is reported under secure aggregation, though no masks ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from securefed._auditing.alerts import TableFacts, alerts, data_sheet
from securefed._auditing.engine.audit_report import ACCEPTABLE, Report, Subject, make_report
from securefed._auditing.engine.results import Secret
from securefed._auditing.engine.seed_result import gap_sentences
from securefed._auditing.engine.seed_tasks import Progress, audit_seed, run_tasks
from securefed._public import require
from securefed.attacks import views

DEFENSES: Final[Mapping[str, str]] = {views.SERVER_VIEW: "plain", views.SUM_ONLY: "secure_aggregation"}
"""By view, the defence under which a server sees just that."""
VIEWS: Final = tuple(DEFENSES)
"""Names of the views: `server`, which sees each client's messages, and `sum only`."""
SHOWN: Final[tuple[Secret, ...]] = ("samples", "gram", "pooled samples", "pooled gram")
"""Secrets that the report shows beside their estimates, from the first run."""


class ClearSubject(Subject, Protocol):
    """A caller's own run under audit."""

    @property
    def table(self) -> TableFacts:
        """Facts of the table of the clients' rows, for alerts; known once a seed has run."""
        ...

    @property
    def shared(self) -> Mapping[str, Any]:
        """Settings of the whole audit, the number of `clients` among them; known once a seed has run."""
        ...

    def assumptions(self) -> tuple[str, ...]:
        """List what the attackers are given."""
        ...

    def left_out(self) -> tuple[str, ...]:
        """List what was not run or cut short, beside attacks on single views."""
        ...


def chosen_views(view: Sequence[str]) -> tuple[str, ...]:
    """Return the views that a caller names, each once.

    Args:
        view: one name, or several.

    Raises:
        ConfigError: a name is unknown, or there is none.
    """
    chosen = (view,) if isinstance(view, str) else tuple(dict.fromkeys(view))
    unknown = sorted(set(chosen) - set(VIEWS))
    require(bool(chosen) and not unknown, f'views are "server" and "sum only"; got {unknown or "none"}')
    return chosen


def audit_in_the_clear(
    subject: ClearSubject, seeds: int, chosen: Sequence[str], progress: Progress | None, *, word: str, **more: Any
) -> Report:
    """Attack every seed of a caller's own run, and gather the report.

    Args:
        subject: the caller's run.
        seeds: number of runs.
        chosen: the views that are attacked.
        progress: told of every run that ends.
        word: what a run is called: `seeds` or `runs`.
        **more: further fields of `Report`.
    """
    results = run_tasks([(subject, seed) for seed in range(seeds)], audit_seed, progress)
    return make_report(
        [subject],
        results,
        [DEFENSES[name] for name in VIEWS if name in chosen],
        {"data": "the caller's rows", "seeds": seeds, "acceptable": ACCEPTABLE} | dict(subject.shared),
        skipped=(
            *subject.left_out(),
            *(reason for result in results for reason in result.skipped),
            *gap_sentences(results, seeds, word),
        ),
        assumptions=subject.assumptions(),
        alerts=alerts(subject.table),
        data=data_sheet(subject.table),
        **more,
    )
