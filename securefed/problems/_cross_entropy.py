"""Differentiate the cross entropy of several clients' logits.

Softmax regression and dense networks call `slope_of` in batched gradients. [y] is the one-hot vector of a label y.
"""

from __future__ import annotations

import numpy as np

from securefed._tensors import Array


def slope_of(z: Array, y: Array, weights: Array) -> Array:
    """Compute d loss / dz = weight (softmax(z) - [y]), written over z.

    Args:
        z: (clients, rows, classes) logits.
        y: (clients, rows) labels.
        weights: (clients, rows), of z's type: each row's weight in its client's mean loss.

    Returns:
        z itself, with the derivatives in it.
    """
    z -= z.max(axis=-1, keepdims=True)
    np.exp(z, out=z)
    z /= z.sum(axis=-1, keepdims=True)
    z[at(y)] -= 1
    z *= weights[..., None]
    return z


def at(y: Array) -> tuple[Array, ...]:
    """Return the index of every row's own label: logits[at(y)] is (..., rows), for logits (..., rows, classes).

    Args:
        y: (..., rows) labels.
    """
    return (*np.indices(y.shape, sparse=True), y)
