"""Check the audit itself: planted leaks must be found, safe functions must pass, and gaps must be named.

Planted functions go through the same run, views, attacks, statistics and verdicts as every audit of a user's own
algorithm; planted gaps go through the gate of registered algorithms. The functions are in `planted_leaks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from securefed._auditing.engine.audit_report import AUDIT, Report
from securefed._auditing.engine.gathering import gather
from securefed._auditing.engine.incomplete_results import missing
from securefed._auditing.engine.results import CLIENT, GATED, Attempt, Cell, RunFacts
from securefed._auditing.engine.seed_result import Gap
from securefed._auditing.engine.statistics import FOUND, INCONCLUSIVE
from securefed._auditing.gate.leakage_limits import leaks, reasons
from securefed._auditing.gate.planted_leaks import BOUND, PLANTED, Planted, advance, clients, labelled
from securefed._auditing.own.own_audit import audit_algorithm
from securefed.attacks._generic import FitRows
from securefed.errors import DataError

_ROUNDS: Final = 2
_SEEDS: Final = 10
_LIMIT: Final = 0.95
"""Limit of the gate that must fail on planted leaks."""


@dataclass(frozen=True)
class Checked:
    """Result of one planted function or gap.

    Attributes:
        name: what was planted.
        audit: of the function; `None` if it was refused, or if a gap was planted.
        right: whether the audit judged it as it should.
        said: the judgement, in a sentence.
    """

    name: str
    audit: Report | None
    right: bool
    said: str


def self_check(seeds: int = _SEEDS) -> tuple[Checked, ...]:
    """Audit every planted function and every planted gap. Deterministic; it takes some forty seconds of one core.

    Verdicts rest on `seeds` runs of small clients; the promised error rates need 10.
    """
    return (*(check(planted, seeds) for planted in PLANTED), *check_gaps())


def failures(checked: Iterable[Checked]) -> list[str]:
    """Return a sentence for each wrong judgement; empty if the audit can be trusted."""
    return [f"planted {item.name}: {item.said}" for item in checked if not item.right]


def check(planted: Planted, seeds: int = _SEEDS) -> Checked:
    """Audit one planted function."""
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
    fails = not planted.gated or bool(leaks(report, _LIMIT, (planted.view,), GATED))
    return Checked(planted.name, report, best.verdict.word in planted.words and fails, _verdict(best))


def _is_silent(report: Report) -> tuple[bool, str]:
    """Whether nothing is found, and every attack that looks for a secret of its own would have seen something."""
    wrong = [
        cell
        for cell in report.cells
        if cell.verdict.word in FOUND or (cell.verdict.word == INCONCLUSIVE and not cell.derived)
    ]
    return bool(report.cells) and not wrong, "; ".join(map(_verdict, wrong)) or "nothing detected"


def _verdict(cell: Cell) -> str:
    return f"{cell.secret} {cell.verdict.word}, {cell.leakage.mean:.2f} by {cell.attack}"


def check_gaps() -> tuple[Checked, ...]:
    """Let the gate judge audits of which something did not run."""
    ssi, faps = ([_silent_attempt(name, seed) for seed in range(4)] for name in ("pca/ssi", "pca/faps"))
    ended = [Gap("pca/faps", "plain", "", "", seed, "left the numbers") for seed in range(4)]
    both = ("pca/ssi", "pca/faps")
    cases: tuple[tuple[str, tuple[str, ...], list[Attempt], list[Gap], bool], ...] = (
        ("a skipped algorithm", both, ssi, ended, True),
        ("an empty table", both[1:], [], ended, True),
        ("an algorithm that no attack looked at", both, ssi, [], True),
        ("an algorithm that data do not suit", both[:1], ssi, [], True),
        ("a skipped seed", both, [*ssi, *faps[1:]], ended[:1], True),
        ("an audit of which all ran", both, [*ssi, *faps], [], False),
    )
    out = []
    for name, algorithms, attempts, gaps, fails in cases:
        unfit = {"pca/fedpg": "too few columns"} if "suit" in name else {}
        found = reasons(_report(algorithms, attempts, gaps, unfit), 0.5)
        right = bool(found) == fails and all(reason.kind == "did not run" for reason in found)
        out.append(Checked(name, None, right, "; ".join(map(str, found)) or "passed"))
    return tuple(out)


def _report(algorithms: Sequence[str], attempts: list[Attempt], gaps: list[Gap], unfit: dict[str, str]) -> Report:
    facts = [RunFacts(name, "plain", seed, 1.0, 1.0, 1.0, 1) for name in algorithms for seed in range(4)]
    gap_rows = missing(algorithms, ("plain",), 4, attempts, gaps, unfit)
    return Report("", "", {}, {AUDIT: {}}, tuple(gather(attempts, facts, {})), tuple(facts), missing=gap_rows)


def _silent_attempt(algorithm: str, seed: int) -> Attempt:
    """Make an attempt of an attack that learns nothing and explains its messages."""
    leak = -0.01 * (seed % 2)
    place = (algorithm, "plain", "server", seed, 0)
    return Attempt(*place, "gram/power", CLIENT, leak, leak, 1 - leak, 1.0, explained=True, null_explained=True)
