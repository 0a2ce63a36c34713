"""Solve dense nonlinear least-squares problems whose residual goes to zero, by the Levenberg-Marquardt method.

Attacks call it to fit what they look for (a Gram matrix, rows of data, distances): r(x) is then the messages of a
simulated client with the parameters x, less the observed messages.

Given r(x), (m,), and its Jacobian J, (m, n), a step d minimises ||J d + r||^2 + damping ||d||^2; it is taken if it
reduces ||r||, and the damping is raised otherwise. `NielsenDamping` adapts the damping to how well the last step was
predicted, and takes undamped steps near the solution. `GeodesicAcceleration` corrects each step for the curvature of
the valley; it frees searches that would crawl along its floor. SciPy's `least_squares` is no replacement: nine of this
project's tests fail with it, and it takes half as long again.

Sources: Madsen, Nielsen, Tingleff, Methods for Non-Linear Least Squares Problems (2004), algorithm 3.16;
Transtrum and Sethna, arXiv:1201.5885.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
from numpy.linalg import LinAlgError
from scipy.linalg import cho_factor, cho_solve, lstsq
from scipy.sparse.linalg import eigsh

from securefed._tensors import Array

ResidualFunction = Callable[[Array], Array]
ResidualAndJacobian = Callable[[Array], tuple[Array, Array]]
_TINY = 1e-300
"""Stands for zero in divisors."""


@dataclass(frozen=True)
class LeastSquaresFit:
    """Result of a search.

    Attributes:
        point: parameters at the end of the search.
        norm: ||residual(point)||; infinite where the residual at the start was not finite.
        steps: number of Jacobians that the search computed.
        linearised: function from x to r and dr/dx that was given to the search.
        known: Jacobian at `point`, if the search computed it; else `None`.
    """

    point: Array
    norm: float
    steps: int
    linearised: ResidualAndJacobian = field(repr=False, compare=False)
    known: Array | None = field(default=None, repr=False, compare=False)

    @cached_property
    def jacobian(self) -> Array:
        """Jacobian at `point`, (equations, parameters); empty where the residual or the Jacobian is not finite."""
        if not np.isfinite(self.norm):
            return np.zeros((0, 0))
        found = self.linearised(self.point)[1] if self.known is None else self.known
        return found if np.isfinite(found).all() else np.zeros((0, 0))


@dataclass(frozen=True)
class StallLimit:
    """Limit on the number of Jacobians within which the norm must halve; a search that needs more stops.

    Attributes:
        near: norm that separates the two limits.
        far: limit above the norm `near`; `None` for no limit.
        close: limit below the norm `near`; `None` for no limit.
        floor: norm of the residual that the true solution has because of noise in the fitted values. Below it the limit
            is 4, since little more can be gained.
    """

    near: float
    far: int | None = 12
    close: int | None = 40
    floor: float = 0.0

    _AT_FLOOR: ClassVar[int] = 4

    def reached(self, norm: float, waited: int) -> bool:
        """Return whether the search has to stop, `waited` Jacobians after the norm last halved."""
        if norm <= self.floor:
            return waited >= self._AT_FLOOR
        limit = self.close if norm <= self.near else self.far
        return limit is not None and waited >= limit


class StepRule(Protocol):
    """Rule that chooses the steps of a search and carries its damping from one Jacobian to the next.

    The search calls `at` at each new point, then `step`, and after every trial `accepted` or `rejected`.
    """

    def at(self, point: Array, residual: Array, jacobian: Array) -> None:
        """Store the residual and the Jacobian at a new point."""
        ...

    def step(self) -> Array | None:
        """Return the next step to try, or `None` if the damping has to grow first."""
        ...

    def accepted(self, step: Array, norm: float, reached: float) -> None:
        """Adapt the damping to a step that was taken and led from `norm` to the norm `reached`."""
        ...

    def rejected(self) -> bool:
        """Raise the damping after a step that was not taken; return whether to try another."""
        ...


def levenberg_marquardt(
    linearised: ResidualAndJacobian,
    start: Array,
    *,
    steps: int,
    goal: float,
    residual: ResidualFunction | None = None,
    patience: StallLimit | None = None,
    stepper: StepRule | None = None,
    least: float = 0.0,
) -> LeastSquaresFit:
    """Minimise ||r(x)||.

    Args:
        linearised: function from x (n,) to r (m,) and dr/dx (m, n).
        start: x at which the search begins.
        steps: largest number of Jacobians.
        goal: norm at which the search stops.
        residual: function from x to r, if that costs much less than `linearised`. It returns NaN where x lies outside
            the domain. Trial steps then need no Jacobian; without it each of them computes one, which is cheaper where
            few steps are refused.
        patience: limit after which a search without progress stops; without it, the search goes on.
        stepper: rule for the steps; `NielsenDamping` by default.
        least: relative decrease of the norm below which a step is the last, for residuals whose minimum is not zero.

    Returns:
        The point of least norm that the search reached; its norm is infinite where r(start) is not finite.
    """
    stepper = stepper or NielsenDamping()
    point, (norm, linearisation) = start, _evaluate(start, linearised, residual)
    jacobians = int(linearisation is not None)
    if not np.isfinite(norm):
        return LeastSquaresFit(point, np.inf, jacobians, linearised)
    norm_at_halving, jacobians_at_halving, point_is_set = norm, 0, False
    while norm > goal:
        # `linearisation` is (r, J) at `point`, or None where `residual` alone was called there. Limits are looked at
        # where the next trial costs a Jacobian: at a new point, or at every trial if trials call `linearised`.
        if residual is None or linearisation is None:
            if norm < 0.5 * norm_at_halving:
                norm_at_halving, jacobians_at_halving = norm, jacobians
            stalled = patience is not None and patience.reached(norm, jacobians - jacobians_at_halving)
            if stalled or jacobians >= steps:
                break
        if linearisation is None:
            linearisation, jacobians = linearised(point), jacobians + 1
            if not np.isfinite(linearisation[1]).all():  # `residual` is finite here, and no step can be computed
                break
        if not point_is_set:
            stepper.at(point, *linearisation)
            point_is_set = True
        if (step := stepper.step()) is not None:
            next_norm, next_linearisation = _evaluate(point + step, linearised, residual)
            jacobians += int(next_linearisation is not None)
            if next_norm < norm:
                stepper.accepted(step, norm, next_norm)
                small_decrease = next_norm > (1 - least) * norm
                point, norm, linearisation, point_is_set = point + step, next_norm, next_linearisation, False
                if small_decrease:
                    break
                continue
        if not stepper.rejected():
            break
    return LeastSquaresFit(point, norm, jacobians, linearised, linearisation[1] if linearisation is not None else None)


def gauss_newton(linearised: ResidualAndJacobian, start: Array, steps: int) -> LeastSquaresFit:
    """Take undamped steps as long as they reduce the norm, to polish a point close to a solution.

    Steps are computed by orthogonal factorisation, which keeps digits that the normal equations would lose.

    Args:
        linearised: function from x (n,) to r (m,) and dr/dx (m, n).
        start: x at which the steps begin.
        steps: largest number of steps.

    Returns:
        The point of least norm that the steps reached.
    """
    point, (norm, linearisation) = start, _evaluate(start, linearised, None)
    jacobians = 1
    while linearisation is not None and np.isfinite(norm) and jacobians <= steps:
        step = newton_step(*linearisation)
        next_norm, next_linearisation = _evaluate(point + step, linearised, None)
        jacobians += 1
        if not next_norm < norm:
            break
        point, norm, linearisation = point + step, next_norm, next_linearisation
    return LeastSquaresFit(point, norm, jacobians, linearised, linearisation[1] if linearisation is not None else None)


def newton_step(residual: Array, jacobian: Array) -> Array:
    """Return the undamped step, computed with columns of unit length; directions of pure round-off are left out."""
    scale = np.maximum(np.linalg.norm(jacobian, axis=0), _TINY)
    return np.asarray(lstsq(jacobian / scale, -residual, cond=1e-13, lapack_driver="gelsy")[0] / scale)


def _evaluate(
    point: Array, linearised: ResidualAndJacobian, residual: ResidualFunction | None
) -> tuple[float, tuple[Array, Array] | None]:
    """Compute the norm at a point, by `residual` if that is given, else by `linearised`.

    Returns:
        The norm, infinite where any number is not finite; the residual and Jacobian, if `linearised` was called.
    """
    if residual is not None:
        linearisation, value, finite = None, residual(point), True
    else:
        linearisation = linearised(point)
        value, finite = linearisation[0], bool(np.isfinite(linearisation[1]).all())
    norm = float(np.linalg.norm(value))
    return (norm if finite and np.isfinite(norm) else np.inf), linearisation


class NielsenDamping:
    """Damp each step by the gain of the last one: the actual decrease over the predicted one.

    Near the solution steps are undamped and computed by orthogonal factorisation, since the squared condition number
    of the normal equations would cost digits there.
    """

    _NEAR = 1e-5
    """Norm of the residual below which steps are undamped. Callers give residuals relative to the fitted messages."""
    _HOPELESS = 1e30
    """Damping above which a search ends: its steps are then too short to change the residual."""

    def __init__(self) -> None:
        self._damping, self._growth = 0.0, 2.0

    def at(self, point: Array, residual: Array, jacobian: Array) -> None:
        """Take over the residual and the Jacobian of a new point."""
        self._residual, self._jacobian = residual, jacobian
        self._norm = float(np.linalg.norm(residual))
        self._normal: Array | None = None
        # at the first point: a thousandth of the largest diagonal entry of J^T J, tau = 1e-3 of algorithm 3.16
        self._damping = self._damping or 1e-3 * float(np.max(np.sum(jacobian**2, axis=0), initial=_TINY))

    def step(self) -> Array | None:
        """Return the next step to try, or `None` if the damping has to grow first."""
        jacobian = self._jacobian
        if self._norm < self._NEAR and self._growth == 2.0:  # the growth is 2 unless a step was refused at this point
            # columns keep their units: a smaller cut-off than `newton_step`'s spares those that are short by theirs
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
        """Adapt the damping to a step that was taken."""
        predicted = norm**2 - float(np.sum((self._residual + self._jacobian @ step) ** 2))
        gain = min((norm**2 - reached**2) / max(predicted, _TINY), 1.0)
        # Nielsen's rule: a gain of 1/2 keeps the damping, less raises it; the source divides by at most 3, not 10
        self._damping *= max(1.0 / 10.0, 1.0 - (2.0 * gain - 1.0) ** 3)
        self._growth = 2.0

    def rejected(self) -> bool:
        """Raise the damping; return whether to try another step."""
        self._damping, self._growth = self._damping * self._growth, self._growth * 2.0
        return self._damping <= self._HOPELESS


class GeodesicAcceleration:
    """Step along the velocity v plus half the geodesic acceleration a; steps with |a| > .75 |v| are refused.

    With r'' the second derivative of r along v, the two minimise ||J v + r||^2 and ||J a + r''||^2, each plus the same
    damping. |a| and |v| are taken with columns of J scaled to unit length. After a refused step the damping is raised
    by less (4) than it is lowered after a good one (10): Transtrum and Sethna's delayed gratification.

    Args:
        residual: residual function of the search; the acceleration is a one-sided difference of it.
        corrections: largest number of further steps with the same Jacobian after each step, taken as long as they
            help. They lead back to the floor of the valley and cost one residual each.
    """

    _BEND = 0.75
    """Largest |a| / |v| of a step that is tried: beyond, the second-order expansion of the residual is not trusted."""
    _PROBE = 0.1
    """Step h of the one-sided difference, in units of v; much smaller ones would lose digits to round-off."""
    _HELPS = 0.9
    """Factor by which a correction must reduce the norm for another one to be tried."""
    _LOWEST, _HIGHEST = 1e-16, 1e12
    """Smallest damping (round-off), and damping that ends a search, in units of the largest squared singular value."""

    def __init__(self, residual: ResidualFunction, corrections: int = 0) -> None:
        self._of, self._damping, self._corrections = residual, 1e-3, corrections  # tau of algorithm 3.16

    def at(self, point: Array, residual: Array, jacobian: Array) -> None:
        """Take over the residual and the Jacobian of a new point."""
        self._point, self._residual, self._system = point, residual, _DampedLeastSquares(jacobian)

    def step(self) -> Array | None:
        """Return the next step to try, or `None` if the damping has to grow first."""
        system, scale = self._system, self._system.scale
        velocity = system.minimise(-self._residual, self._damping)
        if velocity is None:
            return None
        # second directional derivative: r(x + h v) = r + h J v + h^2/2 r'' + ...
        forward = system.matrix @ (velocity * scale)  # J v
        ahead = self._of(self._point + self._PROBE * velocity)
        second_derivative = 2 / self._PROBE * ((ahead - self._residual) / self._PROBE - forward)
        if not np.isfinite(second_derivative).all():
            return None
        acceleration = system.minimise(-second_derivative, self._damping)
        if acceleration is None:
            return None
        if np.linalg.norm(acceleration * scale) > self._BEND * np.linalg.norm(velocity * scale):
            return None
        return self._corrected(np.asarray(velocity + acceleration / 2))

    def _corrected(self, step: Array) -> Array:
        """Add further steps with the same Jacobian, as long as they reduce the norm."""
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
        """Lower the damping by 10, or by 3 after a step that reduced the norm by less than a tenth."""
        self._damping = max(self._damping / (10 if reached < 0.9 * norm else 3), self._LOWEST)

    def rejected(self) -> bool:
        """Raise the damping; return whether to try another step."""
        self._damping *= 4
        return self._damping < self._HIGHEST


class _DampedLeastSquares:
    """Damped least squares with one Jacobian whose columns are scaled to unit length.

    Small systems use the singular value decomposition; large ones, and those where it does not converge, the normal
    equations. Their squared condition number costs digits of a step, not of the solution: residuals are computed anew.
    """

    _LARGE = 150
    """Most unknowns for which the singular value decomposition is used; beyond, the normal equations save time."""
    _ROUND_OFF = 1e-15
    """Least damping of the normal equations, with which they can be factorised."""

    def __init__(self, jacobian: Array) -> None:
        # J = matrix * scale, the matrix with columns of unit length; those below 1e-12, round-off alone, stay short
        self.scale = np.maximum(np.linalg.norm(jacobian, axis=0), 1e-12)
        self.matrix = jacobian / self.scale
        self._svd = None
        with suppress(LinAlgError):
            self._svd = np.linalg.svd(self.matrix, full_matrices=False) if len(self.scale) <= self._LARGE else None
        self._normal = self.matrix.T @ self.matrix if self._svd is None else None
        self._top = self._largest()

    def minimise(self, target: Array, damping: float) -> Array | None:
        """Return the step d that minimises ||J d - target||^2 + damping s_1^2 ||scale d||^2; `None` where that fails.

        s_1 is the largest singular value of the scaled Jacobian.
        """
        if not self._top > 0:  # a zero Jacobian shows no step
            return None
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
        """Return s_1^2, the square of the largest singular value, by Lanczos iterations on a large J^T J."""
        if self._svd is not None:
            return float(self._svd[1][0]) ** 2
        if self._normal is None or not self._normal.any():
            return 0.0
        last = len(self.scale) - 1
        return float(eigsh(self._normal, k=1, v0=np.ones(last + 1), return_eigenvectors=False)[0])
