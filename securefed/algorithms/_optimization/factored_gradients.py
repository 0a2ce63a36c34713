"""Gradients of a weight over several local steps, stored as the two factors of each product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._optimization.array_pool import ArrayPool
from securefed.problems._weight_products import turned

Coefficient = Any
"""A number, or (clients, 1)."""
Coefficients = Mapping[int, Coefficient]


class FactoredGradients:
    """Gradients G_s = D_s^T A_s of one weight of several clients, s = 0, 1, ...

    A_s (clients, widest of the step, inputs) and D_s (clients, widest of the step, outputs) lie side by side, so that a
    product with any combination of the G_s is two products with all of them.
    """

    def __init__(self, pool: ArrayPool) -> None:
        self._pool = pool
        self._entered = self._slopes = np.empty((0, 0, 0))
        self._ends = [0]

    def take(self, slope: Array, entered: Array) -> None:
        """Keep one more gradient (copied)."""
        start, end = self._ends[-1], self._ends[-1] + entered.shape[1]
        if end > self._entered.shape[1]:
            self._entered, self._slopes = (
                self._grown(self._entered, entered, end),
                self._grown(self._slopes, slope, end),
            )
        self._entered[:, start:end], self._slopes[:, start:end] = entered, slope
        self._ends.append(end)

    def forward(self, entered: Array, steps: Coefficients) -> Array:
        """sum_s c_s (A A_s^T) D_s."""
        past, slopes, weights = self._used(steps)
        return ((entered @ turned(past)) * weights[:, None]) @ slopes

    def backward(self, slope: Array, steps: Coefficients) -> Array:
        """sum_s c_s (D D_s^T) A_s."""
        past, slopes, weights = self._used(steps)
        return ((slope @ turned(slopes)) * weights[:, None]) @ past

    def form(self, steps: Coefficients, out: Array) -> None:
        """Write sum_s c_s D_s^T A_s."""
        past, slopes, weights = self._used(steps)
        scaled = np.multiply(slopes, weights[:, :, None], out=self._pool.empty(slopes.shape, slopes.dtype))
        np.matmul(turned(scaled), past, out=out)

    def _used(self, steps: Coefficients) -> tuple[Array, Array, Array]:
        """A, D and the coefficients (clients or 1, rows) as far as the last step that counts."""
        end = self._ends[max(steps) + 1]
        clients = max(np.shape(value)[0] if np.ndim(value) else 1 for value in steps.values())
        weights = np.zeros((clients, end), self._entered.dtype)
        for step, value in steps.items():
            weights[:, self._ends[step] : self._ends[step + 1]] = value
        return self._entered[:, :end], self._slopes[:, :end], weights

    def _grown(self, kept: Array, like: Array, least: int) -> Array:
        """Room for `least` rows and as many again, with what was kept."""
        out = self._pool.empty((len(like), 2 * least, like.shape[2]), like.dtype)
        if kept.size:
            out[:, : kept.shape[1]] = kept
        return out
