"""Search for the rows of clients by Levenberg-Marquardt from many starting points.

The equations (`SumEquations`) say that the messages simulated from the rows equal the observed ones. For given labels
they are a nonlinear least-squares problem in the rows' coordinates. The labels come with the starting points: each
start follows one label count, a guess of how many rows each class has. The residual is relative: each part of the
messages (such as `delta`, or `dx` and `dc` in SCAFFOLD) is divided by the norm of what the rows contribute to it over
all rounds. All norms and thresholds below are in this unit. Two norms serve for comparison:

    signal    that of clients without rows: 1 for one part, the root of the number of parts for several
    floor     that of the true rows, which fixed-point rounding and noise of the messages cause

A fit leaves the share ||residual|| / signal of the messages unexplained. The attacks of this folder (`fitting_attack`)
call `MultiStartSearch`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from securefed._tensors import Array
from securefed.attacks._fitting.levenberg_marquardt import (
    GeodesicAcceleration,
    LeastSquaresFit,
    StallLimit,
    levenberg_marquardt,
)
from securefed.attacks._gradient_inversion.starting_points import StartGenerator
from securefed.attacks._gradient_inversion.sum_equations import SumEquations

EXACT = 1e-13
"""Norm of the relative residual at which a search stops, about the round-off of float64."""
SOLVED = 1e-9
"""Norm of the relative residual below which the rows count as found."""
_POLISHING_STEPS = 4
"""Jacobians spent on an exact fit: without them ill-conditioned rows end at errors of 2e-11 instead of 5e-13."""
_HOPELESS = 0.2
"""Share of the signal that the best fit leaves unexplained, above which a search gives up once every plausible label
count has been tried."""
_SAME, _SAME_MINIMUM = 10, 1e-3
"""Fits that end in the best minimum found, up to this relative difference, after which a search takes it for the best
there is, once every plausible label count has been tried. Single rows end there from every start."""
_STEPS_PER_START = 75
"""A search gives up no sooner than after budget / 75 starts, also where there are fewer label counts."""
_NEAR = 0.03
"""Unexplained share of the signal below which a fit is given 40 Jacobians to halve its residual, instead of `_FAR`."""
_FAR = 6
"""Jacobians within which a fit has to halve its residual above `_NEAR`. Exact fits needed at most 5 (one row, logistic
regression), those of sums of 8 clients at most 2. On 117 federations of 1 to 10 rows, 3 Jacobians lost none and took as
long, and 12 took 1.2 times as long and lost one."""
_GEODESIC_CORRECTIONS = 4
"""Corrections of a step with the same Jacobian, one residual each: they lead back to the floor of a curved valley."""
_LEAST_PROGRESS = 1e-4
"""Relative decrease of the residual below which a fit ends."""
_ROUND_OFF = 1e-11
"""Norm of the residual that rounding in float64 may leave: below it a fit stops after 4 Jacobians that do not halve
it."""
_ROUNDED = 3.0
"""A residual counts as solved if it is at most this many times the residual that the true rows have because of
fixed-point rounding and noise."""


@dataclass(frozen=True)
class SearchResult:
    """The best fit of a search.

    Attributes:
        labels: (rows,) classes.
        fit: the fit of the rows; its point holds their flattened coordinates.
        starts: number of starts tried.
        steps: number of Jacobians computed.
    """

    labels: Array
    fit: LeastSquaresFit
    starts: int = 1
    steps: int = 0


class Search(Protocol):
    """Interface of the methods that solve the equations for the rows and labels."""

    def __call__(self, equations: SumEquations, starts: StartGenerator, rng: np.random.Generator) -> SearchResult:
        """Return the best fit found.

        Args:
            equations: the equations to solve.
            starts: starting points for them.
            rng: draws the random starts.
        """
        ...


@dataclass(frozen=True)
class MultiStartSearch:
    """Fit from one start after the other until a fit is exact or the budget is spent.

    A fit is exact if it explains the messages up to their fixed-point rounding and noise (`solves`). Once every
    plausible label count has been tried, where members come and go in several orders, the search also gives up if all
    fits are poor: so it stops early on messages that no rows explain, such as pure noise. It ends, too, where many fits
    end in the best minimum. The best fit is polished if it is exact to round-off.

    Attributes:
        steps: most Jacobians of a start.
        budget: number of Jacobians after which no further start is tried.
    """

    steps: int = 250
    budget: int = 300

    def __call__(self, equations: SumEquations, starts: StartGenerator, rng: np.random.Generator) -> SearchResult:
        """Return the best fit found."""
        least = max(starts.fewest, self.budget // _STEPS_PER_START)
        best: SearchResult | None = None
        used = same = 0
        for tried, start in enumerate(starts(rng), 1):
            fit = fit_rows(equations, start.labels, start.samples.ravel(), self.steps)
            used += fit.steps
            if best is None or fit.norm < best.fit.norm:  # a norm is never NaN, but infinite where a fit fails
                same *= best is not None and fit.norm >= best.fit.norm * (1 - _SAME_MINIMUM)
                best = SearchResult(start.labels, fit)
            same += fit.norm <= best.fit.norm * (1 + _SAME_MINIMUM)
            best = replace(best, starts=tried, steps=used)
            if solves(equations, fit) or used >= self.budget:
                break
            if tried >= least and (same >= _SAME or best.fit.norm > _HOPELESS * equations.signal):
                break
        assert best is not None  # starts never end
        return replace(best, fit=polished(equations, best.labels, best.fit))


def solves(equations: SumEquations, fit: LeastSquaresFit) -> bool:
    """Return whether a fit explains the messages, up to fixed-point rounding and noise."""
    return fit.norm <= max(SOLVED, _ROUNDED * equations.floor)


def fit_rows(equations: SumEquations, labels: Array, start: Array, steps: int) -> LeastSquaresFit:
    """Fit the rows for given labels by Levenberg-Marquardt.

    Args:
        equations: the equations to solve.
        labels: (rows,) classes.
        start: flattened coordinates of the first guess.
        steps: largest number of Jacobians.
    """

    def residual(point: Array) -> Array:
        return equations.residual(point.reshape(equations.shape), labels)

    return levenberg_marquardt(
        lambda p: equations.linearised(p.reshape(equations.shape), labels),
        start,
        steps=steps,
        goal=EXACT,
        residual=residual,
        patience=StallLimit(_NEAR * equations.signal, far=_FAR, floor=max(_ROUND_OFF, _ROUNDED * equations.floor)),
        stepper=GeodesicAcceleration(residual, _GEODESIC_CORRECTIONS),
        least=_LEAST_PROGRESS,
    )


def polished(equations: SumEquations, labels: Array, fit: LeastSquaresFit) -> LeastSquaresFit:
    """Continue a fit that reached `EXACT` until only round-off is left; return other fits unchanged."""
    if not 0 < fit.norm <= EXACT or equations.floor > EXACT:
        return fit
    return levenberg_marquardt(
        lambda p: equations.linearised(p.reshape(equations.shape), labels), fit.point, steps=_POLISHING_STEPS, goal=0.0
    )
