"""The audit's results: one cell for each algorithm, defence, view, attack and secret; JSON in and out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from securefed._auditing.misfit import offered
from securefed._auditing.report_text import short, short_defense
from securefed._auditing.statistics import EXPOSED_FROM, Interval, Verdict, interval, verdict
from securefed.attacks.scores import leakage
from securefed.errors import StorageError

Secret = Literal["client", "federation"]
CLIENT: Final[Literal["client"]] = "client"
FEDERATION: Final[Literal["federation"]] = "federation"
NOT_COVERED = "not covered"
AUDIT: Final = "audit"
"""The key of `Report.settings` that is no algorithm: what all of them share."""


@dataclass(frozen=True)
class Score:
    """One attack on one run.

    Attributes:
        error, baseline: relative errors of the attack and of the baseline guess.
        null_error: of the same attack on the shuffled transcript.
        failed: the attack returned nothing finite, so that its user falls back on the baseline.
        residual, rank, unknowns, condition: as the attack reported them.
        explained, null_explained: whether the estimate explains the messages to their precision, on the transcript and
            on the shuffled one; `None` where the attack checks nothing.
    """

    algorithm: str
    defense: str
    view: str
    attack: str
    secret: Secret
    seed: int
    error: float
    baseline: float
    null_error: float
    failed: bool
    residual: float
    rank: int
    unknowns: int
    condition: float
    explained: bool | None = None
    null_explained: bool | None = None

    @property
    def leakage(self) -> float:
        return leakage(self.error, self.baseline)

    @property
    def null_leakage(self) -> float:
        return leakage(self.null_error, self.baseline)


@dataclass(frozen=True)
class RunFacts:
    """What one run under one defence cost and achieved.

    Attributes:
        utility: of the final model on held-out rows (higher is better).
        bytes_per_client_round: both directions, all stages, exact.
        seconds_per_round: wall clock of the whole federation in one process.
        epsilon: of what leaves the aggregator after all rounds, `None` without noise.
        rounds: that ran; of an exact defence on the first seed only some.
        real: whether the defence itself ran (else its quantised equivalent, see `note`).
        view: the one view this run was made for; empty for the defence's usual run.
        identical: for a real run of an exact defence: whether every sum equalled the quantised run's bit for bit.
    """

    algorithm: str
    defense: str
    seed: int
    utility: float
    bytes_per_client_round: float
    seconds_per_round: float
    rounds: int
    epsilon: float | None = None
    real: bool = True
    identical: bool | None = None
    view: str = ""


@dataclass(frozen=True)
class Cell:
    """All seeds of one cell.

    Attributes:
        error, baseline_error: means over seeds.      error_median: median over seeds.
        epsilon: a number where the view is covered by differential privacy, `not covered` where the defence has
            noise but not against this view, `None` without noise.
        exposed_seeds: how many single runs leaked .9 or more, which a mean may hide.
        explained: share of the runs whose messages the attack explains to their precision, NaN where it checks nothing;
            below `SIGHTED` its silence says nothing.
        highest: leakage of the run that leaked most.
    """

    algorithm: str
    defense: str
    view: str
    attack: str
    secret: Secret
    leakage: Interval
    null_leakage: Interval
    error: float
    error_median: float
    baseline_error: float
    verdict: Verdict
    utility: float
    bytes_per_client_round: float
    seconds_per_round: float
    epsilon: float | str | None
    failed: int
    exposed_seeds: int
    residual: float
    rank: float
    unknowns: int
    condition: float
    note: str = ""
    explained: float = math.nan
    highest: float = math.nan

    def to_json(self) -> dict[str, Any]:
        """The cell as documented for `audit.json`."""
        values = asdict(self)
        values["verdict"] = self.verdict.word
        values["detectable"] = self.verdict.detectable
        return {key: _finite(value) for key, value in values.items()}


def gather(scores: Sequence[Score], facts: Sequence[RunFacts], covered: Mapping[str, str]) -> list[Cell]:
    """Cells in order of first appearance.

    Args:
        covered: by defence with noise, the one view its epsilon covers.
    """
    groups: dict[tuple[str, ...], list[Score]] = {}
    for score in scores:
        key = (score.algorithm, score.defense, score.view, score.attack, score.secret)
        groups.setdefault(key, []).append(score)
    by_run: dict[tuple[str, str, str], list[RunFacts]] = {}
    for fact in facts:
        by_run.setdefault((fact.algorithm, fact.defense, fact.view), []).append(fact)
    cells = []
    for (algorithm, defense, view, *_), group in groups.items():
        runs = by_run.get((algorithm, defense, view)) or by_run[algorithm, defense, ""]
        cells.append(_cell(group, runs, covered))
    return cells


def _cell(group: Sequence[Score], runs: Sequence[RunFacts], covered: Mapping[str, str]) -> Cell:
    first = group[0]
    fitted = [score.explained for score in group]
    leaks, chance = offered(
        [s.leakage for s in group], [s.null_leakage for s in group], fitted, [s.null_explained for s in group]
    )
    leak, null = interval(leaks), interval(chance)
    explained, highest = _mean([float(known) for known in fitted if known is not None]), max(leaks)
    epsilon: float | str | None = None
    if first.defense in covered:
        epsilon = runs[0].epsilon if covered[first.defense] == first.view else NOT_COVERED
    real = [run for run in runs if run.real]
    compared = min((run.rounds for run in real if run.identical is not None), default=0)
    part = f", {compared} rounds of it" if 0 < compared < max(run.rounds for run in runs) else ""
    note = ""
    if part or len(real) < len(runs):
        note = (
            f"{len(real)} of {len(runs)} seeds ran the defence itself{part} (an exact one is compared bit for bit with "
            "the quantised run); all else takes its views from the run with the same sums of integers"
        )
    return Cell(
        algorithm=first.algorithm,
        defense=first.defense,
        view=first.view,
        attack=first.attack,
        secret=first.secret,
        leakage=leak,
        null_leakage=null,
        error=_mean([s.error for s in group]),
        error_median=median(s.error for s in group),
        baseline_error=_mean([s.baseline for s in group]),
        verdict=verdict(leak, null, explained=explained, highest=highest),
        utility=_mean([run.utility for run in runs]),
        bytes_per_client_round=_mean([run.bytes_per_client_round for run in real]),
        seconds_per_round=_mean([run.seconds_per_round for run in real]),
        epsilon=epsilon,
        failed=sum(s.failed for s in group),
        exposed_seeds=sum(s.leakage >= EXPOSED_FROM for s in group),
        residual=_mean([s.residual for s in group]),
        rank=_mean([float(s.rank) for s in group]),
        unknowns=first.unknowns,
        condition=_mean([s.condition for s in group]),
        note=note,
        explained=explained,
        highest=highest,
    )


@dataclass(frozen=True)
class Missing:
    """One gap of an audit's table.

    Attributes:
        algorithm: its name.
        defense, view, attack: which part of it; empty where all of them are missing.
        ran: seeds that ran.
        asked: seeds of the audit.
        reason: of the first seed that is missing.
    """

    algorithm: str
    defense: str
    view: str
    attack: str
    ran: int
    asked: int
    reason: str

    def __str__(self) -> str:
        names = (short(self.algorithm), self.defense and short_defense(self.defense), self.view, self.attack)
        return f"{', '.join(name for name in names if name)}: {self.said}"

    @property
    def said(self) -> str:
        """What is missing, and why."""
        return f"{self.ran} of {self.asked} seeds ran: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Report:
    """A whole audit.

    Attributes:
        version: of this package.      command: what reproduces it.
        environment: Python, NumPy, machine.      settings: per algorithm, in words and numbers.
        cells, facts: the results.      curves: leakage against rounds, by name.
        tradeoffs: leakage and utility against epsilon, by algorithm.
        membership: rates of record and client membership, where they were asked for.
        skipped: what was not run, and why.
        missing: what was asked for and did not run, or ran for some seeds only.
        seconds: wall clock of the audit.
    """

    version: str
    command: str
    environment: Mapping[str, str]
    settings: Mapping[str, Mapping[str, Any]]
    cells: tuple[Cell, ...]
    facts: tuple[RunFacts, ...]
    curves: tuple[Mapping[str, Any], ...] = ()
    tradeoffs: tuple[Mapping[str, Any], ...] = ()
    membership: tuple[Mapping[str, Any], ...] = ()
    skipped: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON values; pictures stay in the HTML."""
        return {
            "version": self.version,
            "command": self.command,
            "environment": dict(self.environment),
            "settings": {name: dict(values) for name, values in self.settings.items()},
            "seconds": self.seconds,
            "cells": [cell.to_json() for cell in self.cells],
            "runs": [{key: _finite(value) for key, value in asdict(fact).items()} for fact in self.facts],
            "curves": [dict(curve) for curve in self.curves],
            "tradeoffs": [dict(tradeoff) for tradeoff in self.tradeoffs],
            "membership": [dict(row) for row in self.membership],
            "skipped": list(self.skipped),
            "missing": [item.to_json() for item in self.missing],
        }

    def save(self, path: Path) -> None:
        """Write `audit.json`."""
        try:
            path.write_text(json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror}") from error

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The audited algorithms, in order."""
        return tuple(name for name in self.settings if name != AUDIT)

    def of(self, algorithm: str) -> tuple[Cell, ...]:
        """An algorithm's cells."""
        return tuple(cell for cell in self.cells if cell.algorithm == algorithm)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _finite(value: Any) -> Any:
    """NaN and infinity as `null`, which JSON has, unlike them."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
