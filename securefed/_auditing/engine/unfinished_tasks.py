"""Keep the results of an audit that is interrupted, so that the same audit continues where it stopped.

`securefed.audit(..., keep=folder)` writes one file for each algorithm and seed, in the package's own container (no
pickle, written whole or not at all, with a digest). A file counts only for the same settings, data and code. A finished
audit removes all such files of the folder, so that two audits need two folders.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

import securefed
import securefed.attacks
import securefed.defenses
from securefed._auditing.engine.results import Artifact, Attempt, RunFacts
from securefed._auditing.engine.seed_result import Gap, SeedFloors, SeedResult, SmallestAttempt, Trace, Tradeoff
from securefed._persistence import container
from securefed.errors import StorageError

KIND: Final = "audit task"
"""Kind of these files, which the container checks when it reads one."""
_LISTS: Mapping[str, type[Any]] = {
    "attempts": Attempt,
    "facts": RunFacts,
    "artifacts": Artifact,
    "traces": Trace,
    "tradeoffs": Tradeoff,
    "gaps": Gap,
    "floors": SeedFloors,
    "smallest": SmallestAttempt,
}
"""Fields of `SeedResult` that are lists of dataclasses, and what they hold; `skipped` is a list of sentences."""
_ARRAYS: Final = ("truth", "estimate")
"""Fields of an `Artifact` that are arrays; all others are numbers and words."""


class Unfinished:
    """The folder that keeps the results of an unfinished audit.

    Args:
        folder: created with the first result.
        asked: settings and data of the audit in a text; results of other ones are not found.
    """

    def __init__(self, folder: Path, asked: str) -> None:
        self._folder = folder
        self._digest = hashlib.sha256(f"{asked}{_code()}".encode()).hexdigest()

    def find(self, algorithm: str, seed: int) -> SeedResult | None:
        """Read the result of an algorithm and a seed.

        Returns:
            The result; `None` if there is none, if it is of another audit, or if it cannot be read.
        """
        with suppress(StorageError):
            meta, tensors = container.load(self._path(algorithm, seed), KIND)
            if meta["digest"] == self._digest:
                return _from_json(json.loads(meta["found"]), tensors)
        return None

    def keep(self, algorithm: str, seed: int, result: SeedResult) -> None:
        """Write the result of an algorithm and a seed.

        Raises:
            StorageError: the folder cannot be written.
        """
        values, tensors = _to_json(result)
        meta = {"digest": self._digest, "found": json.dumps(values)}
        container.save(self._path(algorithm, seed), KIND, meta, tensors)

    def clear(self) -> None:
        """Remove all results, since the audit is complete."""
        for path in self._folder.glob("*.task"):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # the folder holds something else, or was never created
            self._folder.rmdir()

    def _path(self, algorithm: str, seed: int) -> Path:
        return self._folder / f"{algorithm.replace('/', '-')}-{seed}.task"


def _to_json(result: SeedResult) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a result into JSON values and the arrays of its artifacts, by `INDEX/FIELD`."""
    values: dict[str, Any] = {name: [asdict(item) for item in getattr(result, name)] for name in _LISTS}
    arrays = {
        f"{index}/{part}": np.ascontiguousarray(artifact.pop(part))
        for index, artifact in enumerate(values["artifacts"])
        for part in _ARRAYS
    }
    return values | {"skipped": result.skipped, "names": list(result.names)}, arrays


def _from_json(values: Mapping[str, Any], arrays: Mapping[str, Any]) -> SeedResult:
    """Make the result that `_to_json` split."""
    for index, artifact in enumerate(values["artifacts"]):
        artifact.update({part: arrays[f"{index}/{part}"] for part in _ARRAYS})
    lists: dict[str, Any] = {
        name: [kind(**_with_tuples(item)) for item in values[name]] for name, kind in _LISTS.items()
    }
    return SeedResult(skipped=values["skipped"], names=tuple(values["names"]), **lists)


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace JSON's lists by the tuples that the dataclasses hold."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


@cache
def _code() -> str:
    """Hash the package's source, since other code may give other results."""
    state = hashlib.sha256()
    folders = [*securefed.__path__, *securefed.attacks.__path__, *securefed.defenses.__path__]
    for path in sorted(path for folder in folders for path in Path(folder).rglob("*.py")):
        state.update(path.read_bytes())
    return state.hexdigest()
