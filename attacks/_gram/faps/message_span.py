"""Find the few directions in which FAPS' first messages of a client of few rows move, whatever the number of features.

With X_0 = Z_0 every subspace, mask and message of rounds 0 .. K - 1 lies in range(S) + span(Z_0 .. Z_{K-1}), and what
is left of the messages beside the Z_k spans what is left of range(S) as soon as K rank >= rows. In a basis of that
span, rows + K rank directions at most, nothing is lost: a client of 561 features becomes one of 23. Rounding errors or
noise hide directions that the messages hardly show; how large they are is read from the first message.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.server import BASIS, PRODUCT
from securefed.attacks._base import RoundView

_ROUND_OFF = 1e-12
"""Relative noise of a first message, and relative singular values, that count as round-off of double precision."""
_HIDDEN = 30.0
"""Directions below so many times the relative noise are taken for noise. Noise itself reaches about one time, so this
leaves a margin; larger values give up the span of messages with faint directions.
"""


def first_message_noise(first: RoundView) -> float | None:
    """Estimate the noise of a client's first message, relative to its root mean square.

    Without noise Z^T Y = beta I there. The rank^2 - 1 numbers that should vanish leave the size of the noise uncertain
    by a factor of 2 at rank 2, and by less above.

    Returns:
        The estimate; `None` at rank 1, where the one number of Z^T Y is beta itself.
    """
    Z, Y = first.broadcast[BASIS], np.asarray(first.message[PRODUCT], float)
    rank = Z.shape[1]
    if rank == 1:
        return None
    inner = Z.T @ Y
    away = float(np.linalg.norm(inner - np.trace(inner) / rank * np.eye(rank))) / math.sqrt(rank**2 - 1)
    return away / max(float(np.sqrt(np.mean(Y**2))), np.finfo(float).tiny)


def is_exact(first: RoundView) -> bool:
    """Return whether a first message shows no more noise than round-off."""
    noise = first_message_noise(first)
    return noise is None or noise < _ROUND_OFF


def span_width(features: int, rank: int, rows: int, rounds: int) -> int:
    """Return the dimension of the span of so many rounds; all features where the rounds do not show a smaller one."""
    narrow = rows + rounds * rank
    return narrow if 0 < rows <= rounds * rank and narrow < features else features


def span_basis(rounds: Sequence[RoundView], rows: int) -> Array:
    """Return an orthonormal basis of the span, (features, directions); the identity where there is no smaller one.

    There is none either where noise hides a part of the span.

    Args:
        rounds: one client's messages from its first on.
        rows: public bound on the rank of S; 0 for none.
    """
    features, rank = rounds[0].broadcast[BASIS].shape
    width = span_width(features, rank, rows, len(rounds))
    if width < features:
        parts = [o.broadcast[BASIS] for o in rounds] + [_unit(o.message[PRODUCT]) for o in rounds]
        U, s, _ = np.linalg.svd(np.hstack(parts), full_matrices=False)
        exact = is_exact(rounds[0])
        hidden = _ROUND_OFF if exact else _HIDDEN * (first_message_noise(rounds[0]) or 0.0)
        count = int(np.sum(s > hidden * s[0]))
        if count == width or (exact and count < width):
            return np.asarray(U[:, :count])
    return np.eye(features)


def _unit(Y: Array) -> Array:
    return np.asarray(Y, float) / (float(np.linalg.norm(Y)) or 1.0)
