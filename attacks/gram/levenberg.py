"""Levenberg-Marquardt with geodesic acceleration (Transtrum and Sethna, arXiv:1201.5885).

The second-order term frees runs that crawl along the floor of a curved valley.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from securefed.tensors import Array

Residual = Callable[[Array], Array]
Linearised = Callable[[Array], tuple[Array, Array]]
_BEND = 0.75
"""Steps whose acceleration exceeds this share of their velocity are refused (2 |a| > 1.5 |v|)."""
_PROBE = 0.1
_LOWEST, _HIGHEST = 1e-16, 1e12


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


def fit(residual: Residual, linearised: Linearised, start: Array, *, steps: int, goal: float) -> Fit:
    """Minimise ||residual(x)||.

    Args:
        residual: x -> r; may hold NaN where x is out of reach.      linearised: x -> (r, dr/dx).
        steps: largest number of Jacobians.      goal: stop at this misfit.
    """
    x, damping = start, 1e-3
    best, counted = float(np.linalg.norm(residual(start))), 0
    while counted < steps and best > goal and np.isfinite(best):
        r, J = linearised(x)
        counted += 1
        scale = np.maximum(np.linalg.norm(J, axis=0), 1e-12)
        moved = False
        U, s, Vt = np.linalg.svd(J / scale, full_matrices=False)
        while damping < _HIGHEST:
            step = _step(residual, (U, s, Vt), scale, x, r, damping)
            if step is not None:
                candidate = x + step
                misfit = float(np.linalg.norm(residual(candidate)))
                if np.isfinite(misfit) and misfit < best:
                    gained = 1 - misfit / best
                    x, best, moved = candidate, misfit, True
                    damping = max(damping / (10 if gained > 0.1 else 3), _LOWEST)
                    break
            damping *= 4
        if not moved:
            break
    return Fit(x, best, counted)


def _step(
    residual: Residual, svd: tuple[Array, Array, Array], scale: Array, x: Array, r: Array, damping: float
) -> Array | None:
    U, s, Vt = svd
    gain = s / (s**2 + damping * float(s[0]) ** 2)
    velocity = -(Vt.T @ (gain * (U.T @ r))) / scale
    # second directional derivative by a one-sided difference: r(x + h v) = r + h J v + h^2/2 r'' + ...
    Jv = U @ (s * (Vt @ (velocity * scale)))
    bend = 2 / _PROBE * ((residual(x + _PROBE * velocity) - r) / _PROBE - Jv)
    if not np.isfinite(bend).all():
        return None
    acceleration = -(Vt.T @ (gain * (U.T @ bend))) / scale
    if np.linalg.norm(acceleration * scale) > _BEND * np.linalg.norm(velocity * scale) * 2:
        return None
    return np.asarray(velocity + acceleration / 2)
