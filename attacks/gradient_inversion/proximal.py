"""Proximal operators on complex numbers, so that derivatives pass through them by a complex step.

The real part is what the clients compute; the imaginary part is carried through the operator's derivative there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from securefed.algorithms.optimization.losac_prox import LoSACProx
from securefed.algorithms.optimization.method import GradientMethod
from securefed.algorithms.optimization.proximal import L1, NoRegulariser, Nuclear, Regulariser
from securefed.algorithms.optimization.scaffold_prox import ScaffoldProx
from securefed.tensors import Array, Layout

Proximal = LoSACProx | ScaffoldProx


@dataclass(frozen=True)
class ThresholdedL1(L1):
    """Soft thresholding: entries beyond the threshold keep their derivative, the others lose it."""

    def prox(self, vector: Array, step: float, layout: Layout) -> Array:
        real, cut = vector.real, step * self.weight
        return np.where(np.abs(real) > cut, vector - cut * np.sign(real), 0.0)


@dataclass(frozen=True)
class ThresholdedNuclear(Nuclear):
    """Singular values thresholded, f(s) = max(s - t, 0). With A = U S V^T, B' = U^T B V and P = (B' + B'^T) / 2, the
    derivative along B has, in the bases U and V, the entries (Daleckii and Krein; Edelman 2005)

        (f_i - f_j) / (s_i - s_j) P_ij  +  (f_i + f_j) / (s_i + s_j) (B'_ij - P_ij),

    and f_i / s_i B'_ij beyond the square.
    """

    def prox(self, vector: Array, step: float, layout: Layout) -> Array:
        real = super().prox(vector.real, step, layout)
        if not np.iscomplexobj(vector):
            return real
        out, start = real + 1j * vector.imag, 0
        for spec in layout:
            part, start = slice(start, start + spec.size), start + spec.size
            if len(spec.shape) == 2:
                slope = _slope(vector[..., part].reshape(*vector.shape[:-1], *spec.shape), step * self.weight)
                out[..., part].imag = slope.reshape(*vector.shape[:-1], -1)
        return np.asarray(out)


def _slope(matrix: Array, cut: float) -> Array:
    """The derivative at the real part of (..., m, n) along its imaginary part."""
    if matrix.shape[-2] > matrix.shape[-1]:
        return np.swapaxes(_slope(np.swapaxes(matrix, -1, -2), cut), -1, -2)
    m = matrix.shape[-2]
    left, s, right = np.linalg.svd(matrix.real, full_matrices=True)
    along = np.swapaxes(left, -1, -2) @ matrix.imag @ np.swapaxes(right, -1, -2)
    f, slope = np.maximum(s - cut, 0.0), (s > cut).astype(float)
    ds, df = s[..., :, None] - s[..., None, :], f[..., :, None] - f[..., None, :]
    near = np.abs(ds) <= 1e-12 * s[..., :1, None]
    even = np.where(near, 0.5 * (slope[..., :, None] + slope[..., None, :]), df / np.where(near, 1.0, ds))
    total = s[..., :, None] + s[..., None, :]
    odd = (f[..., :, None] + f[..., None, :]) / np.where(total > 0, total, 1.0)
    square = along[..., :m]
    mean = 0.5 * (square + np.swapaxes(square, -1, -2))
    beyond = np.where(s > 0, f / np.where(s > 0, s, 1.0), 0.0)[..., None] * along[..., m:]
    inner = np.concatenate([even * mean + odd * (square - mean), beyond], axis=-1)
    return np.asarray(left @ inner @ right)


def is_proximal(method: object) -> bool:
    """Whether local steps pass through a regulariser: then vectors cannot be projected on the rows' span."""
    return isinstance(method, Proximal) and type(method.regulariser) is not NoRegulariser


def differentiable(method: GradientMethod) -> GradientMethod | None:
    """The method on complex numbers; `None` where its operator is not known here."""
    if method.replayable or (isinstance(method, Proximal) and type(method.regulariser) is NoRegulariser):
        return method
    if not isinstance(method, Proximal):
        return None
    known: Regulariser
    match method.regulariser:
        case L1(weight):
            known = ThresholdedL1(weight)
        case Nuclear(weight):
            known = ThresholdedNuclear(weight)
        case _:
            return None
    return replace(method, regulariser=known)
