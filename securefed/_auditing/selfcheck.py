"""The audit audited: planted leaks have to be found, planted safety has to pass, and what did not run has to be named.

Runs through the same transcript, views, attacks, statistics and verdicts as every audit of one's own algorithm, and
through the same gate as every audit of registered ones. The leaks are in `planted`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from securefed._auditing.audit_cells import AUDIT, Report, RunFacts, Score, gather
from securefed._auditing.gate import reasons
from securefed._auditing.missing import missing
from securefed._auditing.own import GATED, OwnAudit, OwnCell, audit_algorithm
from securefed._auditing.own_gate import leaks
from securefed._auditing.planted import BOUND, PLANTED, Planted, advance, clients, labelled
from securefed._auditing.statistics import FOUND, INCONCLUSIVE
from securefed._auditing.task_results import Gap
from securefed.attacks._generic import FitRows
from securefed.errors import DataError

_ROUNDS, _SEEDS = 2, 10
_LIMIT = 0.95
"""Limit of the gate that must hold planted leaks back."""


@dataclass(frozen=True)
class Checked:
    """One planted function's result.

    Attributes:
        name: what was planted.
        audit: of it; `None` where it was refused, or where a gate was checked and no function.
        right: whether it was called as it should be.
        said: in a sentence.
    """

    name: str
    audit: OwnAudit | None
    right: bool
    said: str


def self_check(seeds: int = _SEEDS) -> tuple[Checked, ...]:
    """Audit every planted function, and every planted gap. Deterministic; some forty seconds of one core.

    Verdicts rest on `seeds` runs of small clients: 10 are needed for the promised rates.
    """
    return (*(check(planted, seeds) for planted in PLANTED), *check_gaps())


def failures(checked: Iterable[Checked]) -> list[str]:
    """A sentence for each planted function that was called wrongly; empty where the audit can be trusted."""
    return [f"planted {item.name}: {item.said}" for item in checked if not item.right]


def check(planted: Planted, seeds: int = _SEEDS) -> Checked:
    """Audit one planted function."""
    try:
        found = audit_algorithm(
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
        return Checked(planted.name, found, False, "audited, and not refused")
    if planted.secret is None:
        return Checked(planted.name, found, *_safe(found, planted.view))
    cells = [cell for cell in found.cells if cell.secret == planted.secret]
    best = max(cells, key=lambda cell: cell.leakage.low, default=None)
    if best is None:
        return Checked(planted.name, found, False, "not attacked")
    held = not planted.gated or bool(leaks(found, _LIMIT, (planted.view,), GATED))
    right = best.verdict.word in planted.words and held
    return Checked(planted.name, found, right, _said(best))


def _safe(found: OwnAudit, view: str) -> tuple[bool, str]:
    """Whether nothing is found, and every attack that looks for a secret of its own would have seen something."""
    wrong = [
        cell
        for cell in found.cells
        if cell.verdict.word in FOUND or (cell.verdict.word == INCONCLUSIVE and not cell.derived)
    ]
    said = "; ".join(_said(cell) for cell in wrong) or "nothing detected"
    return bool(found.cells) and not wrong, said


def _said(cell: OwnCell) -> str:
    return f"{cell.secret} {cell.verdict.word}, {cell.leakage.mean:.2f} by {cell.attack}"


def check_gaps() -> tuple[Checked, ...]:
    """Let a gate judge audits of which something did not run."""
    scores, ended = _scores(range(4)), Gap("pca/faps", "plain", "", "", 0, "left the numbers")
    never = [Gap("pca/faps", "plain", "", "", seed, "left the numbers") for seed in range(4)]
    both = ("pca/ssi", "pca/faps")
    other = [_score("pca/faps", seed) for seed in range(4)]
    cases: tuple[tuple[str, tuple[str, ...], list[Score], list[Gap], bool], ...] = (
        ("a skipped algorithm", both, scores, never, True),
        ("an empty table", both[1:], [], never, True),
        ("an algorithm nobody attacked", both, scores, [], True),
        ("an algorithm that data do not suit", both[:1], scores, [], True),
        ("a skipped seed", both, [*scores, *other[1:]], [ended], True),
        ("an audit of which all ran", both, [*scores, *other], [], False),
    )
    out = []
    for name, algorithms, known, gaps, held in cases:
        unfit = {"pca/fedpg": "too few columns"} if "suit" in name else {}
        found = reasons(_report(algorithms, known, gaps, unfit), 0.5)
        said = "; ".join(map(str, found)) or "passed"
        out.append(Checked(name, None, bool(found) == held and all(r.kind == "did not run" for r in found), said))
    return tuple(out)


def _report(algorithms: Iterable[str], scores: list[Score], gaps: list[Gap], unfit: dict[str, str]) -> Report:
    names = tuple(algorithms)
    facts = [RunFacts(name, "plain", seed, 1.0, 1.0, 1.0, 1) for name in names for seed in range(4)]
    lacking = missing(names, ("plain",), 4, scores, gaps, unfit)
    return Report("", "", {}, {AUDIT: {}}, tuple(gather(scores, facts, {})), tuple(facts), missing=lacking)


def _scores(seeds: Iterable[int]) -> list[Score]:
    return [_score("pca/ssi", seed) for seed in seeds]


def _score(algorithm: str, seed: int) -> Score:
    """Of an attack that learns nothing and explains its messages."""
    error = 1.0 + 0.01 * (seed % 2)
    return Score(
        algorithm, "plain", "server", "gram/power", "client", seed, error, 1.0, error, False, 0.0, 1, 1, 1.0, True, True
    )
