"""Differentiate the cross entropy of several clients' logits."""

from __future__ import annotations

import numpy as np

from securefed._tensors import Array


def slope_of(z: Array, y: Array, weights: Array) -> Array:
    """Compute d loss / dz = weight (softmax(z) - [y]), written over z.

    Args:
        z: (clients, rows, classes) logits.
        y: (clients, rows) labels.
        weights: (clients, rows), of z's type.
    """
    z -= z.max(axis=-1, keepdims=True)
    np.exp(z, out=z)
    z /= z.sum(axis=-1, keepdims=True)
    z[at(y)] -= 1
    z *= weights[..., None]
    return z


def at(y: Array) -> tuple[Array, ...]:
    """Return the index of every row's own label in logits (..., rows, classes), for labels y (..., rows)."""
    return (*np.indices(y.shape, sparse=True), y)
