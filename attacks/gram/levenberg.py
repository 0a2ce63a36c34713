"""Levenberg-Marquardt with geodesic acceleration (Transtrum and Sethna, arXiv:1201.5885).

The second-order term frees runs that crawl along the floor of a curved valley.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.linalg import LinAlgError
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import eigsh

from securefed.tensors import Array

Residual = Callable[[Array], Array]
Linearised = Callable[[Array], tuple[Array, Array]]
_BEND = 0.75
"""Steps with 2 |a| > 1.5 |v| are refused, a the acceleration and v the velocity."""
_PROBE = 0.1
_LOWEST, _HIGHEST = 1e-16, 1e12
_LARGE = 150
"""Unknowns from which on the normal equations are used."""
_ROUND_OFF = 1e-15


@dataclass(frozen=True)
class Fit:
    """Where a run ended.

    Attributes:
        x: parameters.      misfit: ||residual(x)||.
        steps: Jacobians computed.
    """

    x: Array
    misfit: float
    steps: int


def fit(
    residual: Residual,
    linearised: Linearised,
    start: Array,
    *,
    steps: int,
    goal: float,
    patience: int | None = None,
    near: float = 0.0,
) -> Fit:
    """Minimise ||residual(x)||.

    Args:
        residual: x -> r; may hold NaN where x is out of reach.      linearised: x -> (r, dr/dx).
        steps: largest number of Jacobians.      goal: stop at this misfit.
        patience: Jacobians within which a misfit above `near` must halve; `None` never loses it.
    """
    x, damping = start, 1e-3
    best, counted = float(np.linalg.norm(residual(start))), 0
    mark, marked_at = best, 0
    while counted < steps and best > goal and np.isfinite(best):
        if best < 0.5 * mark:
            mark, marked_at = best, counted
        elif patience is not None and best > near and counted - marked_at >= patience:
            break
        r, J = linearised(x)
        counted += 1
        system = _System(J)
        moved = False
        while damping < _HIGHEST and not moved:
            step = _step(residual, system, x, r, damping)
            if step is not None:
                misfit = float(np.linalg.norm(residual(x + step)))
                if np.isfinite(misfit) and misfit < best:
                    x, damping = x + step, max(damping / (10 if misfit < 0.9 * best else 3), _LOWEST)
                    best, moved = misfit, True
                    continue
            damping *= 4
        if not moved:
            break
    return Fit(x, best, counted)


class _System:
    """Damped least squares with one Jacobian, its columns scaled to unit length.

    Small systems use the singular value decomposition. Large ones use the normal equations, whose squared
    condition costs digits of a step, not of the fit: the residual of the next step is computed afresh.
    """

    def __init__(self, jacobian: Array) -> None:
        self.scale = np.maximum(np.linalg.norm(jacobian, axis=0), 1e-12)
        self.matrix = jacobian / self.scale
        self._svd = None if len(self.scale) > _LARGE else np.linalg.svd(self.matrix, full_matrices=False)
        self._normal = self.matrix.T @ self.matrix if self._svd is None else None
        self._top = self._largest()

    def minimise(self, target: Array, damping: float) -> Array | None:
        """The step d of least ||J d - target||^2 + damping s_1^2 ||d||^2 (d in scaled units)."""
        if self._svd is not None:
            U, s, Vt = self._svd
            return np.asarray(Vt.T @ (s / (s**2 + damping * self._top) * (U.T @ target)) / self.scale)
        assert self._normal is not None
        damped = self._normal.copy()
        damped[np.diag_indices_from(damped)] += max(damping, _ROUND_OFF) * self._top
        try:
            factor = cho_factor(damped, lower=True, overwrite_a=True)
        except LinAlgError:
            return None
        return np.asarray(cho_solve(factor, self.matrix.T @ target) / self.scale)

    def _largest(self) -> float:
        """s_1^2."""
        if self._svd is not None:
            return float(self._svd[1][0]) ** 2
        assert self._normal is not None
        last = len(self.scale) - 1
        return float(eigsh(self._normal, k=1, v0=np.ones(last + 1), return_eigenvectors=False)[0])


def _step(residual: Residual, system: _System, x: Array, r: Array, damping: float) -> Array | None:
    velocity = system.minimise(-r, damping)
    if velocity is None:
        return None
    # second directional derivative by a one-sided difference: r(x + h v) = r + h J v + h^2/2 r'' + ...
    forward = system.matrix @ (velocity * system.scale)
    bend = 2 / _PROBE * ((residual(x + _PROBE * velocity) - r) / _PROBE - forward)
    if not np.isfinite(bend).all():
        return None
    acceleration = system.minimise(-bend, damping)
    if acceleration is None:
        return None
    if np.linalg.norm(acceleration * system.scale) > _BEND * np.linalg.norm(velocity * system.scale):
        return None
    return np.asarray(velocity + acceleration / 2)
