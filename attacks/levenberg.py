"""Levenberg-Marquardt, dense, for residuals that go to zero: one search, two ways to step.

`Nielsen` damps by how well the last step was predicted, and near the solution steps undamped: few Jacobians where they
are the cost and valleys are straight. `Geodesic` corrects each step for the valley's curvature, which frees runs that
crawl along the floor of a curved one, for one residual more a step.

Sources: Madsen, Nielsen, Tingleff, Methods for Non-Linear Least Squares Problems (2004), algorithm 3.16;
Transtrum and Sethna, arXiv:1201.5885.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
from numpy.linalg import LinAlgError
from scipy.linalg import cho_factor, cho_solve, lstsq
from scipy.sparse.linalg import eigsh

from securefed.tensors import Array

Residual = Callable[[Array], Array]
Linearised = Callable[[Array], tuple[Array, Array]]
_TINY = 1e-300


@dataclass(frozen=True)
class Fit:
    """Where a search ended.

    Attributes:
        point: parameters.      norm: ||residual(point)||; infinite where the search could not begin.
        steps: Jacobians it took.      known: the one at the point, where it was computed.
    """

    point: Array
    norm: float
    steps: int
    linearised: Linearised = field(repr=False, compare=False)
    known: Array | None = field(default=None, repr=False, compare=False)

    @cached_property
    def jacobian(self) -> Array:
        """At the point, (equations, parameters); empty where the residual is out of reach."""
        if not np.isfinite(self.norm):
            return np.zeros((0, 0))
        return self.linearised(self.point)[1] if self.known is None else self.known


@dataclass(frozen=True)
class Patience:
    """Jacobians within which the norm must halve: `far` above the norm `near`, `close` below; `None`: any number.

    Below `floor`, about where the noise of what is fitted leaves the solution itself, a few do.
    """

    near: float
    far: int | None = 12
    close: int | None = 40
    floor: float = 0.0

    _SETTLED: ClassVar[int] = 4

    def lost(self, norm: float, waited: int) -> bool:
        if norm <= self.floor:
            return waited >= self._SETTLED
        limit = self.close if norm <= self.near else self.far
        return limit is not None and waited >= limit


class Stepper(Protocol):
    """Chooses steps. It carries its damping from one Jacobian to the next."""

    def at(self, point: Array, residual: Array, jacobian: Array) -> None:
        """The search stands here now."""
        ...

    def step(self) -> Array | None:
        """What to try next; `None` where the damping must grow first."""
        ...

    def accepted(self, step: Array, norm: float, reached: float) -> None:
        """The step led from the one norm to the other, and was taken."""
        ...

    def rejected(self) -> bool:
        """The step was not taken; whether there is any point in another."""
        ...


def levenberg(
    linearised: Linearised,
    start: Array,
    *,
    steps: int,
    goal: float,
    residual: Residual | None = None,
    patience: Patience | None = None,
    stepper: Stepper | None = None,
    least: float = 0.0,
) -> Fit:
    """Minimise ||r(x)||.

    Args:
        linearised: x (n,) -> r (m,), dr/dx (m, n).
        steps: most Jacobians.      goal: norm to stop at.
        residual: x -> r where that costs much less; may hold NaN where x is out of reach. Steps are then tried without
            a Jacobian, else with one each, which is the cheaper way where few are refused.
        patience: when to give up; never, by default.      stepper: `Nielsen` by default.
        least: share of the norm that a step must take away, or it is the last: for residuals that end above zero.
    """
    stepper = stepper or Nielsen()
    point, (norm, here) = start, _look(start, linearised, residual)
    taken = int(here is not None)
    if not np.isfinite(norm):
        return Fit(point, np.inf, taken, linearised)
    mark, marked_at, stands = norm, 0, False
    while norm > goal:
        if residual is None or here is None:  # another Jacobian: it has to be worth it
            if norm < 0.5 * mark:
                mark, marked_at = norm, taken
            elif patience is not None and patience.lost(norm, taken - marked_at):
                break
            if taken >= steps:
                break
        if here is None:
            here, taken = linearised(point), taken + 1
        if not stands:
            stepper.at(point, *here)
            stands = True
        if (step := stepper.step()) is not None:
            reached, there = _look(point + step, linearised, residual)
            taken += int(there is not None)
            if reached < norm:
                stepper.accepted(step, norm, reached)
                last = reached > (1 - least) * norm
                point, norm, here, stands = point + step, reached, there, False
                if last:
                    break
                continue
        if not stepper.rejected():
            break
    return Fit(point, norm, taken, linearised, here[1] if here is not None else None)


def gauss_newton(linearised: Linearised, start: Array, steps: int) -> Fit:
    """Undamped steps while they help, near a solution: orthogonal factorisations, so the last digits count too."""
    point, (norm, here) = start, _look(start, linearised, None)
    taken = 1
    while here is not None and np.isfinite(norm) and taken <= steps:
        step = newton_step(*here)
        reached, there = _look(point + step, linearised, None)
        taken += 1
        if not reached < norm:
            break
        point, norm, here = point + step, reached, there
    return Fit(point, norm, taken, linearised, here[1] if here is not None else None)


def newton_step(residual: Array, jacobian: Array) -> Array:
    """The undamped step, columns scaled to unit length; directions that hold only round-off stay."""
    scale = np.maximum(np.linalg.norm(jacobian, axis=0), _TINY)
    return np.asarray(lstsq(jacobian / scale, -residual, cond=1e-13, lapack_driver="gelsy")[0] / scale)


def _look(point: Array, linearised: Linearised, residual: Residual | None) -> tuple[float, tuple[Array, Array] | None]:
    """The norm, infinite out of reach, and what was linearised to know it."""
    if residual is not None:
        here, value, known = None, residual(point), True
    else:
        here = linearised(point)
        value, known = here[0], bool(np.isfinite(here[1]).all())
    norm = float(np.linalg.norm(value))
    return (norm if known and np.isfinite(norm) else np.inf), here


class Nielsen:
    """Damping by the gain, the share of the predicted decrease that came true; undamped near the solution, where the
    normal equations' squared condition would cost digits."""

    _NEAR = 1e-5
    _HOPELESS = 1e30

    def __init__(self) -> None:
        self._damping, self._growth = 0.0, 2.0

    def at(self, point: Array, residual: Array, jacobian: Array) -> None:
        self._residual, self._jacobian = residual, jacobian
        self._norm = float(np.linalg.norm(residual))
        self._normal: Array | None = None
        self._damping = self._damping or 1e-3 * float(np.max(np.sum(jacobian**2, axis=0), initial=_TINY))

    def step(self) -> Array | None:
        jacobian = self._jacobian
        if self._norm < self._NEAR and self._growth == 2.0:
            return np.asarray(lstsq(jacobian, -self._residual, cond=1e-14, lapack_driver="gelsy")[0])
        if self._normal is None:
            self._normal = jacobian.T @ jacobian
        damped = self._normal.copy()
        damped[np.diag_indices_from(damped)] += self._damping
        try:
            return np.asarray(np.linalg.solve(damped, -jacobian.T @ self._residual))
        except LinAlgError:
            return None

    def accepted(self, step: Array, norm: float, reached: float) -> None:
        predicted = norm**2 - float(np.sum((self._residual + self._jacobian @ step) ** 2))
        gain = min((norm**2 - reached**2) / max(predicted, _TINY), 1.0)
        self._damping *= max(1.0 / 10.0, 1.0 - (2.0 * gain - 1.0) ** 3)
        self._growth = 2.0

    def rejected(self) -> bool:
        self._damping, self._growth = self._damping * self._growth, self._growth * 2.0
        return self._damping <= self._HOPELESS


class Geodesic:
    """Velocity plus half the acceleration along it; steps with 2 |a| > 1.5 |v| are refused.

    Args:
        residual: of the search; the acceleration is a one-sided difference of it.
        corrections: most further steps of the same Jacobian from where a step ends, while they help: they lead back to
            the floor of the valley, for one residual each.
    """

    _BEND = 0.75
    _PROBE = 0.1
    _HELPS = 0.9
    _LOWEST, _HIGHEST = 1e-16, 1e12

    def __init__(self, residual: Residual, corrections: int = 0) -> None:
        self._of, self._damping, self._corrections = residual, 1e-3, corrections

    def at(self, point: Array, residual: Array, jacobian: Array) -> None:
        self._point, self._residual, self._system = point, residual, _Scaled(jacobian)

    def step(self) -> Array | None:
        system, scale = self._system, self._system.scale
        velocity = system.minimise(-self._residual, self._damping)
        if velocity is None:
            return None
        # second directional derivative: r(x + h v) = r + h J v + h^2/2 r'' + ...
        forward = system.matrix @ (velocity * scale)
        ahead = self._of(self._point + self._PROBE * velocity)
        bend = 2 / self._PROBE * ((ahead - self._residual) / self._PROBE - forward)
        if not np.isfinite(bend).all():
            return None
        acceleration = system.minimise(-bend, self._damping)
        if acceleration is None:
            return None
        if np.linalg.norm(acceleration * scale) > self._BEND * np.linalg.norm(velocity * scale):
            return None
        return self._corrected(np.asarray(velocity + acceleration / 2))

    def _corrected(self, step: Array) -> Array:
        if not self._corrections:
            return step
        value = self._of(self._point + step)
        for _ in range(self._corrections):
            further = self._system.minimise(-value, self._damping)
            if further is None:
                break
            reached = self._of(self._point + step + further)
            if not np.linalg.norm(reached) < self._HELPS * np.linalg.norm(value):
                break
            step, value = step + further, reached
        return step

    def accepted(self, step: Array, norm: float, reached: float) -> None:
        self._damping = max(self._damping / (10 if reached < 0.9 * norm else 3), self._LOWEST)

    def rejected(self) -> bool:
        self._damping *= 4
        return self._damping < self._HIGHEST


class _Scaled:
    """Damped least squares with one Jacobian, its columns scaled to unit length.

    Small systems use the singular value decomposition. Large ones use the normal equations, whose squared
    condition costs digits of a step, not of the fit: the residual of the next step is computed afresh.
    """

    _LARGE = 150
    """Unknowns from which on the normal equations are used."""
    _ROUND_OFF = 1e-15

    def __init__(self, jacobian: Array) -> None:
        self.scale = np.maximum(np.linalg.norm(jacobian, axis=0), 1e-12)
        self.matrix = jacobian / self.scale
        self._svd = None if len(self.scale) > self._LARGE else np.linalg.svd(self.matrix, full_matrices=False)
        self._normal = self.matrix.T @ self.matrix if self._svd is None else None
        self._top = self._largest()

    def minimise(self, target: Array, damping: float) -> Array | None:
        """The step d of least ||J d - target||^2 + damping s_1^2 ||d||^2 (d in scaled units)."""
        if self._svd is not None:
            U, s, Vt = self._svd
            return np.asarray(Vt.T @ (s / (s**2 + damping * self._top) * (U.T @ target)) / self.scale)
        assert self._normal is not None
        damped = self._normal.copy()
        damped[np.diag_indices_from(damped)] += max(damping, self._ROUND_OFF) * self._top
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
