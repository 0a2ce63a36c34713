"""Differentiate proximal operators, so that an attack can simulate clients whose local steps use them.

The proximal operator of a regulariser r with step s maps v to the minimiser u of s r(u) + ||u - v||^2 / 2. That of
the L1 norm runs on a `DualArray` as it is. That of the nuclear norm has a derivative where singular values are equal,
too, although their vectors have none, so that it is differentiated here. Methods that use other operators are refused.
`gradient_rounds` calls `differentiable` for the method that `round_simulation` then runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from securefed._tensors import Array, Layout
from securefed.algorithms._optimization.losac_prox import LoSACProx
from securefed.algorithms._optimization.method import GradientMethod
from securefed.algorithms._optimization.proximal import L1, NoRegulariser, Nuclear, matrices
from securefed.algorithms._optimization.scaffold_prox import ScaffoldProx
from securefed.attacks._engine import DualArray

_ProximalMethod = LoSACProx | ScaffoldProx


@dataclass(frozen=True)
class DifferentiableNuclear(Nuclear):
    """Soft thresholding of singular values, f(s) = max(s - t, 0), of each matrix of the layout.

    With A = U S V^T, B' = U^T B V and P = (B' + B'^T) / 2, the derivative at A along B has, in the bases U and V, the
    entries (Daleckii and Krein; Edelman 2005)

        (f_i - f_j) / (s_i - s_j) P_ij  +  (f_i + f_j) / (s_i + s_j) (B'_ij - P_ij),

    and f_i / s_i B'_ij in the columns of B' beyond the first m, for an m x n matrix A with m < n.
    """

    def prox(self, vector: Any, step: float, layout: Layout) -> Any:
        """Apply the operator to an array or a `DualArray`."""
        if not isinstance(vector, DualArray):
            return super().prox(vector, step, layout)
        slopes = np.moveaxis(vector.slopes, -1, 0).copy()  # (directions, ..., parameters)
        for matrix, along in zip(matrices(vector.value, layout), matrices(slopes, layout), strict=True):
            along[...] = _derivative(matrix, along, step * self.weight)
        return DualArray(super().prox(vector.value, step, layout), np.moveaxis(slopes, 0, -1))


def _derivative(matrix: Array, along: Array, cut: float) -> Array:
    """Return the derivative at `matrix` (..., m, n) along `along` (directions, ..., m, n), with threshold `cut`."""
    if matrix.shape[-2] > matrix.shape[-1]:
        return np.swapaxes(_derivative(np.swapaxes(matrix, -1, -2), np.swapaxes(along, -1, -2), cut), -1, -2)
    m = matrix.shape[-2]
    left, s, right = np.linalg.svd(matrix, full_matrices=True)
    along = np.swapaxes(left, -1, -2) @ along @ np.swapaxes(right, -1, -2)
    f, slope = np.maximum(s - cut, 0.0), (s > cut).astype(float)
    ds, df = s[..., :, None] - s[..., None, :], f[..., :, None] - f[..., None, :]
    near = np.abs(ds) <= 1e-12 * s[..., :1, None]  # equal singular values: the quotient is the derivative f'(s)
    even = np.where(near, 0.5 * (slope[..., :, None] + slope[..., None, :]), df / np.where(near, 1.0, ds))
    total = s[..., :, None] + s[..., None, :]
    odd = (f[..., :, None] + f[..., None, :]) / np.where(total > 0, total, 1.0)
    square = along[..., :m]
    mean = 0.5 * (square + np.swapaxes(square, -1, -2))
    beyond = np.where(s > 0, f / np.where(s > 0, s, 1.0), 0.0)[..., None] * along[..., m:]
    inner = np.concatenate([even * mean + odd * (square - mean), beyond], axis=-1)
    return np.asarray(left @ inner @ right)


def is_proximal(method: object) -> bool:
    """Return whether local steps apply a proximal operator.

    Gradient steps alone move the model within the span of the rows, so that they can be simulated in few coordinates;
    a proximal operator leaves that span.
    """
    return isinstance(method, _ProximalMethod) and type(method.regulariser) is not NoRegulariser


def differentiable(method: GradientMethod) -> GradientMethod | None:
    """Return the method for dual arrays, or `None` if its proximal operator has no known derivative.

    A `replayable` method, and soft thresholding, use operations that dual arrays have.
    """
    if method.replayable:
        return method
    if not isinstance(method, _ProximalMethod):
        return None
    regulariser = method.regulariser
    if type(regulariser) in (NoRegulariser, L1):  # a subclass may have another operator
        return method
    if isinstance(regulariser, Nuclear):
        return replace(method, regulariser=DifferentiableNuclear(regulariser.weight))
    return None
