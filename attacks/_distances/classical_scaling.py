"""Compute signals from squared distances by classical scaling, up to a rotation and a common shift.

D, (vertices, vertices), holds the squared distances between the signals of any two vertices. With J = I - 1 1^T /
vertices, -1/2 J D J is the Gram matrix of the signals centred over the vertices; its eigenvectors times the roots of
its eigenvalues are such signals. The attack `distances/fit` recovers D; users call `embedding` to see which signals it
determines, and `distance_completion` uses the Gram matrix. Source: Torgerson 1952, Multidimensional Scaling I.
"""

from __future__ import annotations

import numpy as np

from securefed._tensors import Array


def centred_gram(distances: Array) -> Array:
    """Return the Gram matrix -1/2 J D J of the centred signals, (vertices, vertices), with J = I - 1 1^T / vertices.

    Args:
        distances: D, squared distances between the vertices' signals, (vertices, vertices).
    """
    half = -0.5 * np.asarray(distances)
    out: Array = half - half.mean(axis=0) - half.mean(axis=1, keepdims=True) + half.mean()
    return out


def embedding(distances: Array, rows: int) -> Array:
    """Return signals (rows, vertices) with these distances and mean 0 over the vertices.

    Args:
        distances: squared distances between the vertices' signals, (vertices, vertices).
        rows: number of signals; those beyond the rank of the Gram matrix are 0.
    """
    values, vectors = np.linalg.eigh(centred_gram(distances))
    order = np.argsort(values)[::-1][:rows]
    out = np.zeros((rows, len(values)))
    out[: len(order)] = np.sqrt(np.maximum(values[order], 0.0))[:, None] * vectors[:, order].T
    return out
