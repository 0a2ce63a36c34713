"""Results on disk: one JSON file per experiment, written whole or not at all."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.ledger.ledger import QUICK, Findings, Line
from securefed.errors import StorageError

FULL = Path(__file__).parent / "results"
CUT_DOWN = Path(__file__).parent / "quick-results"  # ignored by git: a quick run never takes the place of a full one


@dataclass(frozen=True)
class Kind:
    """What must agree for a result to be of use: a full or a quick run, its seeds, and the code it ran on."""

    quick: bool
    seeds: tuple[int, ...]
    digest: str


@dataclass(frozen=True)
class Record:
    """What became of one experiment: its findings, or the message it failed with.

    Attributes:
        machine: the versions and the number of cores; nothing that names the machine.
        commit: of the code that ran, "" where it is not known.
    """

    name: str
    kind: Kind
    seconds: float
    date: str
    machine: Mapping[str, str]
    commit: str = ""
    findings: Findings | None = None
    failure: str | None = None

    def verdict(self, line: Line) -> str:
        """The verdict on a line; a quick run judges nothing."""
        return QUICK if self.kind.quick else line.verdict

    @property
    def owing(self) -> tuple[Line, ...]:
        """Lines without the evidence that they owe; a quick run owes none."""
        return () if self.findings is None or self.kind.quick else self.findings.unexplained

    def serves(self, kind: Kind) -> bool:
        """Whether this is a finished result of that kind, so that the experiment need not run again."""
        return self.findings is not None and self.kind == kind


def record(
    name: str,
    kind: Kind,
    seconds: float,
    *,
    commit: str = "",
    findings: Findings | None = None,
    failure: str | None = None,
) -> Record:
    """A record of now and here."""
    versions = {package: version(package) for package in ("numpy", "scipy", "torch")}
    machine = {"python": platform.python_version(), **versions, "cores": str(os.cpu_count())}
    today = datetime.now(UTC).date().isoformat()
    return Record(name, kind, round(seconds, 1), today, machine, commit, findings, failure)


def write(folder: Path, done: Record) -> Path:
    """Write `folder/NAME.json`; an interruption leaves the old file or the new one, never half of one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem(done.name)}.json"
    beside = path.with_suffix(".writing")
    content = {
        "name": done.name,
        "quick": done.kind.quick,
        "seeds": done.kind.seeds,
        "digest": done.kind.digest,
        "commit": done.commit,
        "seconds": done.seconds,
        "date": done.date,
        "machine": done.machine,
        "failure": done.failure,
        **(done.findings.to_json() if done.findings else {}),
    }
    beside.write_text(_text(content), encoding="utf-8")
    beside.replace(path)
    return path


def read(folder: Path, name: str) -> Record | None:
    """The record of this experiment, None where there is none.

    Raises:
        StorageError: the file is not one of ours.
    """
    path = folder / f"{stem(name)}.json"
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        findings = Findings.from_json(content) if content["failure"] is None else None
        kind = Kind(content["quick"], tuple(content["seeds"]), content["digest"])
        about = content["seconds"], content["date"], content["machine"], content.get("commit", "")
        return Record(content["name"], kind, *about, findings, content["failure"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path.name} is no result of this ledger ({error}); delete it and run again") from error


def _text(content: Mapping[str, Any]) -> str:
    """JSON with a row to each key, line and curve: differences between two runs can be read, and files stay short."""
    rows = []
    for key, value in content.items():
        items = [json.dumps(item, ensure_ascii=False) for item in value] if key in ("lines", "curves") else None
        text = json.dumps(value, ensure_ascii=False) if items is None else "[\n  " + ",\n  ".join(items) + "\n ]"
        rows.append(f' "{key}": {text}')
    return "{\n" + ",\n".join(rows) + "\n}\n"


def stem(name: str) -> str:
    """The name of an experiment as a name of a file."""
    return name.replace("/", "-")
