"""What the command line does, without the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from securefed import catalogue
from securefed.auditing import report as page
from securefed.auditing.cases import case, cases
from securefed.auditing.cells import Report
from securefed.auditing.curves import curves_for
from securefed.auditing.matrix import Progress, audit
from securefed.datasets.loaders import load
from securefed.defenses.base import Plan
from securefed.errors import StorageError
from securefed.running import Run, federation
from securefed.selection import disclose

UNFINISHED = "unfinished"
"""The folder in which an audit that is cut off leaves what it found."""


def run_and_save(out: Path, progress: Progress | None, **arguments: Any) -> Report:
    """Run an audit and write `audit.html` and `audit.json` into `out`; one that was cut off there goes on.

    Raises:
        StorageError: `out` cannot be written; found out before anything runs.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "audit.json").touch()
    except OSError as error:
        raise StorageError(f"cannot write into {out}: {error.strerror}; choose another folder with --out") from error
    result = audit(progress=progress, keep=out / UNFINISHED, **arguments)
    curves = curves_for(result)
    report = replace(result.report, curves=tuple(curve.to_json() for curve in curves))
    artifacts = [artifact for outcome in result.outcomes for artifact in outcome.artifacts]
    report.save(out / "audit.json")
    page.save(out / "audit.html", report, artifacts, curves)
    return report


def plan_for(algorithm: str, defense: str, clients: int, data: str, settings: Mapping[str, Any]) -> Plan:
    """The defence's plan for one algorithm on a data set: with the audit's settings, or with `settings` if any."""
    name, defended = catalogue.algorithms[algorithm].name, catalogue.defenses[defense].name
    audited = name in cases.names and not settings
    if not audited:
        return federation(Run(name, settings, defended, data=data, clients=clients)).plan
    what = case(name)
    prepared = what.prepare(load(data), clients, 0)
    arguments: dict[str, Any] = {"clip_norm": what.clip} if defended == "dp" else {}
    plan = catalogue.defenses.make(defended, **arguments).plan(what.build().layout(prepared.public), clients)
    return disclose(plan, what.build(), prepared.public)
