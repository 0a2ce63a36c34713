"""What an audit that was cut off had found, so that it goes on where it stopped.

One file a task (an algorithm's seed), in our own container (`storage`): no pickle, atomic, with a digest. A file counts
only for the same settings, data and code; what a finished audit kept is removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import securefed
import securefed.attacks
import securefed.defenses
from securefed._auditing.audit_cells import RunFacts, Score
from securefed._auditing.task_results import Artifact, Gap, Settings, Task, TaskResult, Trace, Tradeoff
from securefed._persistence import container
from securefed.datasets._loaders import load
from securefed.errors import StorageError

KIND = "audit task"
_LISTS: Mapping[str, type[Any]] = {
    "scores": Score,
    "facts": RunFacts,
    "traces": Trace,
    "tradeoffs": Tradeoff,
    "gaps": Gap,
}


class Unfinished:
    """A folder of tasks that are done.

    Args:
        folder: made when the first task is kept.      settings: of the audit; other settings find nothing.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder = folder
        self._digest = hashlib.sha256(
            f"{settings}{_code()}{_rows(settings.data)}".encode()  # a dataclass prints all its fields
        ).hexdigest()

    def find(self, task: Task) -> TaskResult | None:
        """What the task found in an earlier run; `None` where that is unknown, of another audit, or unreadable."""
        with suppress(StorageError):
            meta, tensors = container.load(self._path(task), KIND)
            if meta["digest"] == self._digest:
                return _outcome(json.loads(meta["found"]), tensors)
        return None

    def keep(self, task: Task, outcome: TaskResult) -> None:
        """Write what a task found.

        Raises:
            StorageError: the folder cannot be written.
        """
        found, tensors = _plain(outcome)
        container.save(self._path(task), KIND, {"digest": self._digest, "found": json.dumps(found)}, tensors)

    def clear(self) -> None:
        """Remove what was kept: the audit is whole."""
        for path in self._folder.glob("*.task"):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty, or never made
            self._folder.rmdir()

    def _path(self, task: Task) -> Path:
        return self._folder / f"{task.algorithm.replace('/', '-')}-{task.seed}.task"


def _plain(outcome: TaskResult) -> tuple[dict[str, Any], dict[str, Any]]:
    found: dict[str, Any] = {name: [asdict(item) for item in getattr(outcome, name)] for name in _LISTS}
    found["skipped"] = list(outcome.skipped)
    found["artifacts"], tensors = [], {}
    for index, artifact in enumerate(outcome.artifacts):
        facts = {f.name: getattr(artifact, f.name) for f in fields(artifact) if f.name not in ("truth", "estimate")}
        found["artifacts"].append(facts)
        tensors[f"{index}/truth"] = np.ascontiguousarray(artifact.truth)
        tensors[f"{index}/estimate"] = np.ascontiguousarray(artifact.estimate)
    return found, tensors


def _outcome(found: Mapping[str, Any], tensors: Mapping[str, Any]) -> TaskResult:
    lists = {name: tuple(kind(**_tuples(item)) for item in found[name]) for name, kind in _LISTS.items()}
    artifacts = tuple(
        Artifact(truth=tensors[f"{index}/truth"], estimate=tensors[f"{index}/estimate"], **_tuples(facts))
        for index, facts in enumerate(found["artifacts"])
    )
    return TaskResult(artifacts=artifacts, skipped=tuple(found["skipped"]), **lists)


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists where the dataclasses have tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


@cache
def _code() -> str:
    """Digest of the package's source: other code may find other things."""
    state = hashlib.sha256()
    for path in sorted(_sources()):
        state.update(path.read_bytes())
    return state.hexdigest()


def _sources() -> Iterator[Path]:
    for package in (securefed, securefed.attacks, securefed.defenses):
        for folder in package.__path__:
            yield from Path(folder).rglob("*.py")


@cache
def _rows(data: str) -> str:
    """Digest of the data: a file of one's own may have changed under its name."""
    rows = load(data).data
    labels = b"" if rows.y is None else np.ascontiguousarray(rows.y).tobytes()
    return hashlib.sha256(np.ascontiguousarray(rows.x).tobytes() + labels).hexdigest()
