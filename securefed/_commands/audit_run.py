"""Run what `securefed audit`, `attack` and `plan` ask for; parsing and printing are elsewhere.

An audit runs registered algorithms under defences, attacks what the server sees, and reports how much of a client's
data leaks. An algorithm's audit case says how the audit runs it: settings, data, rounds, and a clipping norm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from securefed import _catalogue as catalogue
from securefed._auditing.cases import case
from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.seed_tasks import Progress
from securefed._auditing.registered.registered_audit import audit
from securefed._auditing.registered.transcript_audit import TranscriptAudit, audit_transcript
from securefed._commands.named_run import NamedRun, build, federation
from securefed._messages import Transcript
from securefed._persistence.file_errors import NO_NPZ, storage_errors
from securefed._runtime.cohorts import disclosures
from securefed.datasets._base import Dataset
from securefed.datasets._loaders import load_once
from securefed.datasets._tables.table_format import TableFormat
from securefed.defenses._base import Defense, Plan
from securefed.errors import ConfigError, DataError

UNFINISHED = "unfinished"
"""Folder in which an interrupted audit keeps its results so far."""


def run_and_save(out: Path, progress: Progress | None, **arguments: Any) -> Report:
    """Run an audit and write `audit.html` and `audit.json` into `out`; an audit that was interrupted there continues.

    Raises:
        StorageError: `out` cannot be written; found out before anything runs. An audit that is refused leaves no
            folder behind.
    """
    _require_writable(out)
    report = audit(progress=progress, keep=out / UNFINISHED, **arguments)
    report.save(out)
    return report


def _require_writable(folder: Path) -> None:
    """Raise `StorageError` unless files can be made in a folder; leave neither file nor folder that was not there."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]  # the innermost first
    with storage_errors(f"write into {folder}", "choose another folder with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
        for old in (folder / "audit.json", folder / "audit.html"):
            if old.exists():
                old.open("a").close()
        for one in missing:
            one.rmdir()


def plan_for(
    algorithm: str,
    defense: str,
    clients: int,
    data: str,
    settings: Mapping[str, Any],
    defense_settings: Mapping[str, Any],
    form: TableFormat | None = None,
) -> Plan:
    """Return the plan of a defence for one algorithm on a data set.

    Args:
        algorithm: name of the algorithm.
        defense: name of the defence.
        clients: number of clients in a round.
        data: name of the data set.
        settings: settings of the algorithm; those of its audit case where there are none.
        defense_settings: settings of the defence.
        form: how a text table of the user's is written, where the user says so.

    Returns:
        The plan for one training round: errors, stages, bytes, threshold, epsilon, assumptions.
    """
    entry, name = catalogue.algorithms[algorithm], catalogue.defenses[defense].name
    if entry.audit_case is None or settings:  # settings of the user: the federation that they describe
        made = federation(
            NamedRun(
                entry.name,
                settings,
                name,
                defense_settings,
                data=data,
                clients=clients,
                **(form or TableFormat()).given(),
            )
        )
        return made.plan
    audited = case(entry.name)
    public = audited.prepare(load_once(data, form=form), clients, 0).public
    clip = {"clip_norm": audited.clip} if name == "dp" else {}
    made_defense: Defense = build(catalogue.defenses, name, clip | dict(defense_settings))
    plan = made_defense.plan(audited.build().layout(public), clients)
    # the plan also lists what the algorithm assumes, and scalars that its clients reveal outside the defence
    return plan.assume(*disclosures(audited.build(), public))


def attack_file(
    path: Path,
    algorithm: str,
    settings: Mapping[str, Any],
    candidates: Sequence[Mapping[str, Any]] = (),
    *,
    rows: Path | None = None,
    **arguments: Any,
) -> TranscriptAudit:
    """Attack a recorded run that is stored in a file.

    Args:
        path: the transcript.
        algorithm: name of the algorithm that ran.
        settings: its known settings.
        candidates: guesses of the other settings; each makes one algorithm that is tried.
        rows: file of the clients' rows, to score the attacks against.
        **arguments: further arguments of `audit_transcript`.

    Returns:
        The findings: what each attack recovered, its score where `rows` are given, and which candidate explains the
        messages.

    Raises:
        StorageError: the file is no transcript.
        DataError: `rows` does not hold the clients' rows.
        ConfigError: a setting is both given and tried; or as in `audit_transcript`.
        TranscriptError: as in `audit_transcript`.
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
        with np.load(path, allow_pickle=False) as file:
            x, owner, y = file["x"], file["client"], file.get("y")
    except NO_NPZ as error:
        raise DataError(f"{path} must be an .npz with x, client and maybe y: {error}") from error
    if owner.shape != (len(x),) or owner.dtype.kind not in "iu":
        raise DataError(f"{path}: `client` must hold one whole number for each of the {len(x)} rows of `x`")
    masks = [owner == client for client in range(int(owner.max(initial=-1)) + 1)]
    return [Dataset(x[mask], None if y is None else y[mask]) for mask in masks]
