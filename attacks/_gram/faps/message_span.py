"""Reduce a FAPS client of few rows to the span of its first messages, whatever the number of features.

The client has a Gram matrix S of rank at most `rows` and starts from the subspace X_0 = Z_0, with Z_k the broadcast
bases of `rank` columns. So every subspace and message Y_k of rounds 0 .. K - 1 lies in range(S) + span(Z_0 .. Z_{K-1}),
and as soon as K rank >= rows, the Z_k and Y_k together span this space. In a basis of it, of at most rows + K rank
directions, the client can be simulated without loss: a client of 561 features becomes one of 23. Rounding errors or
noise hide directions that the messages hardly show; the size of the noise is read from the first message.
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
"""Singular values below this multiple of the relative noise are taken for noise. Noise itself reaches about 1, so there
is a margin; a larger value gives up the reduction for messages with faint directions.
"""


def first_message_noise(first: RoundView) -> float | None:
    """Estimate the noise of a client's first message, relative to its root mean square.

    Without noise Z^T Y = beta I in the first message. The estimate comes from the rank^2 - 1 numbers by which Z^T Y
    deviates from a multiple of I; at rank 2 it is uncertain by a factor of 2, and by less above.

    Returns:
        The estimate; `None` at rank 1, where the one number of Z^T Y is beta itself.
    """
    Z, Y = first.broadcast[BASIS], np.asarray(first.message[PRODUCT], float)
    rank = Z.shape[1]
    if rank == 1:
        return None
    inner = Z.T @ Y
    deviation = float(np.linalg.norm(inner - np.trace(inner) / rank * np.eye(rank))) / math.sqrt(rank**2 - 1)
    return deviation / max(float(np.sqrt(np.mean(Y**2))), np.finfo(float).tiny)


def is_exact(first: RoundView) -> bool:
    """Return whether a first message shows no more noise than round-off."""
    noise = first_message_noise(first)
    return noise is None or noise < _ROUND_OFF


def span_width(features: int, rank: int, rows: int, rounds: int) -> int:
    """Return the dimension of the span of so many rounds' messages; all features where no smaller one is known."""
    width = rows + rounds * rank
    return width if 0 < rows <= rounds * rank and width < features else features


def span_basis(rounds: Sequence[RoundView], rows: int) -> Array:
    """Return an orthonormal basis of the messages' span, (features, directions).

    It is the identity where no smaller span is known, and where noise hides a part of the span.

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
    """Return a message divided by its norm."""
    return np.asarray(Y, float) / (float(np.linalg.norm(Y)) or 1.0)
