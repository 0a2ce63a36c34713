"""Reduce a FAPS client of few rows to the span of its first messages, whatever the number of features.

H V, W and Y_k are combinations of the columns of S, X and Z_k, so that all X_k and Y_k of K rounds lie in range(S) +
span(Z_0 .. Z_{K-1}), of at most rows + K rank dimensions. The columns of the Z_k and the Y_k span it as soon as K rank
>= rows, unless S and the Z_k are in a special position to each other, such as a Z_k orthogonal to a row. In a basis of
this space the client is simulated without loss (`client_fit`): with 561 features, 11 rows, rank 4 and K = 3 it becomes
a client of 23 features. Rounding errors or noise hide directions that the messages hardly show; the size of the noise
is read from the first message. The package's head has the symbols.
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
"""Singular values of the stacked Z_k and Y_k, relative to the largest, count as noise below this multiple of the first
message's relative noise. Noise alone gives singular values of up to about 1 times the relative noise, so there is a
margin; a larger value gives up the reduction for messages with faint directions.
"""


def first_message_noise(first: RoundView) -> float:
    """Estimate the noise of a client's first message, relative to its root mean square.

    In round 0 X_0 = Z_0, so that Y_0 = beta Z_0 - W_0 with W_0 orthogonal to Z_0. Without noise Z_0^T Y_0 is therefore
    beta I, with beta the client's penalty parameter, a number that the attacker need not know. The estimate comes from
    the rank^2 - 1 numbers by which Z_0^T Y_0 deviates from a multiple of I. At rank 2 it is uncertain by a factor of 2,
    at higher ranks by less.

    Args:
        first: the client's round 0.

    Returns:
        The estimate. It is 0 where the message shows no more than round-off, and always at rank 1, where the one number
        of Z_0^T Y_0 is beta itself.
    """
    Z, Y = first.broadcast[BASIS], np.asarray(first.message[PRODUCT], float)
    rank = Z.shape[1]
    if rank == 1:
        return 0.0
    inner = Z.T @ Y
    deviation = float(np.linalg.norm(inner - np.trace(inner) / rank * np.eye(rank))) / math.sqrt(rank**2 - 1)
    noise = deviation / max(float(np.sqrt(np.mean(Y**2))), np.finfo(float).tiny)
    return 0.0 if noise < _ROUND_OFF else noise


def span_width(features: int, rank: int, rows: int, rounds: int) -> int:
    """Return the dimension rows + K rank of the span of K rounds' messages; all features where no smaller one is known.

    Args:
        features: number of features.
        rank: number of columns of the Z_k.
        rows: public bound on the rank of S; 0 for none.
        rounds: K. With K rank < rows the messages do not span the space, so that all features are returned.
    """
    width = rows + rounds * rank
    return width if 0 < rows <= rounds * rank and width < features else features


def span_basis(rounds: Sequence[RoundView], rows: int) -> Array:
    """Return an orthonormal basis of the messages' span, (features, directions).

    The basis is the left singular vectors of [Z_0 .. Z_{K-1}, Y_0 .. Y_{K-1}] whose singular values exceed the noise.
    Their expected number is rows + K rank. Without noise there may be fewer, which means that the rank of S is below
    `rows`. With noise any other number means that noise hides directions or adds some; then nothing is reduced, and the
    identity is returned. The identity is also returned where no smaller span is known.

    Args:
        rounds: one client's messages from its first on.
        rows: public bound on the rank of S; 0 for none.
    """
    features, rank = rounds[0].broadcast[BASIS].shape
    width = span_width(features, rank, rows, len(rounds))
    if width < features:
        parts = [o.broadcast[BASIS] for o in rounds] + [_unit(o.message[PRODUCT]) for o in rounds]
        U, s, _ = np.linalg.svd(np.hstack(parts), full_matrices=False)
        noise = first_message_noise(rounds[0])
        count = int(np.sum(s > (_HIDDEN * noise or _ROUND_OFF) * s[0]))
        if count == width or (not noise and count < width):
            return np.asarray(U[:, :count])
    return np.eye(features)


def _unit(Y: Array) -> Array:
    """Return a message divided by its norm; zero stays zero."""
    return np.asarray(Y, float) / (float(np.linalg.norm(Y)) or 1.0)
