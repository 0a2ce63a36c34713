"""Keep the state of a party in a file that one process at a time goes on with.

`SumClient` and `SumServer`, the parties of a secure sum, keep their state in one, so that they outlive their process.
Why one process at a time: two that go on from one state of a client would mask two uploads alike, and the server would
learn their difference.

Not promised: that a file is the newest. An older copy in its place opens, unless the seal has an anchor, a small file
kept elsewhere that counts the writes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from securefed._persistence import container
from securefed._persistence.file_errors import storage_errors
from securefed._persistence.packing import from_bytes
from securefed._persistence.sealing import Seal, behind_links
from securefed.errors import StorageError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, so that no other process that asks for it writes it; wait where another holds it.

    The lock is a file of its own beside it, `.NAME.lock`; a symbolic link has the lock of the file behind it. The
    operating system frees it when the process ends.

    Not promised: anything on a system without `fcntl` (Windows).

    Raises:
        OSError: the lock beside the file cannot be made.
    """
    if os.name != "posix":
        yield
        return
    place = behind_links(path)
    with place.with_name(f".{place.name}.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class StateFile:
    """A file with one state, written whole each time.

    Two processes that read the same state must not both answer from it. So a write is refused where the file is not the
    one that this object read or wrote last; call `read` before the first `write`, also where there is no file yet.

    Args:
        path: the file.
        kind: what it is, for errors.
        seal: encrypts the file; without one only its owner may read it.
    """

    def __init__(self, path: Path | str, kind: str, seal: Seal | None = None) -> None:
        self._path, self._kind, self._seal = Path(path), kind, seal
        self._last: bytes | None = None  # digest of the file as last read or written; `None` before a `read` succeeded

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
                    self._seal.check_never_written(self._kind, self._path)
                self._last = digest
                return None
            _, tensors = container.load(self._path, self._kind, self._seal)
            if "state" not in tensors:
                raise StorageError(f"{self._kind} {self._path} holds no state; restore it from a copy")
            self._last = digest  # only now: a file that could not be read must not be replaced by `write`
        return tensors["state"].tobytes()

    def write(self, state: bytes) -> None:
        """Put the state on disk in place of the last one.

        Raises:
            StorageError: the file cannot be written, or another process has written it or taken it away, or this object
                has not read it.
        """
        with self._locked():
            if self._digest() != self._last:
                raise StorageError(
                    f"{self._kind} {self._path} is not as this process left it: another process has gone on with it, "
                    "or it was taken away; go on in one process, with the newest file"
                )
            container.save(self._path, self._kind, {}, {"state": from_bytes(state)}, self._seal)
            self._last = self._digest()

    def _digest(self) -> bytes:
        """Compute SHA-256 of the file as it is on disk; empty where there is none."""
        with storage_errors(f"read {self._kind} {self._path}"), suppress(FileNotFoundError):
            return hashlib.sha256(self._path.read_bytes()).digest()
        return b""

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Make the file's folder and hold the file's lock; `StorageError` where that fails."""
        with ExitStack() as held:
            with storage_errors(f"lock {self._kind} {self._path}"):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                held.enter_context(locked(self._path))
            yield
