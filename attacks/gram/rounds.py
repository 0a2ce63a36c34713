"""Which observed rounds a Gram attack may put together."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from securefed.algorithms.base import Public
from securefed.algorithms.pca.localpower import LOCAL_STEPS
from securefed.algorithms.pca.server import BASIS, PRODUCT
from securefed.attacks.base import Observation, Observed
from securefed.messages import ClientId
from securefed.tensors import Array

Members = frozenset[ClientId]


def linear(observed: Observed) -> list[Observation]:
    """Rounds whose message is S Z exactly: all of SSI's, and those of LocalPower with one local step."""
    return [o for o in observed.rounds if int(o.broadcast.get(LOCAL_STEPS, 1)) == 1]


def by_members(rounds: Iterable[Observation]) -> dict[Members, list[Observation]]:
    """Rounds by the clients whose sum they show, in order of first appearance."""
    groups: dict[Members, list[Observation]] = {}
    for observation in rounds:
        groups.setdefault(observation.members, []).append(observation)
    return groups


def most_seen(groups: dict[Members, list[Observation]], target: ClientId | None) -> Members | None:
    """The set with most rounds among those that hold the target (any, without one); ties go to the smaller set."""
    fits = [members for members in groups if target is None or target in members]
    return min(fits, key=lambda members: (-len(groups[members]), len(members)), default=None)


def stacked(rounds: Iterable[Observation]) -> tuple[Array, Array]:
    """[Z_1 .. Z_K] and [Y_1 .. Y_K], each (features, K rank)."""
    pairs = [(o.broadcast[BASIS], o.message[PRODUCT]) for o in rounds]
    return np.hstack([Z for Z, _ in pairs]), np.hstack([Y for _, Y in pairs])


def rows_of(members: Members, public: Public) -> int:
    """Public number of rows behind a set of clients: a bound on the rank of their Gram matrix."""
    return sum(public.rows[client] for client in members)
