"""Select the observed rounds that an attack on Gram matrices can use together, and read their products S Z.

In a federated PCA the server broadcasts an orthonormal basis Z, (features, rank). Client i holds the Gram matrix
S_i = X_i^T X_i of its rows X_i and answers S_i Z or a function of it. A view shows the sum of the answers of a set of
clients; where the answers are S_i Z, this is S Z with S the sum of their S_i. Which rounds show S Z depends on the
method:

- SSI (simultaneous subspace iteration): all.
- LocalPower, in which clients make local power iterations: those with a single local step.
- FAPS, in which S_i Z is masked by a subspace that the client keeps: none.
- Any method that stops by the optimality (KKT) conditions of PCA, (I - Z Z^T) S Z = 0: all, since its clients send
  S_i Z beside their message, to test these conditions.

The attacks `gram/...` call these functions on a view before they solve for S.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from securefed._messages import ClientId
from securefed._public import Public
from securefed._tensors import Array
from securefed.algorithms._pca.localpower import LOCAL_STEPS
from securefed.algorithms._pca.server import BASIS, GRAM_PRODUCT, PRODUCT, SubspaceMethod
from securefed.algorithms._pca.ssi import SSI
from securefed.attacks._base import RoundView, View
from securefed.attacks._precision import rounding
from securefed.attacks._requirements import too_large

Members = frozenset[ClientId]
"""The clients whose sum a message is."""


def shows_products(algorithm: object) -> bool:
    """Return whether some rounds of an algorithm may show the product S Z of the Gram matrix and the broadcast basis.

    This holds for SSI, LocalPower, and every method that stops by the KKT conditions.
    """
    if isinstance(algorithm, SSI):
        return True
    return isinstance(algorithm, SubspaceMethod) and algorithm.sends_gram_product


def linear_rounds(observed: View) -> list[RoundView]:
    """Return the rounds that show S Z exactly.

    These are all rounds of SSI and of methods that stop by the KKT conditions, and the rounds of LocalPower with one
    local step. Rounds whose broadcast is missing are left out.
    """
    return [o for o in observed.rounds if o.broadcast and gram_product(o) is not None]


def gram_product(observation: RoundView) -> Array | None:
    """Return S Z of a round, (features, rank), or `None` if this round does not show it.

    The algorithm must satisfy `shows_products`. Its message is S Z where the broadcast asks for one local step
    (LocalPower); SSI's broadcasts do not state their number.
    """
    message, broadcast = observation.message, observation.broadcast
    if GRAM_PRODUCT in message:
        return message[GRAM_PRODUCT]
    return message[PRODUCT] if int(broadcast.get(LOCAL_STEPS, 1)) == 1 else None


def rounds_by_members(rounds: Iterable[RoundView]) -> dict[Members, list[RoundView]]:
    """Group rounds by the clients whose sum they show, in order of first appearance."""
    groups: dict[Members, list[RoundView]] = {}
    for observation in rounds:
        groups.setdefault(observation.members, []).append(observation)
    return groups


def most_frequent_members(groups: dict[Members, list[RoundView]], target: ClientId | None) -> Members | None:
    """Return the set of clients with most rounds among the sets that include the target.

    Args:
        groups: rounds by set of clients.
        target: the attacked client; `None` allows every set.

    Returns:
        The set, the smaller one in a tie; `None` if no set includes the target.
    """
    fits = [members for members in groups if target is None or target in members]
    return min(fits, key=lambda members: (-len(groups[members]), len(members)), default=None)


def stacked_products(rounds: Iterable[RoundView]) -> tuple[Array, Array]:
    """Return [Z_1 .. Z_K] and [S Z_1 .. S Z_K] of the rounds that show them, each (features, K rank)."""
    pairs = [(o.broadcast[BASIS], product) for o in rounds if (product := gram_product(o)) is not None]
    return np.hstack([Z for Z, _ in pairs]), np.hstack([Y for _, Y in pairs])


def rounding_of_products(rounds: Iterable[RoundView]) -> Array:
    """Estimate the rounding error of each column of `stacked_products` from the digits of the observed numbers.

    Returns:
        Standard deviations of an entry of each column, (K rank,).
    """
    products = [(product, o) for o in rounds if (product := gram_product(o)) is not None]
    unit = max(_unit(o) for _, o in products)
    squares = rounding(np.stack([product for product, _ in products]), unit) ** 2  # (K, features, rank)
    return np.asarray(np.sqrt(squares.mean(axis=1)).reshape(-1))  # root mean square over the features of a column


def _unit(observation: RoundView) -> float:
    """Return the fixed-point unit of one number that would have the rounding error of the sum; 0 where it is unknown.

    Every member rounds its own message to its fixed-point unit, so the variances of the errors add up.
    """
    name = GRAM_PRODUCT if GRAM_PRODUCT in observation.message else PRODUCT
    return observation.step.get(name, 0.0) * float(np.sqrt(len(observation.members)))


def rows_of(members: Members, public: Public) -> int:
    """Return the public number of rows of a set of clients, which bounds the rank of their summed Gram matrix."""
    return sum(public.rows[client] for client in members)


def why_too_large(features: int, rounds: Sequence[RoundView], groups: int, limit: int) -> str | None:
    """Return why a solve does not fit into memory, or `None` if it does.

    Args:
        features: number of features.
        rounds: rounds whose products are used.
        groups: number of Gram matrices that are solved for.
        limit: largest number of bytes.
    """
    columns = sum(np.shape(o.broadcast[BASIS])[1] for o in rounds)
    # 8 bytes a number; about eight (features, features) and six (features, columns) matrices a group
    needed = 8 * groups * (8 * features**2 + 6 * features * columns)
    return too_large(needed, limit, f"Solving for {groups} x {features} x {features} entries from {columns} products")
