"""Store a client's learned state and its progress in a run on the client's own disk.

The learned state is what the algorithm and the defence remember of earlier exchanges; an exchange makes one secure sum.
The ClientApp of `client_app` uses this file if it is given a folder.

The file never holds the secrets of the current exchange; these are in Flower's state, which lasts as long as the run.
The client writes the file before it sends a reply, and Flower stores the client's state after the reply. If the app is
killed between the two, or if Flower's state is reset, the file is newer than Flower's state. The client then goes on
from the file: the current exchange is lost, and the client does not upload for it a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from securefed._messages import SERVER
from securefed._persistence.frozen import complete, frozen, thawed
from securefed._persistence.packing import from_bytes
from securefed._persistence.sealing import Seal
from securefed._persistence.state_file import StateFile
from securefed._runtime.client import ClientNode
from securefed._runtime.client_state import has_memory
from securefed.errors import ConfigError, ContradictionError, StorageError

_KIND: Final = "client's state"
_PARTY: Final = "a client of a Flower run"


@dataclass(frozen=True)
class RunProgress:
    """Progress of a client in a run.

    Attributes:
        run: identifier of the run.
        before: identifiers of the earlier runs that this run continues, newest first.
        step: number of answers that the client has given in this run.
    """

    run: str
    before: tuple[str, ...] = ()
    step: int = 0

    @property
    def next(self) -> RunProgress:
        """The progress after one more answer."""
        return replace(self, step=self.step + 1)

    def fields(self) -> dict[str, str | int]:
        """Return the values as a record, which `of` reads."""
        return {"run": self.run, "before": " ".join(self.before), "step": self.step}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> RunProgress:
        """Read the fields that `fields` wrote; raise `KeyError` where one is missing."""
        return cls(str(fields["run"]), tuple(str(fields["before"]).split()), int(fields["step"]))


@dataclass(frozen=True)
class ClientFolder:
    """One client's file.

    Not guaranteed: that the file is the newest version, unless the seal has an anchor, a small file elsewhere that
    remembers the newest version.

    Attributes:
        path: the file.
        seal: encrypts the file; `None` for a file that is not encrypted.
    """

    path: Path
    seal: Seal | None = None

    @cached_property
    def _file(self) -> StateFile:
        return StateFile(self.path, _KIND, self.seal)

    def write(self, standing: RunProgress, learned: bytes) -> None:
        """Write progress and learned state in place of those read last; raise `StorageError` if that fails."""
        self._file.write(frozen(_PARTY, {}, standing.fields(), {"state": from_bytes(learned)}))

    def read(self) -> tuple[RunProgress, bytes] | None:
        """Return progress and learned state; `None` where there is no file yet.

        Raises:
            StorageError: the file is unreadable or lacks a field; or the seal's anchor remembers one, and it is gone.
        """

        def thaw(data: bytes) -> tuple[RunProgress, bytes]:
            values, tensors = thawed(data, _PARTY, {}, "give the client's own folder", older=(None,))
            with complete(_PARTY):
                return RunProgress.of(values), tensors["state"].tobytes()

        return self._file.restore(thaw)

    def ahead_of(self, standing: RunProgress) -> tuple[RunProgress, bytes] | None:
        """Return the file's content, as `read`, if the file is newer than Flower's state; else `None`.

        Args:
            standing: the progress in Flower's state.

        Raises:
            StorageError: the file is missing, or belongs to another run.
        """
        if (found := self.read()) is None:
            raise StorageError(f"{self.path} is gone, and this client has answered in this run; restore it")
        kept, learned = found
        if kept.run != standing.run:
            raise StorageError(
                f"{self.path} belongs to run {kept.run}, not to {standing.run}: another run of the same terms uses it; "
                "give each run its own folder"
            )
        return (kept, learned) if kept.step > standing.step else None


def recall(folder: ClientFolder | None, node: ClientNode, run: str, resumes: str) -> RunProgress:
    """Load a client's stored state into its new `node` when it enrols in a run, and return its progress.

    A run continues run `resumes` where the server starts from that run's checkpoint. The client then gets back what it
    learned there. In any other run, it gets back only what its defence remembers of earlier runs
    (`SupportsMemory`), such as which key it pinned. The server may have stopped before it saved that a
    run was continued, so `resumes` may also be any earlier run that the file's run continues. If the client's state
    then differs from the server's, the client refuses the first message.

    Args:
        folder: the client's file; `None` if the client keeps none.
        node: the client's new node, which is changed.
        run: identifier of the new run.
        resumes: identifier of the run that the new one continues; empty for none.

    Raises:
        ConfigError: the client has stored nothing, and the method's clients have a state.
        ContradictionError: the run's identifier is not new.
        StorageError: the file cannot be read, or belongs to none of those runs; or the seal's anchor remembers one, and
            it is gone.
    """
    needed = bool(resumes) and has_memory(node.state.committed)
    if run == resumes:
        raise ContradictionError(SERVER, "a continued run needs a new identifier, not that of the run it continues")
    found = None if folder is None else folder.read()
    if folder is None or found is None:
        if needed:
            raise ConfigError(
                f"the run continues run {resumes}, and this client has stored no state of it; give client_app a folder "
                "before the first run, or start without the server's checkpoint"
            )
        return RunProgress(run, (resumes,) if resumes else ())
    kept, learned = found
    runs = (kept.run, *kept.before)
    if run in runs:
        raise ContradictionError(SERVER, f"run {run} took place already; a new run needs a new identifier")
    if needed and resumes not in runs:
        raise StorageError(
            f"{folder.path} belongs to run {kept.run}, not to {resumes}; restore the newest copy of run {resumes}"
        )
    fresh = node.state
    # Given `resumes`, `thaw` takes over the learned state alone, and checks that the file is of that run. Here it is
    # the file's own run, so that this check passes: which runs are allowed was checked above.
    node.thaw(learned, resumes=kept.run)
    if resumes in runs:
        return RunProgress(run, runs)
    node.state = replace(fresh, memory=node.state.memory)
    return RunProgress(run)
