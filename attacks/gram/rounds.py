"""Which observed rounds a Gram attack may put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from securefed.algorithms.pca.guarded import BLOCK, GuardedFAPS
from securefed.algorithms.pca.localpower import LOCAL_STEPS
from securefed.algorithms.pca.server import BASIS, GRAM_PRODUCT, PRODUCT, SubspaceMethod
from securefed.algorithms.pca.ssi import SSI
from securefed.attacks.base import Observation, Observed
from securefed.attacks.precision import rounding
from securefed.attacks.requirements import too_large
from securefed.messages import ClientId
from securefed.public import Public
from securefed.tensors import Array

Members = frozenset[ClientId]


def shows_products(algorithm: object) -> bool:
    """Whether there may be rounds that show S Z: SSI's, LocalPower's, guarded FAPS', and all of a KKT stop's."""
    if isinstance(algorithm, SSI | GuardedFAPS):
        return True
    return isinstance(algorithm, SubspaceMethod) and algorithm.sends_gram_product


def linear(observed: Observed) -> list[Observation]:
    """Rounds that show S Z exactly: all of SSI's and of a KKT stop's, LocalPower's with one local step, and guarded
    FAPS' outside its blocks. Rounds whose broadcast is missing are left out: none needs another."""
    return [o for o in observed.rounds if o.broadcast and gram_product(o) is not None]


def gram_product(observation: Observation) -> Array | None:
    """S Z of a round of an algorithm that `shows_products`, or `None` where this round does not."""
    message, broadcast = observation.message, observation.broadcast
    if GRAM_PRODUCT in message:
        return message[GRAM_PRODUCT]
    plain = int(broadcast.get(LOCAL_STEPS, 1)) == 1 and int(broadcast.get(BLOCK, 0)) == 0
    return message[PRODUCT] if plain else None


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
    """[Z_1 .. Z_K] and [S Z_1 .. S Z_K] of rounds that show it, each (features, K rank)."""
    pairs = [(o.broadcast[BASIS], product) for o in rounds if (product := gram_product(o)) is not None]
    return np.hstack([Z for Z, _ in pairs]), np.hstack([Y for _, Y in pairs])


def errors(rounds: Iterable[Observation]) -> Array:
    """Standard deviation of the rounding of each column of `stacked`'s products, told from their numbers, (K rank,)."""
    seen = [(product, o) for o in rounds if (product := gram_product(o)) is not None]
    unit = max(_unit(o) for _, o in seen)
    squares = rounding(np.stack([product for product, _ in seen]), unit) ** 2
    return np.asarray(np.sqrt(squares.mean(axis=1)).reshape(-1))


def _unit(observation: Observation) -> float:
    """Of fixed point, as if the members' roundings had been one; 0 where nothing says that there were any."""
    name = GRAM_PRODUCT if GRAM_PRODUCT in observation.message else PRODUCT
    return observation.step.get(name, 0.0) * float(np.sqrt(len(observation.members)))


def rows_of(members: Members, public: Public) -> int:
    """Public number of rows behind a set of clients: a bound on the rank of their Gram matrix."""
    return sum(public.rows[client] for client in members)


def memory_for(features: int, rounds: Sequence[Observation], groups: int, limit: int) -> str | None:
    """Why a solve for `groups` Gram matrices from these rounds does not fit into `limit` bytes, or `None`."""
    columns = sum(np.shape(o.broadcast[BASIS])[1] for o in rounds)
    needed = 8 * groups * (8 * features**2 + 6 * features * columns)
    return too_large(needed, limit, f"Solving for {groups} x {features} x {features} entries from {columns} products")
