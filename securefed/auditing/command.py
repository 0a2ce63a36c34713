"""What the command line does, without the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from securefed import catalogue
from securefed.auditing import report as page
from securefed.auditing.cases import case
from securefed.auditing.cells import Report
from securefed.auditing.curves import curves_for
from securefed.auditing.matrix import Progress, audit
from securefed.datasets.loaders import load
from securefed.defenses.base import Plan
from securefed.errors import StorageError


def run_and_save(out: Path, progress: Progress | None, **arguments: Any) -> Report:
    """Run an audit and write `audit.html` and `audit.json` into `out`.

    Raises:
        StorageError: `out` cannot be written; found out before anything runs.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "audit.json").touch()
    except OSError as error:
        raise StorageError(f"cannot write into {out}: {error.strerror}; choose another folder with --out") from error
    result = audit(progress=progress, **arguments)
    curves = curves_for(result)
    report = replace(result.report, curves=tuple(curve.to_json() for curve in curves))
    artifacts = [artifact for outcome in result.outcomes for artifact in outcome.artifacts]
    report.save(out / "audit.json")
    page.save(out / "audit.html", report, artifacts, curves)
    return report


def plan_for(algorithm: str, defense: str, clients: int, data: str) -> Plan:
    """The defence's plan for one algorithm of the audit on a data set."""
    name = catalogue.algorithms[algorithm].name
    what = case(name)
    prepared = what.prepare(load(data), clients, 0)
    arguments: dict[str, Any] = {"clip_norm": what.clip} if defense == "dp" else {}
    layout = what.build().layout(prepared.public)
    return catalogue.defenses.make(defense, **arguments).plan(layout, clients)
