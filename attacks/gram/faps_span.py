"""The few directions in which FAPS' first messages of a client of few rows move, whatever the number of features.

With X_0 = Z_0 every subspace, mask and message of rounds 0 .. K - 1 lies in range(S) + span(Z_0 .. Z_{K-1}), and what
is left of the messages beside the Z_k spans what is left of range(S) as soon as K rank >= rows. In a basis of that
span, rows + K rank directions at most, nothing is lost: a client of 561 features is one of 23. That holds to round-off,
so messages with noise have no such basis; the first message shows whether they carry any.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from securefed.algorithms.pca.operators import off
from securefed.algorithms.pca.server import BASIS, PRODUCT
from securefed.attacks.base import Observation
from securefed.tensors import Array

_ROUND_OFF = 1e-12
"""Noise, and singular values relative to the largest, that are none."""
_GAP = 1e-3
"""The first singular value that is left out, relative to the last that is not, at most."""
_FAINT = 1e-8
"""Share of the largest direction below which one is not known well enough, and weighs no more."""


def noise_shown(first: Observation) -> float | None:
    """Noise of a client's first message, relative to its root mean square, as far as it shows: Z^T Y = beta I there.

    `None` at rank 1, where the one number left is beta. The rank^2 - 1 others leave the size uncertain by a factor of
    2 at rank 2 and less above.
    """
    Z, Y = first.broadcast[BASIS], np.asarray(first.message[PRODUCT], float)
    rank = Z.shape[1]
    if rank == 1:
        return None
    inner = Z.T @ Y
    away = float(np.linalg.norm(inner - np.trace(inner) / rank * np.eye(rank))) / math.sqrt(rank**2 - 1)
    return away / max(float(np.sqrt(np.mean(Y**2))), np.finfo(float).tiny)


def is_exact(first: Observation) -> bool:
    """Whether nothing but round-off shows."""
    noise = noise_shown(first)
    return noise is None or noise < _ROUND_OFF


def width(features: int, rank: int, rows: int, rounds: int) -> int:
    """Directions of the span of so many rounds; all features, where it has no fewer, or so few do not show it."""
    narrow = rows + rounds * rank
    return narrow if 0 < rows <= rounds * rank and narrow < features else features


def frame_of(rounds: Sequence[Observation], rows: int) -> Array:
    """An orthonormal basis of the span, Z_0 first, then by how much is seen of a direction; (features, directions).

    A complete one where the messages show no smaller span.
    """
    Z = rounds[0].broadcast[BASIS]
    features, rank = Z.shape
    seen = np.hstack([o.broadcast[BASIS] for o in rounds[1:]] + [_unit(o.message[PRODUCT]) for o in rounds])
    U, s, _ = np.linalg.svd(off(Z, off(Z, seen)), full_matrices=False)
    s = np.append(s, np.zeros(1))
    count = int(np.sum(s > _ROUND_OFF * s[0]))
    narrow = count + rank <= width(features, rank, rows, len(rounds)) < features
    if narrow and s[count - 1] > _FAINT * s[0] and s[count] < _GAP * s[count - 1]:
        return np.hstack([Z, U[:, :count]])
    return complete(np.hstack([Z, U[:, :count]])[:, :features], rank)


def complete(directions: Array, rank: int) -> Array:
    """An orthonormal basis of all features whose first `rank` columns are those of `directions`, as they stand."""
    whole = np.linalg.qr(directions, mode="complete")[0]
    whole[:, :rank] = directions[:, :rank]
    return np.asarray(whole)


def sizes(products: Sequence[Array]) -> list[Array]:
    """What the entries of exact messages count by, (features, 1) for each message.

    Entries of faint directions are as exact as others, and hold what small eigenvalues there are; by the message's norm
    alone nobody would look at them before the last digits, by their own size alone nobody would look at the rest. The
    root of their size is between. Weighed so, a message has about the norm 1.
    """
    norms = [float(np.linalg.norm(Y)) or 1.0 for Y in products]
    shares = np.sqrt(np.mean([np.sum((Y / norm) ** 2, axis=1) for Y, norm in zip(products, norms, strict=True)], 0))
    shares = np.maximum(shares, _FAINT * shares.max())
    weight = np.sqrt(shares * shares.sum())[:, None]
    return [norm * weight for norm in norms]


def _unit(Y: Array) -> Array:
    return np.asarray(Y, float) / (float(np.linalg.norm(Y)) or 1.0)
