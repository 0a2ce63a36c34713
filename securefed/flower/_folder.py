"""What a client keeps on its own disk: what it learned, and how far it is.

The file never holds an exchange under way: its secrets lie with Flower, for as long as the run does. It is written
before a reply leaves, and Flower takes a client's state only after the reply. So where an app is killed between the
two, or a state is set back, the file is ahead of Flower's, and is what counts: the exchange under way is lost then, and
no upload of it is made a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from securefed._messages import SERVER
from securefed._persistence import container
from securefed._persistence.packing import from_bytes
from securefed._persistence.sealing import Seal
from securefed._runtime.client import ClientNode
from securefed._runtime.client_freezing import thaw
from securefed._runtime.privacy_checks import has_memory
from securefed.errors import ConfigError, ContradictionError, StorageError

_KIND: Final = "client's state"


@dataclass(frozen=True)
class RunProgress:
    """Progress of a client in a run.

    Attributes:
        run: the run that it takes part in.
        before: those that this one goes on from, newest first.
        step: answers that it gave in it.
    """

    run: str
    before: tuple[str, ...] = ()
    step: int = 0

    @property
    def next(self) -> RunProgress:
        """After one more answer."""
        return replace(self, step=self.step + 1)

    def fields(self) -> dict[str, str | int]:
        """As values of a record. Inverse: `of`."""
        return {"run": self.run, "before": " ".join(self.before), "step": self.step}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> RunProgress:
        """Read the fields that `fields` wrote; raise `KeyError` where one is missing."""
        return cls(str(fields["run"]), tuple(str(fields["before"]).split()), int(fields["step"]))


@dataclass(frozen=True)
class ClientFolder:
    """One client's file. Not promised: that it is the newest one, without a seal that has an anchor."""

    path: Path
    seal: Seal | None = None

    def write(self, standing: RunProgress, learned: bytes) -> None:
        """Raises `StorageError` where that cannot be done."""
        container.save(self.path, _KIND, standing.fields(), {"state": from_bytes(learned)}, self.seal)

    def read(self) -> tuple[RunProgress, bytes]:
        """Read the newest state; raise `StorageError` as `container.load` does, and where a field is missing."""
        meta, tensors = container.load(self.path, _KIND, self.seal)
        try:
            return RunProgress.of(meta), tensors["state"].tobytes()
        except KeyError as error:
            raise StorageError(f"the file of this client's state lacks {error}; restore it from a copy") from error

    def ahead_of(self, standing: RunProgress) -> tuple[RunProgress, bytes] | None:
        """As `read`, where Flower's `standing` is behind the file; `None` where it is not.

        Raises:
            StorageError: the file is gone, or of another run.
        """
        kept, learned = self.read()
        if kept.run != standing.run:
            raise StorageError(
                f"{self.path} is of run {kept.run}, not {standing.run}: another run of the same terms uses it; give "
                "each a folder of its own"
            )
        return (kept, learned) if kept.step > standing.step else None


def recall(folder: ClientFolder | None, node: ClientNode, run: str, resumes: str) -> RunProgress:
    """Where a client stands that enrols in `run`, with what it kept laid over its fresh `node`.

    A run that goes on from `resumes` finds what the client learned in it; every run, what the client let out in those
    before it (`SupportsMemory`). The server may have died before it wrote down that a run went on, so each of those
    that the file's run went on from is taken too; a client whose state is not the server's refuses at the first
    message.

    Raises:
        ConfigError: nothing was kept, and the method's clients remember something.
        ContradictionError: the run's identifier is not new.
        StorageError: the file cannot be read, or is of none of those runs.
    """
    needed = bool(resumes) and has_memory(node.state.committed)
    if run == resumes:
        raise ContradictionError(SERVER, "a run that goes on has an identifier of its own")
    if folder is None or not folder.path.exists():
        if needed:
            raise ConfigError(
                f"the run goes on from run {resumes}, and this client kept nothing of it; give client_app a folder "
                "before the first run, or start without the server's checkpoint"
            )
        return RunProgress(run, (resumes,) if resumes else ())
    kept, learned = folder.read()
    runs = (kept.run, *kept.before)
    if run in runs:
        raise ContradictionError(SERVER, f"run {run} took place already; a new one has an identifier of its own")
    if needed and resumes not in runs:
        raise StorageError(f"{folder.path} is of run {kept.run}, not {resumes}; restore the newest copy of that one")
    fresh = node.state
    thaw(node, learned, resumes=kept.run)
    if resumes in runs:
        return RunProgress(run, runs)
    node.state = replace(fresh, memory=node.state.memory)
    return RunProgress(run)
