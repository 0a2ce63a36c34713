"""One client's messages in the observed rounds as a function of what a fit seeks of its rows.

The fits of this folder (`row_fit`, `unknown_fit`) hand one `ReplayedMember` for each member, the clients whose sum an
observed message is, to `_engine.fit`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._tensors import Array
from securefed.attacks._engine import DualArray
from securefed.attacks._engine.unknowns import GramFactor, RowEntries
from securefed.attacks._generic.client_replay import Replay
from securefed.errors import SecureFedError

_FAILURES = (SecureFedError, ArithmeticError, ValueError)
"""Errors that a client step may raise on rows that an attacker tries."""


@dataclass(frozen=True)
class ReplayedMember:
    """One member's messages in all rounds as a function of its unknown; a `Simulation`.

    Attributes:
        replay: the replay of the observed rounds.
        index: the member's place among the members.
        unknown: the coordinates of its rows, on which these depend linearly.
        scale: factor of all rows.
    """

    replay: Replay
    index: int
    unknown: RowEntries | GramFactor
    scale: float = 1.0

    @property
    def count(self) -> int:
        """Return the number of coordinates."""
        return self.unknown.count

    @property
    def determined(self) -> int:
        """Return the number of coordinates: the attack does not know of directions that no message shows."""
        return self.count

    def sent(self, x: Array) -> Array:
        """Return the messages; a single NaN where the step fails."""
        try:
            return np.asarray(self._messages(x))
        except _FAILURES:
            self.replay.check_budget()
            return np.full(1, np.nan)

    def sent_and_tangents(self, x: Array) -> tuple[Array, Array]:
        """Return the messages and their derivatives; NaN where the step fails."""
        try:
            sent = np.asarray(self._messages(x))
            return sent, self._tangents(x, sent)
        except _FAILURES:
            self.replay.check_budget()
            return np.full(1, np.nan), np.full((1, len(x)), np.nan)

    def _messages(self, x: Any) -> Any:
        rows = self.scale * self.unknown.rows(x)
        return self.replay.alone(self.index, self.replay.member_data(self.index, rows))

    def _tangents(self, x: Array, sent: Array) -> Array:
        """Return the derivatives: from torch if these are right, else from the step on a `DualArray`, else differences.

        Central differences are accurate to about 1e-9 of the derivatives' scale, 2e-5 for messages in float32.
        """
        if self.replay.differentiable:
            slopes = self.replay.torch_slopes(self.index, self.scale * self.unknown.rows(x))
            lines = [self.scale * self.unknown.rows(line).ravel() for line in np.eye(len(x))]
            return np.asarray(slopes @ np.stack(lines, axis=1))
        with suppress(SecureFedError):  # the step has operations without a rule
            out = self._messages(DualArray.variables(x))
            return np.asarray(out.slopes if isinstance(out, DualArray) else np.zeros((len(sent), len(x))))
        step = self.replay.units.step * max(float(np.abs(x).max()), self.unknown.unit)
        ends = [[self._messages(x + sign * step * line) for sign in (1, -1)] for line in np.eye(len(x))]
        return np.stack([(ahead - behind) / (2 * step) for ahead, behind in ends], axis=1)
