"""Keep the state of a party in a file that one process at a time goes on with.

Every party that outlives its process keeps its frozen state (`frozen`) in one: `SumClient`, `SumServer`, the checkpoint
of a run, `securefed party`, and the folder of `client_app`.
Why one process at a time: two that go on from one state of a client would mask two uploads alike, and the server would
learn their difference.

Not promised: that a file is the newest. An older copy in its place opens, unless the seal has an anchor, a small file
kept elsewhere that counts the writes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from securefed._persistence import container
from securefed._persistence.file_errors import storage_errors
from securefed._persistence.packing import from_bytes
from securefed._persistence.sealing import Seal, behind_links
from securefed._tensors import encode
from securefed.errors import StorageError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]


R = TypeVar("R")


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file, so that no other process that asks for it writes it.

    The lock is a file of its own beside it, `.NAME.lock`; a symbolic link has the lock of the file behind it. The
    operating system frees it when the process ends.

    Not promised: anything on a system without `fcntl` (Windows).

    Args:
        path: the file.
        wait: whether to wait where another process holds the lock.

    Raises:
        OSError: the lock beside the file cannot be made.
        StorageError: another process holds it, and `wait` is false.
    """
    if os.name != "posix":
        yield
        return
    place = behind_links(path)
    with place.with_name(f".{place.name}.lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise StorageError(f"another process is using {path}; try again when it has ended") from error
        yield


class StateFile:
    """A file with one frozen state, written whole each time.

    Two processes that read the same state must not both answer from it. So a write is refused where the file is not the
    one that this object read or wrote last; call `read` before the first `write`, also where there is no file yet.

    Args:
        path: the file.
        kind: what it is, for errors; a file of another kind is refused.
        seal: encrypts the file; without one only its owner may read it.
    """

    def __init__(self, path: Path | str, kind: str, seal: Seal | None = None) -> None:
        self.path, self.kind, self._seal = Path(path), kind, seal
        self._last: bytes | None = None  # digest of the file as last read or written; `None` before a `read` succeeded
        self._alone = False  # whether this object holds the lock over several reads and writes

    def read(self) -> bytes | None:
        """Return the state; `None` where there is no file yet.

        Raises:
            StorageError: the file cannot be read, was altered, or is sealed otherwise; or the seal's anchor remembers
                one, and it is gone.
        """
        with self._locked():
            digest = self._digest()
            if not digest:
                if self._seal is not None:
                    self._seal.check_never_written(self.kind, self.path)
                self._last = digest
                return None
            values, tensors = container.load(self.path, self.kind, self._seal)
            self._last = digest  # only now: a file that could not be read must not be replaced by `write`
        if not values and set(tensors) == {"state"}:
            return tensors["state"].tobytes()
        return encode(tensors, values)  # release 0.1 wrote some states' arrays and values into the file themselves

    def restore(self, thaw: Callable[[bytes], R]) -> R | None:
        """Return what `thaw`, which restores a party, makes of the state; `None` where there is no file yet.

        Raises:
            StorageError: as `read`, or what `thaw` raises, with the file's name.
        """
        if (state := self.read()) is None:
            return None
        try:
            return thaw(state)
        except StorageError as error:
            raise type(error)(f"{error} ({self.kind} {self.path})") from error

    def write(self, state: bytes) -> None:
        """Put the state on disk in place of the last one.

        Raises:
            StorageError: the file cannot be written, or another process has written it or taken it away, or this object
                has not read it.
        """
        with self._locked():
            if self._digest() != self._last:
                raise StorageError(
                    f"{self.kind} {self.path} is not as this process left it: another process has gone on with it, "
                    "or it was taken away; go on in one process, with the newest file"
                )
            container.save(self.path, self.kind, {}, {"state": from_bytes(state)}, self._seal)
            self._last = self._digest()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the file's lock over several reads and writes.

        Raises:
            StorageError: another process holds it, or it cannot be made.
        """
        with self._locked(wait=False):
            self._alone = True
            try:
                yield
            finally:
                self._alone = False

    def _digest(self) -> bytes:
        """Compute SHA-256 of the file as it is on disk; empty where there is none."""
        with storage_errors(f"read {self.kind} {self.path}"), suppress(FileNotFoundError):
            return hashlib.sha256(self.path.read_bytes()).digest()
        return b""

    @contextmanager
    def _locked(self, *, wait: bool = True) -> Iterator[None]:
        """Make the file's folder and hold the file's lock; `StorageError` where that fails."""
        with ExitStack() as held:
            with storage_errors(f"lock {self.kind} {self.path}", "choose another path"):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                if not self._alone:
                    held.enter_context(locked(self.path, wait=wait))
            yield
