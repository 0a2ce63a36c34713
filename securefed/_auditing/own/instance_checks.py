"""Check a user's instance of `Algorithm` before and after a run, so that errors name method, client and round.

An instance is to be a value: what a server or a client remembers is in the states that its methods take and return.
One that changes itself instead answers the same question in two ways, and attackers could not replay its messages.
`own_audit` makes a `Rehearsal` before the first run and repeats it after; `own_seed_run` calls `locate_failure`.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from traceback import walk_tb
from typing import Any, Final

import numpy as np

from securefed._public import Public
from securefed._tensors import Array, Tensors
from securefed.algorithms._base import Algorithm
from securefed.datasets._base import Dataset
from securefed.errors import DataError, SecureFedError

_SAME: Final = 1e-9
"""Relative difference up to which two answers count as the same: sums in another order differ by less."""


class Rehearsal:
    """Call every client's first step outside any run; `repeat` asks the first client again later.

    Args:
        method: the instance.
        data: each client's rows.
        public: public facts (numbers of clients, rows and features, range of the data) that the method starts with.

    Raises:
        DataError: a method fails on some client, or returns something that its layout does not state; or the instance
            gave two answers to the same question and has changed in between.
    """

    def __init__(self, method: Algorithm[Any, Any], data: Sequence[Dataset], public: Public) -> None:
        self._method, self._data, self._public = method, data, public
        self._attributes = _attributes(method)
        self._broadcast = self._first_broadcast()
        self._first, *_ = [self._message(client) for client in range(len(data))]  # every client's step is tried
        self.repeat()

    def repeat(self) -> None:
        """Raise `DataError` if the first question has another answer now, and an attribute changed meanwhile."""
        tolerance = _SAME * float(np.abs(self._first).max(initial=0))
        if np.allclose(self._message(0), self._first, rtol=_SAME, atol=tolerance):
            return
        now = _attributes(self._method)
        changed = sorted(name for name in now if now[name] != self._attributes.get(name))
        # Without a change the instance draws from a random generator that it made itself. That is no error here: every
        # attack that cannot replay its messages says so in its result.
        if changed:
            raise DataError(
                f"{type(self._method).__name__}.contribute answers one question in two ways, and meanwhile "
                f"{', '.join(changed)} of the object changed: all clients and all attackers share the object, so that "
                "its messages cannot be replayed; what a client remembers belongs in the state that contribute returns"
            )

    def _first_broadcast(self) -> Tensors:
        try:
            return self._method.broadcast(self._method.start(self._public, np.random.default_rng(0)))
        except SecureFedError:
            raise
        except Exception as error:
            raise DataError(_failure(self._method, error)) from error

    def _message(self, client: int) -> Array:
        """Compute a client's first message as one vector."""
        rng, where = np.random.default_rng(0), f"client {client}, round 0: "
        try:
            state = self._method.enroll(self._data[client], self._public, rng)
            answer = self._method.contribute(state, dict(self._broadcast), rng)
            if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], Mapping):
                raise DataError(f"contribute must return (state, tensors by name), not {type(answer).__name__}")
            self._method.layout(self._public).check(answer[1])
            return np.concatenate([np.ravel(answer[1][name]) for name in sorted(answer[1])])
        except SecureFedError as error:
            raise DataError(f"{where}{type(self._method).__name__}: {error}") from error
        except Exception as error:
            raise DataError(where + _failure(self._method, error)) from error


def locate_failure(method: Algorithm[Any, Any], error: Exception, seed: int) -> DataError:
    """Make the error that names the method, and the client and round if there is one, in which a run failed.

    Args:
        method: the instance.
        error: the error that the run raised.
        seed: the seed of the run.
    """
    where = [note for note in getattr(error, "__notes__", ()) if note.startswith("client ")]  # by `ClientNode`
    return DataError(f"{', '.join([*where, f'seed {seed}'])}: {_failure(method, error)}")


_METHODS: Final = frozenset(name for name in vars(Algorithm) if not name.startswith("_")) | {"contribute_together"}
"""Methods that a failure may be in."""


def _failure(method: Any, error: Exception) -> str:
    """Name the class, its method (or else the innermost function) and the exception."""
    names = [frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)]  # outermost first
    called = next((name for name in names if name in _METHODS), names[-1])
    return f"{type(method).__name__}.{called} raised {type(error).__name__}: {error}"


def _attributes(method: Any) -> dict[str, bytes]:
    """Serialise what an object holds, to compare it; what cannot be serialised is left out.

    The bytes are compared and thrown away. Nothing is ever unpickled.
    """
    out: dict[str, bytes] = {}
    for name, value in getattr(method, "__dict__", {}).items():
        with suppress(Exception):
            out[name] = pickle.dumps(value)
    return out
