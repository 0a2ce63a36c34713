"""Functions behind the audit commands, without parsing and printing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from securefed import _catalogue as catalogue
from securefed._auditing import report as page
from securefed._auditing.audit_cells import Report
from securefed._auditing.cases import case
from securefed._auditing.curves import curves_for
from securefed._auditing.imported import TranscriptAudit, audit_transcript
from securefed._auditing.matrix import Progress, audit
from securefed._commands.named_run import NamedRun, build, federation
from securefed._messages import Transcript
from securefed._runtime.client_sampling import with_disclosures
from securefed.datasets._base import Dataset
from securefed.datasets._loaders import load
from securefed.defenses._base import Defense, Plan
from securefed.errors import ConfigError, DataError, StorageError

UNFINISHED = "unfinished"
"""Folder in which an interrupted audit keeps its results so far."""


def run_and_save(out: Path, progress: Progress | None, **arguments: Any) -> Report:
    """Run an audit and write `audit.html` and `audit.json` into `out`; an audit that was interrupted there continues.

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


def plan_for(
    algorithm: str,
    defense: str,
    clients: int,
    data: str,
    settings: Mapping[str, Any],
    defense_settings: Mapping[str, Any] | None = None,
) -> tuple[Defense, Plan]:
    """A defence, and its plan for one algorithm on a data set: with the audit's settings, or with `settings` if any."""
    entry, defended, own = catalogue.algorithms[algorithm], catalogue.defenses[defense].name, defense_settings or {}
    audited = entry.audit_case is not None and not settings
    if not audited:
        made = federation(NamedRun(entry.name, settings, defended, own, data=data, clients=clients))
        return made.defense, made.plan
    what = case(entry.name)
    prepared = what.prepare(load(data), clients, 0)
    protected: Defense = build(
        catalogue.defenses, defended, {"clip_norm": what.clip, **own} if defended == "dp" else own
    )
    plan = protected.plan(what.build().layout(prepared.public), clients)
    return protected, with_disclosures(plan, what.build(), prepared.public)


def attack_file(
    path: Path,
    algorithm: str,
    settings: Mapping[str, Any],
    candidates: Sequence[Mapping[str, Any]] = (),
    *,
    rows: Path | None = None,
    **arguments: Any,
) -> TranscriptAudit:
    """`audit_transcript` of a file. `candidates` are settings beside `settings`, one algorithm each.

    Raises:
        StorageError: the file is no transcript.      DataError: `rows` does not hold the clients' rows.
        ConfigError: a setting is both given and tried; and as `audit_transcript`.      TranscriptError: likewise.
    """
    twice = [name for name in settings if any(name in one for one in candidates)]
    if twice:
        raise ConfigError(f"{', '.join(twice)}: given as known (--set) and as a guess (--try); use one of the two")
    tried = [build(catalogue.algorithms, algorithm, {**settings, **one}) for one in candidates or ({},)]
    clients = None if rows is None else _clients(rows)
    return audit_transcript(Transcript.load(path), tried, clients=clients, **arguments)


def _clients(path: Path) -> list[Dataset]:
    """Return the clients' rows: `x`, `client` (number of the row's client, from 0) and, if there are labels, `y`."""
    try:
        with np.load(path, allow_pickle=False) as held:
            x, owner, y = held["x"], held["client"], held.get("y")
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} must be an .npz with x, client and maybe y: {error}") from error
    if owner.shape != (len(x),) or owner.dtype.kind not in "iu":
        raise DataError(f"{path}: `client` must hold one whole number for each of the {len(x)} rows of `x`")
    own = [owner == client for client in range(int(owner.max(initial=-1)) + 1)]
    return [Dataset(x[mine], None if y is None else y[mine]) for mine in own]
