"""Differentiate proximal operators, so that an attack can simulate clients whose local steps use them.

The proximal operator of a regulariser r with step s maps v to the minimiser u of s r(u) + ||u - v||^2 / 2. The
operators here take dual numbers (vectors with their derivatives along several directions, called slopes). The values
are computed as the clients compute them, the slopes by the derivative of the operator. Other operators than those of
the L1 and the nuclear norm have no derivative here, and methods that use them are refused. `gradient_rounds` calls
`differentiable` for the method that `round_simulation` then runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from securefed._tensors import Array, Layout
from securefed.algorithms._optimization.losac_prox import LoSACProx
from securefed.algorithms._optimization.method import GradientMethod
from securefed.algorithms._optimization.proximal import L1, NoRegulariser, Nuclear, Regulariser, matrices
from securefed.algorithms._optimization.scaffold_prox import ScaffoldProx
from securefed.attacks._gradient_inversion.dual_numbers import DualNumber

_ProximalMethod = LoSACProx | ScaffoldProx


@dataclass(frozen=True)
class DifferentiableL1(L1):
    """Soft thresholding of entries: those above the threshold keep their derivative, for the others it is 0."""

    def prox(self, vector: Any, step: float, layout: Layout) -> Any:
        """Apply the operator to an array or to dual numbers."""
        if not isinstance(vector, DualNumber):
            return super().prox(vector, step, layout)
        kept = np.abs(vector.value) > step * self.weight
        return DualNumber(super().prox(vector.value, step, layout), np.where(kept, vector.slopes, 0.0))


@dataclass(frozen=True)
class DifferentiableNuclear(Nuclear):
    """Soft thresholding of singular values, f(s) = max(s - t, 0), of each matrix of the layout.

    With A = U S V^T, B' = U^T B V and P = (B' + B'^T) / 2, the derivative at A along B has, in the bases U and V, the
    entries (Daleckii and Krein; Edelman 2005)

        (f_i - f_j) / (s_i - s_j) P_ij  +  (f_i + f_j) / (s_i + s_j) (B'_ij - P_ij),

    and f_i / s_i B'_ij in the columns of B' beyond the first m, for an m x n matrix A with m < n.
    """

    def prox(self, vector: Any, step: float, layout: Layout) -> Any:
        """Apply the operator to an array or to dual numbers."""
        if not isinstance(vector, DualNumber):
            return super().prox(vector, step, layout)
        slopes = vector.slopes.copy()
        for matrix, along in zip(matrices(vector.value, layout), matrices(slopes, layout), strict=True):
            along[...] = _derivative(matrix, along, step * self.weight)
        return DualNumber(super().prox(vector.value, step, layout), slopes)


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
    """Return the method for dual numbers, or `None` if its proximal operator has no known derivative.

    A `replayable` method uses `+ - *` only, which dual numbers have.
    """
    if method.replayable or (isinstance(method, _ProximalMethod) and type(method.regulariser) is NoRegulariser):
        return method
    if not isinstance(method, _ProximalMethod):
        return None
    known: Regulariser
    match method.regulariser:
        case L1(weight):
            known = DifferentiableL1(weight)
        case Nuclear(weight):
            known = DifferentiableNuclear(weight)
        case _:
            return None
    return replace(method, regulariser=known)
