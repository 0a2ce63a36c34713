"""Multiply with the weights of a network's layers in back-propagation, for several clients at once.

A network's back-propagation (`DenseNetwork.after_input`) asks for the products by the weights' names. So the same code
runs on full matrices (here), and on weights that a batched simulation keeps as sums of factors
(algorithms/_optimization/factored_cohort.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from securefed._tensors import Array, Tensors


class WeightProducts(Protocol):
    """Multiply with a weight W (outputs, inputs) given by its name; each client has its own.

    A layer is z = A W^T + b, with A (clients, widest, inputs) called `entered` and `widest` the largest number of rows
    of a client. D = d loss / dz (clients, widest, outputs) is called `slope`.
    """

    def forward(self, name: str, entered: Array) -> Array:
        """Compute A W^T."""
        ...

    def backward(self, name: str, slope: Array) -> Array:
        """Compute D W."""
        ...

    def gradient(self, name: str, slope: Array, entered: Array) -> Array | None:
        """Compute D^T A + l2 W; `None` where D and A are kept instead, and must not be changed any more."""
        ...


@dataclass(frozen=True)
class DenseWeightProducts:
    """Multiply with weights that are stored as full matrices.

    Attributes:
        weights: (clients, outputs, inputs) by name.
        l2: weight of l2/2 ||W||^2 in the loss.
        room: arrays that gradients are written into, by name; new ones where there are none.
    """

    weights: Tensors
    l2: float = 0.0
    room: Tensors = field(default_factory=dict)

    def forward(self, name: str, entered: Array) -> Array:
        """Compute A W^T."""
        return entered @ turned(self.weights[name])

    def backward(self, name: str, slope: Array) -> Array:
        """Compute D W."""
        return slope @ self.weights[name]

    def gradient(self, name: str, slope: Array, entered: Array) -> Array:
        """Compute D^T A + l2 W, the gradient of the loss in W, (clients, outputs, inputs)."""
        found: Array = np.matmul(turned(slope), entered, out=self.room.get(name))
        if self.l2:
            found += found.dtype.type(self.l2) * self.weights[name]
        return found


def turned(stack: Array) -> Array:
    """Transpose every matrix of the stack."""
    return stack.swapaxes(-1, -2)


def times(stack: Array, matrix: Array) -> Array:
    """Compute stack @ matrix, (clients, rows, columns), for a stack (clients, rows, inner).

    The matrix is (clients, inner, columns), or (inner, columns) where all clients share it: then one product suffices.
    """
    if matrix.ndim == 2:
        return (stack.reshape(-1, stack.shape[-1]) @ matrix).reshape(*stack.shape[:-1], matrix.shape[-1])
    return stack @ matrix
