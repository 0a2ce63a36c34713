"""Record which clients contributed to which sum, and find which clients differences of sums can single out.

P is 1 where a client (column) contributed to the sum of a round (row), else 0. If messages do not change over the
rounds, a combination w of the sums with P^T w = the client's unit vector is that client's message. Users make a
`ParticipationMatrix` from a view (what the server observes of a run). It shows which clients secure aggregation exposes
when the survivors change from round to round. The function `disaggregate` starts from one, and fits messages that
change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from securefed._messages import ClientId
from securefed._tensors import Array
from securefed.attacks._base import View
from securefed.errors import TranscriptError

_RANK_TOLERANCE = 1e-9
"""Relative singular value below which least squares leaves a direction out."""


@dataclass(frozen=True)
class ParticipationMatrix:
    """The matrix P: which clients contributed to the sum of each round.

    Attributes:
        clients: ids of the columns, ascending.
        present: the matrix P, (rounds, clients).
    """

    clients: tuple[ClientId, ...]
    present: Array

    @classmethod
    def of(cls, observed: View) -> ParticipationMatrix:
        """Read the matrix from the members of each observed sum.

        Raises:
            TranscriptError: the view holds no round.
        """
        if not observed.rounds:
            raise TranscriptError("the view holds no round, so that participation is unknown; observe at least one")
        clients = tuple(sorted(observed.members))
        return cls(clients, np.array([[float(c in o.members) for c in clients] for o in observed.rounds]))

    @property
    def rates(self) -> Mapping[ClientId, float]:
        """Share of the rounds that each client contributed to; no defence hides it from the server."""
        return dict(zip(self.clients, self.present.mean(axis=0).tolist(), strict=True))

    def absences(self, client: ClientId) -> int:
        """Return the number of rounds without the client."""
        return int(np.sum(self.present[:, self._column(client)] == 0))

    @cached_property
    def groups(self) -> tuple[frozenset[ClientId], ...]:
        """Groups of clients that contributed to the same rounds; no difference of sums separates their members."""
        found: dict[bytes, set[ClientId]] = {}
        for column, client in enumerate(self.clients):
            found.setdefault(self.present[:, column].tobytes(), set()).add(client)
        return tuple(frozenset(group) for group in found.values())

    def weights(self, client: ClientId) -> Array | None:
        """Return the combination w (rounds,) of sums that is the client's message if messages do not change.

        Of all such combinations it is the one with the least noise; `None` if there is none.
        """
        unit = np.zeros(len(self.clients))
        unit[self._column(client)] = 1.0
        found, *_ = np.linalg.lstsq(self.present.T, unit, rcond=_RANK_TOLERANCE)
        return np.asarray(found) if np.abs(self.present.T @ found - unit).max() < 1e-6 else None

    def noise(self, client: ClientId) -> float:
        """Return the factor by which `weights` amplifies independent noise of the sums; infinite without weights."""
        found = self.weights(client)
        return float("inf") if found is None else float(np.linalg.norm(found))

    def _column(self, client: ClientId) -> int:
        if client not in self.clients:
            raise TranscriptError(f"client {client} is in no observed sum; those that are: {list(self.clients)}")
        return self.clients.index(client)
