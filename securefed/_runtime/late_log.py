"""Log a moment later that a client sat out, so that the server does not see in the time of a reply that a line was due.

A client that sits out must reply as fast as one that contributes. To format and write a line takes a twentieth of a
millisecond and more, which is visible where the upload is small. So both hand over a note, and a thread writes a line
for those that are about an absence.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from typing import Final

from securefed._messages import ClientId

_LOG = logging.getLogger("securefed.client")
_DELAY: Final = 0.2
"""Seconds by which a line is late: longer than the rest of most replies takes."""
_Note = tuple[float, ClientId, int, "Exception | None", "Exception | None"]
"""When to write it, the client, the number of the exchange, and the client's absence before and now."""


class _LateLog:
    """Notes in order, and a thread that writes them; it starts with the first one, and anew after a fork."""

    def __init__(self) -> None:
        self._due: deque[_Note] = deque()
        self._changed, self._process = threading.Condition(), 0

    def add(self, note: _Note) -> None:
        if self._process != os.getpid():  # a lock that another thread held at the fork would stay locked
            self._process, self._due, self._changed = os.getpid(), deque(), threading.Condition()
            threading.Thread(target=self._write_due, daemon=True, name="securefed-log").start()
        with self._changed:
            self._due.append(note)
            self._changed.notify()

    def flush(self) -> None:
        """Write now what is left."""
        with self._changed:
            while self._due:
                _write(self._due.popleft())

    def _write_due(self) -> None:
        with self._changed:
            while True:
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                else:
                    _write(self._due.popleft())


def _write(note: _Note) -> None:
    _, client, exchange, before, error = note
    if error is not None and repr(before) != repr(error):
        _LOG.warning("client %d has no contribution to exchange %d: %r", client, exchange, error)


_LATE: Final = _LateLog()
atexit.register(_LATE.flush)


def log_absence(
    client: ClientId, before: Exception | None, error: Exception | None, exchange: int, *, now: bool = False
) -> None:
    """Log a moment later that a client had no contribution; what is due when the process ends is written then.

    Call it for clients that contribute, too, since the call takes time.

    Args:
        client: its id.
        before: why it had none to the exchange before; the same reason is not logged again.
        error: why it has none; `None` where it contributes, and nothing is logged.
        exchange: the exchange's number.
        now: whether to log at once, as of simulated clients, whose replies no server times.
    """
    note = (time.monotonic() + _DELAY, client, exchange, before, error)
    if now:
        _write(note)
    else:
        _LATE.add(note)


def flush() -> None:
    """Write all lines that are due later; for tests, and before a process is killed."""
    _LATE.flush()
