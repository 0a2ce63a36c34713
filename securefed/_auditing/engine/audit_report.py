"""The report of an audit, made by the same code for registered algorithms and for a user's own.

A `Subject` is one algorithm under audit. For a seed (one repetition) it runs under each defence, lets attacks loose on
every view (what one kind of attacker sees of the messages), and returns a `SeedResult`. `make_report` gathers the
results of all subjects and seeds into a `Report`: cells (one attack on one secret in one view, over all seeds, with its
verdict) and gaps (what did not run). `save` writes it as `audit.json` and `audit.html`.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

import securefed
from securefed._auditing.engine.audit_result import AUDIT, FORMAT, AuditResult, SmallestClient, rows_cut
from securefed._auditing.engine.gathering import gather
from securefed._auditing.engine.incomplete_results import missing
from securefed._auditing.engine.kept_utility import utilities
from securefed._auditing.engine.results import finite_or_none
from securefed._auditing.engine.run_costs import costs_of
from securefed._auditing.engine.seed_result import SeedResult
from securefed._persistence.file_errors import storage_errors

ACCEPTABLE: Final = 0.1
"""Leakage up to which a defence counts as a remedy by default: a tenth of the way from a guess to the data."""


class Subject(Protocol):
    """An algorithm under audit: a registered one with its audit case, or an instance or function of the user's.

    Attributes:
        name: the algorithm's name in the report.
    """

    @property
    def name(self) -> str: ...

    def describe(self) -> Mapping[str, Any]:
        """Say what the algorithm ran with: hyper-parameters, data, rounds, secret, clip and utility."""
        ...

    def audit_seed(self, seed: int) -> SeedResult:
        """Run the algorithm with this seed under each of its defences, and attack every view of every run."""
        ...


@dataclass(frozen=True)
class Report(AuditResult):
    """A whole audit, which prints as a table and is saved as JSON and as a page."""

    def __str__(self) -> str:
        lines = [f"alert: {alert}" for alert in self.alerts]
        for name in self.algorithms:
            seeds, rounds = self.settings[AUDIT]["seeds"], self.settings[name]["rounds"]
            scale = "1 = exact, 0 = nothing, below 0 worse than a guess"
            cut = rows_cut(self.settings[AUDIT])
            lines.append(f"{name}: {seeds} seeds of {rounds} rounds{cut and f', {cut}'}; {scale}")
            lines += [f"  {cell}" for cell in self.of(name)]
        for curve in self.curves:
            if curve.get("scale") == "share":  # leakages by rounds take a picture
                lines += [
                    f"  {curve['title'].lower()}, {name}: {_points(line)}" for name, line in curve["series"].items()
                ]
        lines += [f"  skipped: {reason}" for reason in self.skipped]
        lines += [f"  assumed: {assumption}" for assumption in self.assumptions]
        return "\n".join([*lines, f"  conclusion: {self.conclusion}"])

    @property
    def conclusion(self) -> str:
        """Sentences on what unprotected messages give away, whether a protection holds, and what was not tested."""
        from securefed._auditing.report.cards import conclusion  # noqa: PLC0415 - sentences are made of reports

        return " ".join(conclusion(self))

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values; the pictures are left out."""
        from securefed._auditing.report.outcomes import settings_judged  # noqa: PLC0415 - made of reports

        return {
            "format": FORMAT,
            "version": self.version,
            "command": self.command,
            "environment": dict(self.environment),
            "settings": {name: dict(values) for name, values in self.settings.items()},
            "seconds": self.seconds,
            "conclusion": self.conclusion,
            "date": self.date,
            "data": self.data.to_json(),
            "alerts": [alert.to_json() for alert in self.alerts],
            "smallest": [one.cell.to_json() | {"rows": [one.least, one.most]} for one in self.smallest],
            "utilities": {name: finite_or_none(asdict(found)) for name, found in self.utilities.items()},
            "cells": [cell.to_json() for cell in self.cells],
            "costs": [finite_or_none(asdict(run)) for run in self.costs],
            "runs": [finite_or_none(asdict(fact)) for fact in self.facts],
            "held": settings_judged(self),
            "missing": [asdict(item) for item in self.missing],
            **{
                name: list(getattr(self, name))
                for name in ("curves", "tradeoffs", "membership", "skipped", "assumptions")
            },
        }

    def save(self, folder: Path | str) -> None:
        """Write `audit.json` and the page `audit.html` into a folder.

        Raises:
            StorageError: the folder cannot be written.
        """
        from securefed._auditing.report.audit_page import render  # noqa: PLC0415 - the page is made of reports

        place, text = Path(folder), json.dumps(self.to_json(), indent=1, allow_nan=False)
        with storage_errors(f"write into {folder}", "choose another folder"):
            place.mkdir(parents=True, exist_ok=True)
            (place / "audit.json").write_text(text + "\n", encoding="utf-8")
            (place / "audit.html").write_text(render(self), encoding="utf-8")


def make_report(
    subjects: Sequence[Subject],
    results: Sequence[SeedResult],
    defenses: Sequence[str],
    shared: Mapping[str, Any],
    *,
    covered: Mapping[str, Collection[str]] = MappingProxyType({}),
    unfit: Mapping[str, str] = MappingProxyType({}),
    command: str = "",
    **more: Any,
) -> Report:
    """Gather the results of all subjects and seeds.

    Args:
        subjects: the subjects, in the order of the report.
        results: the results of every subject and seed, in any order.
        defenses: names of those that were to run, in the order of the report.
        shared: settings of the whole audit, `seeds` among them.
        covered: by defence with noise, the views that its epsilon covers.
        unfit: algorithms that the data do not suit, and why.
        command: shell command that repeats the audit; an audit of a user's own algorithm has none.
        **more: further fields of `Report`.
    """
    names = [subject.name for subject in subjects]
    attempts = [attempt for result in results for attempt in result.attempts]
    attempts.sort(key=lambda attempt: (names.index(attempt.algorithm), defenses.index(attempt.defense)))
    facts = [fact for result in results for fact in result.facts]
    gaps = [gap for result in results for gap in result.gaps]
    return Report(
        version=securefed.__version__,
        command=command,
        environment=environment(),
        settings={subject.name: subject.describe() for subject in subjects} | {AUDIT: shared},
        cells=tuple(gather(attempts, shared["seeds"])),
        costs=costs_of(facts, covered),
        facts=tuple(facts),
        artifacts=tuple(artifact for result in results for artifact in result.artifacts),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        smallest=tuple(_smallest(results, shared["seeds"])),
        utilities=utilities(names, facts, [one for result in results for one in result.floors]),
        missing=missing(names, defenses, shared["seeds"], attempts, gaps, unfit) + more.pop("missing", ()),
        **more,
    )


def _smallest(results: Sequence[SeedResult], seeds: int) -> Iterator[SmallestClient]:
    """Gather the attacks on the smallest client."""
    attempts = [attempt for result in results for attempt in result.smallest]
    rows: dict[str, list[int]] = {}
    for attempt in attempts:
        rows.setdefault(attempt.algorithm, []).append(attempt.rows)
    for cell in gather(attempts, seeds):
        yield SmallestClient(min(rows[cell.algorithm]), max(rows[cell.algorithm]), cell)


def environment() -> dict[str, str]:
    """Return the versions that results depend on; a package of an extra may be missing, and is then said to be."""
    packages = ("numpy", "scipy", "torch", "cryptography", "phe", "gmpy2", "dp-accounting")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": str(os.cpu_count()),
        **{name: _version(name) for name in packages},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _points(line: Mapping[str, Sequence[float]]) -> str:
    """Write a line of a chart of shares as "1: 100%, 2: 50%"."""
    return ", ".join(f"{across}: {share:.0%}" for across, share in zip(line["rounds"], line["middle"], strict=True))
