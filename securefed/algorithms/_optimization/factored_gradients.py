"""Store the gradients of a weight over several local steps as pairs of factors.

A layer computes Z = A W^T from its inputs A (rows, inputs). By the chain rule the gradient of the loss in W is
G = D^T A, with D = d loss / dZ (rows, outputs) the slopes. Its rank is at most the number of rows. Where rows are few,
to multiply by D and A is cheaper than to form G. `factored_cohort.py` uses this for the inner weights of networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._optimization.array_pool import ArrayPool
from securefed.problems._weight_products import turned

Coefficient = Any
"""A number for all clients, or one for each, (clients, 1)."""
Coefficients = Mapping[int, Coefficient]
"""A coefficient c_s for each step s. `factored_cohort` uses the type also for coefficients of its stored vectors."""


class FactoredGradients:
    """Gradients G_s = D_s^T A_s of one weight matrix in local steps s = 0, 1, ..., for several clients at once.

    A_s (clients, rows, inputs) holds the inputs of the weight's layer for the rows of step s, and D_s (clients, rows,
    outputs) the derivatives of the loss by the layer's outputs; `rows` is the largest number of rows of a client in the
    step. All A_s lie in one array, and all D_s in another, so that a product with any linear combination
    sum_s c_s G_s takes two matrix products (`turned` transposes each client's matrix).
    """

    def __init__(self, pool: ArrayPool) -> None:
        self._pool = pool
        self._entered = self._slopes = np.empty((0, 0, 0))
        self._ends = [0]

    def take(self, slope: Array, entered: Array) -> None:
        """Copy the two factors of the next step's gradient.

        Args:
            slope: D_s, (clients, rows, outputs).
            entered: A_s, (clients, rows, inputs).
        """
        start, end = self._ends[-1], self._ends[-1] + entered.shape[1]
        if end > self._entered.shape[1]:
            self._entered, self._slopes = (
                self._grown(self._entered, entered, end),
                self._grown(self._slopes, slope, end),
            )
        self._entered[:, start:end], self._slopes[:, start:end] = entered, slope
        self._ends.append(end)

    def forward(self, entered: Array, steps: Coefficients) -> Array:
        """Return A (sum_s c_s G_s)^T = sum_s c_s (A A_s^T) D_s, (clients, rows, outputs).

        Args:
            entered: A, (clients, rows, inputs).
            steps: the c_s.
        """
        past, slopes, weights = self._used(steps)
        return ((entered @ turned(past)) * weights[:, None]) @ slopes

    def backward(self, slope: Array, steps: Coefficients) -> Array:
        """Return D (sum_s c_s G_s) = sum_s c_s (D D_s^T) A_s, (clients, rows, inputs).

        Args:
            slope: D, (clients, rows, outputs).
            steps: the c_s.
        """
        past, slopes, weights = self._used(steps)
        return ((slope @ turned(slopes)) * weights[:, None]) @ past

    def form(self, steps: Coefficients, out: Array) -> None:
        """Write the combination sum_s c_s G_s into `out`, (clients, outputs, inputs)."""
        past, slopes, weights = self._used(steps)
        scaled = np.multiply(slopes, weights[:, :, None], out=self._pool.empty(slopes.shape, slopes.dtype))
        np.matmul(turned(scaled), past, out=out)

    def _used(self, steps: Coefficients) -> tuple[Array, Array, Array]:
        """Return the A_s and the D_s side by side, up to the last step in `steps`, and the coefficient of each row.

        The coefficients are (clients or 1, rows): c_s for the rows of step s, 0 for those of steps not in `steps`.
        """
        end = self._ends[max(steps) + 1]
        clients = max(np.shape(value)[0] if np.ndim(value) else 1 for value in steps.values())
        weights = np.zeros((clients, end), self._entered.dtype)
        for step, value in steps.items():
            weights[:, self._ends[step] : self._ends[step + 1]] = value
        return self._entered[:, :end], self._slopes[:, :end], weights

    def _grown(self, kept: Array, like: Array, least: int) -> Array:
        """Return an array with room for 2 * `least` rows that begins with the rows of `kept`."""
        out = self._pool.empty((len(like), 2 * least, like.shape[2]), like.dtype)
        if kept.size:
            out[:, : kept.shape[1]] = kept
        return out
