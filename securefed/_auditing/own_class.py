"""One's own class before and after a run: what it cannot do is said with method, client and round."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Final

import numpy as np

from securefed._public import Public
from securefed._runtime.client import ClientNode
from securefed._tensors import Array, Tensors
from securefed.algorithms._base import Algorithm
from securefed.datasets._base import Dataset
from securefed.errors import DataError, SecureFedError

_SAME: Final = 1e-9


class Rehearsal:
    """Every client's first step, outside any run; and the first client's asked again later.

    Raises:
        DataError: a method fails on some client, or returns what its layout does not state; or the object answers the
            same question in two ways and has changed in between.
    """

    def __init__(self, method: Algorithm[Any, Any], data: Sequence[Dataset], public: Public) -> None:
        self._method, self._data, self._public = method, data, public
        self._memory = _attributes(method)
        self._broadcast = self._started()
        self._first, *_ = [self._sent(client) for client in range(len(data))]
        self.again()

    def again(self) -> None:
        """Raise `DataError` where the first question has another answer now: the object remembers something."""
        if np.allclose(self._sent(0), self._first, rtol=_SAME, atol=_SAME * float(np.abs(self._first).max(initial=0))):
            return
        now = _attributes(self._method)
        changed = sorted(name for name in now if now[name] != self._memory.get(name))
        if changed:  # else it draws from a generator of its own, and each attack says what that costs it
            raise DataError(
                f"{_name(self._method)}.contribute answers one question in two ways, and meanwhile "
                f"{', '.join(changed)} of the object changed: all clients and all attackers share the object, so that "
                "its messages cannot be replayed; what a client remembers belongs in the state that contribute returns"
            )

    def _started(self) -> Tensors:
        try:
            return self._method.broadcast(self._method.start(self._public, np.random.default_rng(0)))
        except SecureFedError:
            raise
        except Exception as error:
            raise DataError(f"{_name(self._method)}.{_verb(error)} {_said(error)}") from error

    def _sent(self, client: int) -> Array:
        rng, where = np.random.default_rng(0), f"client {client}, round 0: {_name(self._method)}"
        try:
            state = self._method.enroll(self._data[client], self._public, rng)
            answer = self._method.contribute(state, dict(self._broadcast), rng)
            if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], Mapping):
                raise DataError(f"contribute must return (state, tensors by name), not {type(answer).__name__}")
            self._method.layout(self._public).check(answer[1])
            return np.concatenate([np.ravel(answer[1][name]) for name in sorted(answer[1])])
        except SecureFedError as error:
            raise DataError(f"{where}: {error}") from error
        except Exception as error:
            raise DataError(f"{where}.{_verb(error)} {_said(error)}") from error


def broken(method: Algorithm[Any, Any], error: Exception, seed: int) -> DataError:
    """What ended a run with no error of ours: which method of the object, and for which client and round if one."""
    where = ""
    for frame in _frames(error):
        node, pending = frame.f_locals.get("self"), frame.f_locals.get("pending")
        if isinstance(node, ClientNode):
            where = f"client {node.client}, " + ("" if pending is None else f"round {pending.message.round}, ")
    return DataError(f"{where}seed {seed}: {_name(method)}.{_verb(error)} {_said(error)}")


def _verb(error: Exception) -> str:
    """The method of the protocol in which it happened; the innermost function where it was none."""
    names = [frame.f_code.co_name for frame in _frames(error)]
    return next((name for name in names if name in _VERBS), names[-1])


_VERBS: Final = frozenset(name for name in vars(Algorithm) if not name.startswith("_")) | {"contribute_together"}


def _frames(error: Exception) -> list[FrameType]:
    trace, out = error.__traceback__, []
    while trace is not None:
        out.append(trace.tb_frame)
        trace = trace.tb_next
    return out


def _said(error: Exception) -> str:
    return f"raised {type(error).__name__}: {error}"


def _name(method: Any) -> str:
    return type(method).__name__


def _attributes(method: Any) -> dict[str, bytes]:
    """What the object holds, in a form that can be compared; without what cannot be written down. Nothing is ever
    unpickled: the bytes are compared, and thrown away."""
    out: dict[str, bytes] = {}
    for name, value in getattr(method, "__dict__", {}).items():
        with suppress(Exception):
            out[name] = pickle.dumps(value)
    return out
