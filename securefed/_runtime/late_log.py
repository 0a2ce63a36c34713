"""Write warnings of a client a moment later, so that the server does not see in the time of a reply that one was due.

A client that sits out must reply as fast as one that contributes. To format and write a line takes a twentieth of a
millisecond and more, which is visible where the upload is small.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
from typing import Final

_LOG = logging.getLogger("securefed.client")
_DELAY: Final = 0.2
"""Seconds by which a warning is late: longer than the rest of most replies takes."""


class _LateLog:
    """A thread that writes warnings; it starts with the first one, and again in a process that was forked."""

    def __init__(self) -> None:
        self._due: queue.SimpleQueue[tuple[float, str, tuple[object, ...]]] = queue.SimpleQueue()
        self._lock, self._process = threading.Lock(), 0

    def add(self, text: str, values: tuple[object, ...]) -> None:
        with self._lock:
            if self._process != os.getpid():
                self._process, self._due = os.getpid(), queue.SimpleQueue()
                threading.Thread(target=self._write, args=(self._due,), daemon=True, name="securefed-log").start()
        self._due.put((time.monotonic() + _DELAY, text, values))

    def flush(self) -> None:
        """Write now what is left."""
        while True:
            try:
                _, text, values = self._due.get_nowait()
            except queue.Empty:
                return
            _LOG.warning(text, *values)

    @staticmethod
    def _write(due: queue.SimpleQueue[tuple[float, str, tuple[object, ...]]]) -> None:
        while True:
            when, text, values = due.get()
            time.sleep(max(when - time.monotonic(), 0.0))
            _LOG.warning(text, *values)


_LATE: Final = _LateLog()
atexit.register(_LATE.flush)


def warn_later(text: str, *values: object) -> None:
    """Log a warning of `securefed.client` a moment later; what is due when the process ends is written then.

    Args:
        text: the message, in `logging`'s format.
        values: what it is about; not changed afterwards.
    """
    _LATE.add(text, values)


def flush() -> None:
    """Write all warnings that are due later; for tests, and before a process is killed."""
    _LATE.flush()
