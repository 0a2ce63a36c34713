"""Estimate a matrix from noisy linear observations, float64, NumPy only.

    loss(X) = mean_k (<X, D_k> - y_k)^2,   gradient = 2 mean_k (<X, D_k> - y_k) D_k

X (side, side) is the matrix, D_k the k-th row's known matrix and y_k its observation; <X, D> is the sum of the entries'
products. Proximal methods make X of low rank.

Source: LoSAC (Liu et al.), (20), without its nuclear norm, which is the proximal methods' part. The paper's f_i is the
SUM over a client's rows; methods that want it multiply by the number of rows.

Gradient methods (securefed.algorithms) train it: a client calls `gradient` in its local steps, with parameters and
gradients as arrays by name. Simulations call `gradients` for several clients at once: rows x are then (clients, widest,
features), `widest` the largest number of rows of a client, and `weights` (clients, widest) holds 1 / rows of the
client, 0 on padding. The declared bounds of a gradient (`gradient_bounds`) scale fixed-point sums: a client whose
message is beyond them refuses, and the run repeats the round with twice the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._public import Public, require
from securefed._tensors import Array, Tensors
from securefed.datasets._base import Dataset
from securefed.errors import DataError
from securefed.problems._base import BaseProblem, largest_eigenvalue

PRACTICAL_RESIDUAL = 10.0
"""Up to this size of <X, D> - y the declared gradient bound holds."""


@dataclass(frozen=True)
class LowRankMatrix(BaseProblem):
    """Least squares for a matrix: parameter `matrix` (side, side), which starts at zero.

    A row of the data holds D, row by row; the responses are real numbers y.

    The loss is quadratic, so its smoothness holds everywhere.
    """

    name: ClassVar[str] = "low_rank"

    def shapes(self, public: Public) -> dict[str, tuple[int, ...]]:
        """Return the parameters' names and shapes; raise `ConfigError` where the data does not fit."""
        side = math.isqrt(public.features)
        require(
            side * side == public.features,
            f"a row must hold a square matrix of side d in d^2 features; got {public.features} features",
        )
        return {"matrix": (side, side)}

    def gradient_bounds(self, public: Public) -> dict[str, float]:
        """Bound the gradient by 2 |residual| |D| with |residual| <= `PRACTICAL_RESIDUAL`: nothing bounds X itself."""
        return {"matrix": 2.0 * PRACTICAL_RESIDUAL * public.feature_bound}

    def initial(self, public: Public, rng: np.random.Generator) -> dict[str, Array]:
        """Return the parameters before the first round."""
        return {"matrix": np.zeros(self.shapes(public)["matrix"])}

    def targets(self, data: Dataset) -> Array:
        """Return the targets of the rows; raise `DataError` where there are none."""
        y = data.responses()
        if y.ndim != 1:
            raise DataError(f"every response must be one number; got responses of shape {y.shape}. Flatten them.")
        return y

    def loss(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Compute the mean loss of the rows `x`; there is no regulariser."""
        return float(np.mean((x @ parameters["matrix"].ravel() - y) ** 2))

    def gradient(self, parameters: Tensors, x: Array, y: Array) -> dict[str, Array]:
        """Compute the gradient of `loss`."""
        matrix = parameters["matrix"]
        return {"matrix": (2.0 / len(x) * (x @ matrix.ravel() - y) @ x).reshape(matrix.shape)}

    def gradients(self, parameters: Tensors, x: Array, y: Array, weights: Array) -> dict[str, Array]:
        """Compute the mean gradients of several clients at once.

        Args:
            parameters: `matrix` (clients, side, side), each client's own.
            x: rows, (clients, widest, features).
            y: observations, (clients, widest).
            weights: (clients, widest), 1 / rows of the client, 0 on padding.

        Returns:
            The gradients of `matrix`, (clients, side, side).
        """
        matrix = parameters["matrix"]
        residual = (x @ matrix.reshape(len(x), -1, 1))[:, :, 0] - y
        return {"matrix": ((2.0 * weights * residual)[:, None, :] @ x).reshape(matrix.shape)}

    def smoothness(self, x: Array, classes: int) -> float:
        """Return the largest eigenvalue of the Hessian, 2 / rows X^T X, the same everywhere."""
        return largest_eigenvalue(x, scale=2.0)
