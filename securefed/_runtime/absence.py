"""Sit out of an exchange without a difference that the server could see, in what is sent or in the time of a reply.

A client without a contribution encodes, draws and masks as much as one that contributes. To format and write a line of
the log takes a twentieth of a millisecond and more, which is visible where the upload is small: so both hand over a
note, and a thread writes a line, a moment later, for those that are about an absence. Terms may also name a time after
which all clients answer a request for their contribution (`hold`, `SumTerms.answer_after`): the server sees how long a
client takes for it, a function that fails early answers early, and one that works on more rows late.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import warnings
from collections import deque
from dataclasses import replace
from traceback import clear_frames
from typing import Final

import numpy as np

from securefed._messages import ClientId
from securefed._runtime.client_state import ClientNodeState
from securefed._tensors import Tensors
from securefed.defenses._base import Defense, Plan, has_indicator
from securefed.errors import LateAnswerWarning, RangeRefused

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
    note = (moment() + _DELAY, client, exchange, before, error)
    if now:
        _write(note)
    else:
        _LATE.add(note)


def flush() -> None:
    """Write all lines that are due later; for tests, and before a process is killed."""
    _LATE.flush()


def absent_state(state: ClientNodeState) -> ClientNodeState:
    """Return the state of a client that sits out of the exchange that is open."""
    session = state.session
    assert session is not None
    if state.trains:  # the client then replies like any other if the server claims to have counted it
        state = replace(state, tentative=state.committed, tentative_round=session.round, absent=True)
    return replace(state, out=state.out + has_indicator(session.plan))


def encoded_or_refusal(defense: Defense, plan: Plan, raw: Tensors) -> Tensors | Exception:
    """Encode a contribution; return the exception where that fails.

    To raise and to catch takes time that a small upload shows, so an exception is raised in either case. The caller
    frees `raw`, and then `free`s the exception: both hold arrays as large as the model.
    """
    encoded: Tensors | None = None
    try:
        encoded = defense.encode(raw, plan)
        raise RangeRefused(f"{plan.tensors[0].name!r} reaches {0.0:.3g}, within the planned bound {1.0:.3g}")
    except Exception as error:
        if encoded is None:
            return error
        free(error)
        return encoded


def free(refusal: Exception) -> Exception:
    """Free the arrays that the frames of a refusal hold, and return it."""
    clear_frames(refusal.__traceback__)
    return refusal


def zeros(plan: Plan) -> Tensors:
    """Return the contribution of a client that sits out under noise, and that any other encodes to take the time."""
    return {spec.name: np.zeros(spec.shape) for spec in plan.own}


def moment() -> float:
    """Return the time in seconds, from an arbitrary start, which never goes back."""
    return time.monotonic()


def hold(client: ClientId, arrived: float, seconds: float | None) -> None:
    """Wait until so many seconds after a request arrived have passed.

    Args:
        client: the client that answers.
        arrived: when the request arrived, as `moment` tells it.
        seconds: from the terms; `None` for no wait.

    Warns:
        LateAnswerWarning: more seconds have passed already.
    """
    if seconds is None:
        return
    if (late := moment() - arrived - seconds) > 0:
        warnings.warn(
            f"client {client} answers {late:.3g} s later than the terms say, {seconds:g} s after the request: the "
            "server may see how long its contribution took; agree on terms with a longer answer_after",
            LateAnswerWarning,
            stacklevel=4,
        )
    while (left := arrived + seconds - moment()) > 0:
        time.sleep(left)
