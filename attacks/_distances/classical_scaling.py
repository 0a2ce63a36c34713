"""Compute signals from squared distances by classical scaling: all but a rotation and a common shift follows.

Source: Torgerson 1952, Multidimensional Scaling I.
"""

from __future__ import annotations

import numpy as np

from securefed._tensors import Array


def centred_gram(distances: Array) -> Array:
    """Return -1/2 J D J, (vertices, vertices): inner products of the vertices' signals without their common mean.

    Args:
        distances: D, (vertices, vertices), squared.
    """
    half = -0.5 * np.asarray(distances)
    out: Array = half - half.mean(axis=0) - half.mean(axis=1, keepdims=True) + half.mean()
    return out


def embedding(distances: Array, rows: int) -> Array:
    """Return signals (rows, vertices) with these distances and mean 0 over the vertices: the data up to a rotation.

    Args:
        distances: (vertices, vertices), squared.
        rows: number of signals; directions beyond the rank are 0.
    """
    values, vectors = np.linalg.eigh(centred_gram(distances))
    order = np.argsort(values)[::-1][:rows]
    out = np.zeros((rows, len(values)))
    out[: len(order)] = np.sqrt(np.maximum(values[order], 0.0))[:, None] * vectors[:, order].T
    return out
