"""A race of starts: all run a few steps, the best ones run on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle, islice

import numpy as np
from numpy.linalg import LinAlgError
from scipy.optimize import minimize

from securefed.attacks.gradient_inversion.starts import Start, Starts
from securefed.attacks.gradient_inversion.system import System
from securefed.attacks.levenberg import Fit, Geodesic, Patience, Stepper, levenberg
from securefed.tensors import Array

EXACT = 1e-13
SOLVED = 1e-9
_POLISH = 4
"""Jacobians."""
_HOPELESS, _SAME = 0.2, 1e-3
_TINY = 1e-300
_STARTS_OF_A_BUDGET = 75
"""Steps of the budget for each start that must have failed before a search is given up."""
_NEAR = 0.03
_PROMISING = 0.01
"""Least share of the squared misfit that a search far from a solution must expect of its best linear step: the patience
of 40 such steps would not halve the misfit."""
_ROUND_OFF = 1e-13
_CORRECTIONS = 4
_LEAST = 1e-4
_SETTLED = 1e-11
"""Misfit of messages in float64 that rounding may have left already: few more Jacobians go into the rest."""
_ROUNDED = 3.0
"""A misfit of so many times what rounding leaves to the true samples counts as solved."""


@dataclass(frozen=True)
class Found:
    """The best fit of a search, and the work it took."""

    labels: Array
    fit: Fit
    starts: int
    steps: int


@dataclass(frozen=True)
class _Run:
    """One start's way through one system."""

    system: System
    labels: Array
    fit: Fit

    @cached_property
    def share(self) -> float:
        """Of the data's signal that is not explained: compares runs of systems that weigh equations differently."""
        return self.fit.norm / max(self.system.signal, _TINY)

    @property
    def solved(self) -> bool:
        return self.fit.norm <= max(SOLVED, _ROUNDED * self.system.floor)


def _share(one: _Run) -> float:
    return one.share


@dataclass(frozen=True)
class Race:
    """Heats of `entrants` starts, `opening` steps each; the best `finalists` of a heat run on for `closing` steps.

    Every second heat fits equations that all count alike: raising faint ones leads along narrow valleys, but from afar
    it also raises what is not linear in them.

    Heats go on until a fit is exact, or as good as the messages' fixed point allows, `budget` steps are taken, or, once
    every plausible count of labels had its start, a heat ends where one before it did, or nothing comes near: messages
    that no samples explain (noise) are given up early. The closing is Levenberg-Marquardt; an exact fit is polished.

    Attributes:
        descent: open with L-BFGS (strong-Wolfe line search) instead.
    """

    entrants: int = 4
    opening: int = 15
    finalists: int = 2
    closing: int = 250
    budget: int = 300
    descent: bool = False

    def __call__(self, system: System, starts: Starts, rng: np.random.Generator) -> Found:
        source, used, tried = starts(rng), 0, 0
        plausible = max(starts.enough, self.entrants, self.budget // _STARTS_OF_A_BUDGET)
        kinds = cycle((system, system.levelled))
        best: _Run | None = None
        while best is None or not (best.solved or used >= self.budget):
            own, heat, ends = next(kinds), list[_Run](), list[_Run]()
            for start in islice(source, self.entrants):
                heat.append(_Run(own, start.labels, self._open(own, start)))
                used, tried = used + heat[-1].fit.steps, tried + 1
                if heat[-1].solved:
                    break
            for one in sorted(heat, key=_share)[: self.finalists]:
                longer, more = self._close(one)
                ends.append(longer)
                used += more
                if longer.solved:
                    break
            reached = min(ends, key=_share)
            again = best is not None and abs(reached.share - best.share) < _SAME * best.share
            best = min(reached, best or reached, key=_share)
            if tried >= plausible and (again or best.share > _HOPELESS):
                break
        return Found(best.labels, _polished(best).fit, tried, used)

    def _open(self, system: System, start: Start) -> Fit:
        if self.descent:
            return _descend(system, start, self.opening)
        return run(system, start.labels, start.samples.ravel(), self.opening, hopeful=True)

    def _close(self, one: _Run) -> tuple[_Run, int]:
        """A finalist's second run, and the steps it took: none where it is exact, or where the first one gave up."""
        gave_up = not self.descent and one.fit.steps < self.opening
        if gave_up or one.fit.norm <= EXACT:
            return one, 0
        longer = run(one.system, one.labels, one.fit.point, self.closing, hopeful=True)
        return replace(one, fit=longer), longer.steps


def run(system: System, labels: Array, start: Array, steps: int, *, hopeful: bool = False) -> Fit:
    """Levenberg-Marquardt on a system with given labels; coordinates flattened.

    Args:
        hopeful: go on only while the best linear step promises something.
    """

    def residual(point: Array) -> Array:
        return system.misfit(point.reshape(system.shape), labels, slope=False)[0]

    near = _NEAR * system.signal
    stepper = Geodesic(residual, _CORRECTIONS)
    return levenberg(
        lambda p: system.misfit(p.reshape(system.shape), labels),
        start,
        steps=steps,
        goal=EXACT,
        residual=residual,
        patience=Patience(near, floor=max(_SETTLED, _ROUNDED * system.floor)),
        stepper=_Hopeful(stepper, near) if hopeful else stepper,
        least=_LEAST,
    )


class _Hopeful:
    """Another's steps, but none from where a misfit above `near` is about as small as it gets."""

    def __init__(self, stepper: Stepper, near: float) -> None:
        self._stepper, self._near, self._over = stepper, near, False

    def at(self, point: Array, residual: Array, jacobian: Array) -> None:
        self._stepper.at(point, residual, jacobian)
        norm = float(np.linalg.norm(residual))
        self._over = norm > self._near and self._promise(residual, jacobian) < _PROMISING * norm**2

    def step(self) -> Array | None:
        return None if self._over else self._stepper.step()

    def accepted(self, step: Array, norm: float, reached: float) -> None:
        self._stepper.accepted(step, norm, reached)

    def rejected(self) -> bool:
        return not self._over and self._stepper.rejected()

    @staticmethod
    def _promise(residual: Array, jacobian: Array) -> float:
        """What the undamped step would take off the squared misfit, were the system linear."""
        normal, slope = jacobian.T @ jacobian, jacobian.T @ residual
        firm = normal + _ROUND_OFF * np.trace(normal) * np.eye(len(slope))
        try:
            return float(slope @ np.linalg.solve(firm, slope))
        except LinAlgError:
            return float("inf")


def _polished(one: _Run) -> _Run:
    """A solved fit once more, to where rounding alone decides: short of that, ill-conditioned rows lose digits."""
    system = one.system
    if not EXACT >= one.fit.norm > 0 or system.floor > EXACT:
        return one
    fit = levenberg(
        lambda p: system.misfit(p.reshape(system.shape), one.labels), one.fit.point, steps=_POLISH, goal=0.0
    )
    return replace(one, fit=fit)


def _descend(system: System, start: Start, steps: int) -> Fit:
    def misfit(point: Array) -> tuple[Array, Array]:
        return system.misfit(point.reshape(system.shape), start.labels)

    def objective(point: Array) -> tuple[float, Array]:
        residual, jacobian = misfit(point)
        value = 0.5 * float(residual @ residual)
        if not np.isfinite(value):
            return 1e30, np.zeros_like(point)
        return value, jacobian.T @ residual

    outcome = minimize(objective, start.samples.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": steps})
    return Fit(outcome.x, float(np.sqrt(2.0 * outcome.fun)), int(outcome.nfev), misfit)
