"""The slope of the cross entropy of several clients' logits."""

from __future__ import annotations

import numpy as np

from securefed.tensors import Array


def slope_of(z: Array, y: Array, weights: Array) -> Array:
    """d loss / dz = weight (softmax(z) - [y]), written over z.

    Args:
        z: (clients, rows, classes) logits.      y: (clients, rows) labels.      weights: (clients, rows), of z's type.
    """
    z -= z.max(axis=-1, keepdims=True)
    np.exp(z, out=z)
    z /= z.sum(axis=-1, keepdims=True)
    clients, rows = y.shape
    z[np.arange(clients)[:, None], np.arange(rows), y] -= 1
    z *= weights[..., None]
    return z
