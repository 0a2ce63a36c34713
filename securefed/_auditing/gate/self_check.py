"""Check the audit itself: planted leaks must be found, safe functions must pass, and gaps must be named.

The command line calls `self_check`. A planted function is a client function whose leak is known. It goes through the
same run, views, attacks, statistics and verdicts as every audit of a user's own algorithm. A gap is something that was
to run and did not: an attack, a seed, an algorithm. The gate decides whether an audit passes a limit on leakage; with a
gap it must not pass. The functions are in `planted_leaks`, tables whose exposed secrets imply others in
`planted_tables`, and settings whose word of safety is known in `planted_settings`; planted gaps go through the gate of
registered algorithms, and planted noise through the audit of noise. Tables with a fault (`planted_alerts`) must raise
their alerts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from securefed._auditing.alerts import alerts
from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.audit_result import AUDIT
from securefed._auditing.engine.gathering import gather
from securefed._auditing.engine.incomplete_results import DID_NOT_RUN, NOT_ATTACKED, missing
from securefed._auditing.engine.results import CLIENT, GATED, Attempt, Cell, RunFacts
from securefed._auditing.engine.seed_result import Gap
from securefed._auditing.engine.statistics import FOUND, INCONCLUSIVE
from securefed._auditing.gate.leakage_limits import leaks, reasons
from securefed._auditing.gate.planted_alerts import clean, planted_tables
from securefed._auditing.gate.planted_leaks import BOUND, PLANTED, Planted, advance, clients, labelled
from securefed._auditing.gate.planted_noise import PLANTED_NOISE, audited
from securefed._auditing.gate.planted_settings import PLANTED_SETTINGS, check_setting
from securefed._auditing.gate.planted_tables import PLANTED_TABLES, check_table
from securefed._auditing.own.own_audit import audit_algorithm
from securefed.attacks._generic import FitRows
from securefed.errors import DataError

_ROUNDS: Final = 2
_SEEDS: Final = 10
_EXACT_LIMIT: Final = 0.95
"""Limit on leakage (1 is exact) at which the gate must fail on planted leaks: all but exact ones would pass it."""
_GAP_SEEDS: Final = 4
"""Seeds of an audit with a planted gap; its attempts are made up, so that more would show nothing else."""
_GAP_LIMIT: Final = 0.5
"""Limit of the gate in front of planted gaps; their attempts leak nothing, so that any limit would do."""


@dataclass(frozen=True)
class Checked:
    """Result of one planted function or gap.

    Attributes:
        name: what was planted.
        audit: the audit of the function; `None` if it was refused, or if a gap was planted.
        right: whether the audit judged it as it should.
        said: the judgement, in a sentence.
    """

    name: str
    audit: Report | None
    right: bool
    said: str


def self_check() -> tuple[Checked, ...]:
    """Audit every planted function, gap, noise and table. It takes some forty seconds of one core.

    All but the noise is deterministic; noise of the planned size is flagged in less than 3 of 10^6 checks.
    """
    return (*map(check, PLANTED), *check_tables(), *check_settings(), *check_gaps(), *check_noise(), *check_alerts())


def failures(checked: Iterable[Checked]) -> list[str]:
    """Return a sentence for each wrong judgement; empty if the audit can be trusted."""
    return [f"planted {item.name}: {item.said}" for item in checked if not item.right]


def check(planted: Planted, seeds: int = _SEEDS) -> Checked:
    """Audit one planted function, and judge the strongest cell of its secret.

    Args:
        planted: the function, and what the audit must say of it.
        seeds: number of runs; with fewer than 10 the intervals are so wide that right verdicts may be missed.
    """
    try:
        report = audit_algorithm(
            planted.function,
            labelled if planted.labels else clients,
            rounds=_ROUNDS,
            seeds=seeds,
            start=planted.start,
            combine=advance,
            view=(planted.view,),
            feature_bound=BOUND,
            fit=FitRows(starts=1, steps=8),
        )
    except DataError as refusal:
        right = bool(planted.refused) and planted.refused in str(refusal)
        return Checked(planted.name, None, right, f"refused: {refusal}")
    if planted.refused:
        return Checked(planted.name, report, False, "audited, and not refused")
    if planted.secret is None:
        return Checked(planted.name, report, *_is_silent(report))
    cells = [cell for cell in report.cells if cell.secret == planted.secret]
    best = max(cells, key=lambda cell: cell.leakage.low, default=None)
    if best is None:
        return Checked(planted.name, report, False, "not attacked")
    # the verdict must be one of the right `words`, and where the leak is exact the gate must fail
    gate_is_right = not planted.gated or bool(leaks(report, _EXACT_LIMIT, (planted.view,), GATED))
    return Checked(planted.name, report, best.verdict.word in planted.words and gate_is_right, _verdict(best))


def _is_silent(report: Report) -> tuple[bool, str]:
    """Tell whether the audit rightly finds nothing, and in a sentence what is wrong.

    An attack may be inconclusive only where its estimate was computed from that of another attack (`Reach.derived`).
    """
    if not report.cells:
        return False, "no attack ran"
    wrong = [
        cell
        for cell in report.cells
        if cell.verdict.word in FOUND or (cell.verdict.word == INCONCLUSIVE and not cell.reach.derived)
    ]
    return not wrong, "; ".join(map(_verdict, wrong)) or "nothing detected"


def _verdict(cell: Cell) -> str:
    return f"{cell.secret} {cell.verdict.word}, {cell.leakage.mean:.2f} by {cell.attack}"


def check_tables() -> tuple[Checked, ...]:
    """Compute what follows from exposed secrets of planted tables, single people among it."""
    return tuple(Checked(planted.name, None, *check_table(planted)) for planted in PLANTED_TABLES)


def check_settings() -> tuple[Checked, ...]:
    """Let the rule behind "held" judge settings whose views are kept, leak, or were not attacked."""
    return tuple(Checked(planted.name, None, *check_setting(planted)) for planted in PLANTED_SETTINGS)


def check_noise() -> tuple[Checked, ...]:
    """Let the noise audit judge noise with a fault, and noise as planned."""
    out = []
    for name, noise, to_flag in PLANTED_NOISE:
        found = audited(noise)
        epsilon = max(found.bound, found.tradeoff)  # two lower bounds on epsilon
        said = f"standard deviation at most {found.deviation:.2f} of the planned one, "
        said += "; ".join([f"epsilon at least {epsilon:.2f} of {found.claimed:.2f}", *found.faults])
        out.append(Checked(name, None, found.flagged == to_flag, said))
    return tuple(out)


def check_alerts() -> tuple[Checked, ...]:
    """Draw the alerts of every planted table, which must be found, and of a clean one, which must raise none."""
    out = []
    for name, (facts, kind, column) in planted_tables().items():
        found = alerts(facts)
        right = any(alert.kind == kind and column in alert.column for alert in found)
        out.append(Checked(name, None, right, "; ".join(alert.text for alert in found) or "no alert"))
    found = alerts(clean())
    out.append(Checked("a clean table", None, not found, "; ".join(alert.text for alert in found) or "no alert"))
    return tuple(out)


@dataclass(frozen=True)
class _PlantedGap:
    """An audit of SSI and FAPS in which something did not run.

    Attributes:
        name: what did not run.
        algorithms: algorithms that were to be audited.
        attempts: attacks that ran.
        gaps: what is known not to have run.
        unfit: by algorithm, why the data do not suit it.
        fails: whether the gate must fail.
        kind: kind of the reason for which it fails.
    """

    name: str
    algorithms: tuple[str, ...]
    attempts: list[Attempt]
    gaps: list[Gap]
    unfit: dict[str, str] = field(default_factory=dict)
    fails: bool = True
    kind: str = DID_NOT_RUN


def check_gaps() -> tuple[Checked, ...]:
    """Let the gate judge audits of which something did not run."""
    both = ("pca/ssi", "pca/faps")
    ssi, faps = ([_silent_attempt(name, seed) for seed in range(_GAP_SEEDS)] for name in both)
    diverged = [
        Gap("pca/faps", "plain", view="", attack="", seed=seed, reason="diverged") for seed in range(_GAP_SEEDS)
    ]
    unread = [
        Gap("pca/faps", "plain", "server", attack, seed, "they are of another algorithm")
        for attack in ("gram/power", "duals/fedpg")
        for seed in range(_GAP_SEEDS)
    ]
    planted = (
        _PlantedGap("a skipped algorithm", both, ssi, diverged),
        _PlantedGap("an empty table", both[1:], [], diverged),
        _PlantedGap("an algorithm that no attack looked at", both, ssi, []),
        _PlantedGap("messages that no attack reads", both, ssi, unread, kind=NOT_ATTACKED),
        _PlantedGap("an algorithm that data do not suit", both[:1], ssi, [], unfit={"pca/fedpg": "too few columns"}),
        _PlantedGap("a skipped seed", both, [*ssi, *faps[1:]], diverged[:1]),
        _PlantedGap("an audit of which all ran", both, [*ssi, *faps], [], fails=False),
    )
    out = []
    for gap in planted:
        found = reasons(_report(gap), _GAP_LIMIT)
        right = bool(found) == gap.fails and all(reason.kind == gap.kind for reason in found)
        out.append(Checked(gap.name, None, right, "; ".join(map(str, found)) or "passed"))
    return tuple(out)


def _report(gap: _PlantedGap) -> Report:
    """Make the report of an audit with a planted gap, from the same functions as every report."""
    facts = [
        RunFacts(name, "plain", seed, utility=1.0, bytes_per_client_round=1.0, seconds_per_round=1.0, rounds=1)
        for name in gap.algorithms
        for seed in range(_GAP_SEEDS)
    ]
    gap_rows = missing(gap.algorithms, ("plain",), _GAP_SEEDS, gap.attempts, gap.gaps, gap.unfit)
    cells = tuple(gather(gap.attempts))
    return Report("", "", {}, {AUDIT: {}}, cells, tuple(facts), missing=gap_rows)


def _silent_attempt(algorithm: str, seed: int) -> Attempt:
    """Make an attempt of an attack that learns nothing, though its estimate explains the messages it was given."""
    leakage = -0.01 * (seed % 2)  # at or below zero, and not the same in every run, as real estimates are
    return Attempt(
        algorithm, "plain", "server", seed, 0, "gram/power", CLIENT, leakage=leakage, null_leakage=leakage,
        error=1 - leakage, baseline=1.0, explained=True, null_explained=True,
    )  # fmt: skip
