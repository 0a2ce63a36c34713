"""Differentiate products and orthonormalisations of (n, p) matrices in many directions at once (forward mode).

Attacks use it to differentiate a simulated client's messages by the parameters of its Gram matrix. The tangents dV of a
matrix V, (n, p), are stored as one array (n, directions, p), so that multiplying all of them by a matrix is one matrix
product. V = orth(N) is the Q of the QR factorisation N = V R with positive diagonal of R.

Differentiating N = V R and V^T V = I gives dV = (I - V V^T) dN R^-1 + V Omega with Omega skew-symmetric. The first part
moves the span of V; the second turns V within its span, and makes dR upper triangular.
"""

from __future__ import annotations

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.operators import orth


def left(M: Array, d: Array) -> Array:
    """Return M d for every direction, (m, directions, p).

    Args:
        M: matrix, (m, n).
        d: tangents, (n, directions, p).
    """
    return np.asarray((M @ d.reshape(len(d), -1)).reshape(len(M), *d.shape[1:]))


def right(d: Array, R: Array) -> Array:
    """Return d R for every direction, (n, directions, q).

    Args:
        d: tangents, (n, directions, p).
        R: matrix, (p, q).
    """
    return np.asarray((d.reshape(-1, d.shape[2]) @ R).reshape(*d.shape[:2], -1))


def crossed(d: Array, V: Array) -> Array:
    """Return d^T V for every direction, (p, directions, q).

    Args:
        d: tangents, (n, directions, p).
        V: matrix, (n, q).
    """
    flat = d.reshape(len(d), -1).T @ V
    return np.asarray(flat.reshape(*d.shape[1:], -1).transpose(1, 0, 2))


def horizontal(N: Array, dN: Array) -> tuple[Array, Array]:
    """Return V = orth(N), and the part of dV that moves its span, (I - V V^T) dN R^-1, (n, directions, p)."""
    V = orth(N)
    d = right(dN, np.linalg.inv(V.T @ N))  # R = V^T N
    return V, d - left(V, left(V.T, d))
