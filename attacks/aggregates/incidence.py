"""Who was in which sum: participation statistics, and what differences of sums can single out at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from securefed.attacks.base import Observed
from securefed.errors import TranscriptError
from securefed.messages import ClientId
from securefed.tensors import Array

_RANK = 1e-9


@dataclass(frozen=True)
class Incidence:
    """Rounds times clients.

    Attributes:
        clients: ids, ascending: the columns.      present: (rounds, clients) of 0 and 1.
    """

    clients: tuple[ClientId, ...]
    present: Array

    @classmethod
    def of(cls, observed: Observed) -> Incidence:
        """From the members of each observed sum.

        Raises:
            TranscriptError: the view holds no round.
        """
        if not observed.rounds:
            raise TranscriptError("the view holds no round, so nobody's participation is known")
        clients = tuple(sorted(observed.members))
        return cls(clients, np.array([[float(c in o.members) for c in clients] for o in observed.rounds]))

    @property
    def rates(self) -> Mapping[ClientId, float]:
        """Share of the rounds that each client was in: known to the server under every defence here."""
        return dict(zip(self.clients, self.present.mean(axis=0).tolist(), strict=True))

    def absences(self, client: ClientId) -> int:
        """Rounds without the client."""
        return int(np.sum(self.present[:, self._column(client)] == 0))

    @cached_property
    def groups(self) -> tuple[frozenset[ClientId], ...]:
        """Clients that are in exactly the same rounds: no difference of sums tells them apart."""
        found: dict[bytes, set[ClientId]] = {}
        for column, client in enumerate(self.clients):
            found.setdefault(self.present[:, column].tobytes(), set()).add(client)
        return tuple(frozenset(group) for group in found.values())

    def weights(self, client: ClientId) -> Array | None:
        """The combination of sums that is the client's message alone if messages stay the same over the rounds, of
        least noise; `None` where there is none."""
        unit = np.zeros(len(self.clients))
        unit[self._column(client)] = 1.0
        found, *_ = np.linalg.lstsq(self.present.T, unit, rcond=_RANK)
        return np.asarray(found) if np.abs(self.present.T @ found - unit).max() < 1e-6 else None

    def noise(self, client: ClientId) -> float:
        """By how much independent noise of each sum is multiplied in that combination; infinite where there is none."""
        found = self.weights(client)
        return float("inf") if found is None else float(np.linalg.norm(found))

    def _column(self, client: ClientId) -> int:
        if client not in self.clients:
            raise TranscriptError(f"client {client} is in no observed sum")
        return self.clients.index(client)
