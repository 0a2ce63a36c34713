"""Levenberg-Marquardt with Nielsen's damping, dense, for problems whose residual goes to zero.

Source: Madsen, Nielsen, Tingleff, Methods for Non-Linear Least Squares Problems (2004), algorithm 3.16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lstsq

from securefed.tensors import Array

Misfit = Callable[[Array], tuple[Array, Array]]
_NEAR = 1e-5
_IMPATIENCE = 12


@dataclass(frozen=True)
class Fit:
    """Where a search ended: the point, the residual's norm, the last Jacobian, and how many steps it took."""

    point: Array
    norm: float
    jacobian: Array
    steps: int


def levenberg(misfit: Misfit, start: Array, *, steps: int, goal: float, near: float, patience: int = 40) -> Fit:
    """Minimise ||misfit(p)||.

    Args:
        misfit: p (n,) -> residual (m,), Jacobian (m, n).
        steps: most evaluations.      goal: norm to stop at.
        near: norm below which a slow valley is worth `patience`; above it, only `_IMPATIENCE`.
        patience: evaluations within which the norm must halve.
    """
    point = start
    residual, jacobian = misfit(point)
    norm = float(np.linalg.norm(residual))
    if not np.isfinite(norm):
        return Fit(point, np.inf, jacobian, 1)
    damping, growth = 1e-3 * float(np.max(np.sum(jacobian**2, axis=0), initial=1e-300)), 2.0
    mark, marked_at = norm, 0
    for taken in range(1, steps):
        if norm <= goal:
            return Fit(point, norm, jacobian, taken)
        if norm < 0.5 * mark:
            mark, marked_at = norm, taken
        elif taken - marked_at >= (patience if norm < near else _IMPATIENCE):
            break
        move = _move(jacobian, residual, damping, exact=norm < _NEAR and growth == 2.0)
        trial = point + move
        new_residual, new_jacobian = misfit(trial)
        new_norm = float(np.linalg.norm(new_residual))
        if np.isfinite(new_norm) and np.isfinite(new_jacobian).all() and new_norm < norm:
            predicted = norm**2 - float(np.sum((residual + jacobian @ move) ** 2))
            gain = min((norm**2 - new_norm**2) / max(predicted, 1e-300), 1.0)
            damping *= max(1.0 / 10.0, 1.0 - (2.0 * gain - 1.0) ** 3)
            growth = 2.0
            point, residual, jacobian, norm = trial, new_residual, new_jacobian, new_norm
        else:
            damping, growth = damping * growth, growth * 2.0
            if damping > 1e30:
                break
    return Fit(point, norm, jacobian, steps)


def _move(jacobian: Array, residual: Array, damping: float, *, exact: bool) -> Array:
    """The step; near the solution undamped and without the normal equations, whose squared condition costs digits."""
    if exact:
        return np.asarray(lstsq(jacobian, -residual, cond=1e-14, lapack_driver="gelsy", check_finite=False)[0])
    normal = jacobian.T @ jacobian
    normal[np.diag_indices_from(normal)] += damping
    try:
        return np.asarray(np.linalg.solve(normal, -jacobian.T @ residual))
    except np.linalg.LinAlgError:
        return np.zeros_like(jacobian[0])
