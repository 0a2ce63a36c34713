"""A race of starts: all run a few steps, the best ones run on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize

from securefed.attacks.gradient_inversion.simulate import System
from securefed.attacks.gradient_inversion.starts import Start, Starts
from securefed.attacks.levenberg import Fit, Patience, levenberg
from securefed.tensors import Array

EXACT = 1e-13
SOLVED = 1e-9
_POLISH = 4
"""Jacobians."""
_HOPELESS = 0.2
_NEAR = 0.03
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
class Race:
    """Heats of `entrants` starts, `opening` steps each; the best `finalists` of a heat run on for `closing` steps.

    Heats go on until a fit is exact, or as good as the messages' fixed point allows, `budget` steps are allotted (a run
    that ends early counts in full), or nothing comes near after every plausible count of labels had its start: messages
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
        source, used, allotted, tried = starts(rng), 0, 0, 0
        solved = max(SOLVED, _ROUNDED * system.floor)
        plausible = max(len(starts.label_counts()), self.entrants)
        best: Found | None = None
        while best is None or (best.fit.norm > solved and allotted < self.budget):
            if best is not None and tried >= plausible and best.fit.norm > _HOPELESS * system.signal:
                break
            heat: list[tuple[Fit, Start]] = []
            for _ in range(self.entrants):
                start = next(source)
                fit = self._open(system, start)
                heat.append((fit, start))
                used, allotted, tried = used + fit.steps, allotted + self.opening, tried + 1
                if fit.norm <= solved:
                    break
            heat.sort(key=lambda item: item[0].norm)
            for fit, start in heat[: self.finalists]:
                longer = fit if fit.norm <= EXACT else run(system, start.labels, fit.point, self.closing)
                used, allotted = used + longer.steps, allotted + self.closing
                if best is None or longer.norm < best.fit.norm:
                    best = Found(start.labels, longer, tried, used)
                if best.fit.norm <= solved:
                    break
        return replace(_polished(system, best), starts=tried, steps=used)

    def _open(self, system: System, start: Start) -> Fit:
        if self.descent:
            return _descend(system, start, self.opening)
        return run(system, start.labels, start.samples.ravel(), self.opening)


def run(system: System, labels: Array, start: Array, steps: int) -> Fit:
    """Levenberg-Marquardt on a system with given labels; coordinates flattened."""
    return levenberg(
        lambda p: system.misfit(p.reshape(system.shape), labels),
        start,
        steps=steps,
        goal=EXACT,
        patience=Patience(_NEAR * system.signal, floor=_ROUNDED * system.floor),
    )


def _polished(system: System, found: Found) -> Found:
    """A solved fit once more, to where rounding alone decides: short of that, ill-conditioned rows lose digits."""
    if not EXACT >= found.fit.norm > 0 or system.floor > EXACT:
        return found
    fit = levenberg(
        lambda p: system.misfit(p.reshape(system.shape), found.labels), found.fit.point, steps=_POLISH, goal=0.0
    )
    return replace(found, fit=fit)


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
