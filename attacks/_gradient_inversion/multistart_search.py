"""Search for a client's rows by Levenberg-Marquardt from many starting points."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
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
"""Norm of the residual at which a search stops, about the round-off of float64."""
SOLVED = 1e-9
"""Norm of the residual below which the rows count as found."""
_POLISHING_STEPS = 4
"""Jacobians spent on an exact fit: without them ill-conditioned rows end at errors of 2e-11 instead of 5e-13."""
_HOPELESS = 0.2
"""Share of the signal that the best fit leaves unexplained, above which a search ends once every plausible label count
has been tried."""
_SAME = 1e-3
"""Relative difference of the residuals below which two batches of starts count as ending in the same minimum."""
_STEPS_PER_START = 75
"""A search may end before its budget is spent only after `budget` divided by this number of starts."""
_NEAR = 0.03
"""Unexplained share of the signal below which a fit may go longer without progress."""
_GEODESIC_CORRECTIONS = 4
"""Further steps with the same Jacobian, one residual each: they lead back to the floor of a curved valley."""
_LEAST_PROGRESS = 1e-4
"""Relative decrease of the residual below which a fit ends."""
_ROUND_OFF = 1e-11
"""Norm of the residual that rounding in float64 may leave: below it a fit soon stops."""
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
        """Return the best fit found."""
        ...


@dataclass(frozen=True)
class MultiStartSearch:
    """Run a batch of starts for a few steps each, then continue the best of them; repeat.

    The search ends when a fit is exact (or as exact as the messages' fixed-point rounding and noise allow), or when the
    budget is spent. Once every plausible label count has been tried, the search also ends if a batch reaches the same
    minimum as an earlier one, or if all fits are poor. So it stops early on messages that no rows explain, such as pure
    noise. An exact fit is polished.

    Attributes:
        starts: starts in a batch.
        first_steps: steps of each start.
        finalists: number of starts of a batch that are continued.
        last_steps: steps of each finalist.
        budget: steps after which no further batch begins.
    """

    starts: int = 4
    first_steps: int = 15
    finalists: int = 2
    last_steps: int = 250
    budget: int = 300

    def __call__(self, equations: SumEquations, starts: StartGenerator, rng: np.random.Generator) -> SearchResult:
        """Return the best fit found."""
        source, used, tried = starts(rng), 0, 0
        counts = len(starts.label_counts) + len(starts.further_label_counts)
        least = max(counts, self.starts, self.budget // _STEPS_PER_START)
        best: SearchResult | None = None
        while best is None or not (solves(equations, best.fit) or used >= self.budget):
            batch = list[SearchResult]()
            for start in islice(source, self.starts):
                fit = fit_rows(equations, start.labels, start.samples.ravel(), self.first_steps)
                batch.append(SearchResult(start.labels, fit))
                used, tried = used + fit.steps, tried + 1
                if solves(equations, fit):
                    break
            ends = list[SearchResult]()
            for one in sorted(batch, key=_norm)[: self.finalists]:
                ends.append(self._finished(equations, one))
                used += ends[-1].steps
                if solves(equations, ends[-1].fit):
                    break
            reached = min(ends, key=_norm)
            again = best is not None and abs(_norm(reached) - _norm(best)) < _SAME * _norm(best)
            best = min(reached, best or reached, key=_norm)
            if tried >= least and (again or _norm(best) > _HOPELESS * equations.signal):
                break
        return SearchResult(best.labels, polished(equations, best.labels, best.fit), tried, used)

    def _finished(self, equations: SumEquations, one: SearchResult) -> SearchResult:
        """Continue the fit of a finalist, unless it is exact or has stopped for lack of progress."""
        if one.fit.steps < self.first_steps or one.fit.norm <= EXACT:
            return one
        fit = fit_rows(equations, one.labels, one.fit.point, self.last_steps)
        return SearchResult(one.labels, fit, steps=fit.steps)


def _norm(one: SearchResult) -> float:
    return one.fit.norm


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
        patience=StallLimit(_NEAR * equations.signal, floor=max(_ROUND_OFF, _ROUNDED * equations.floor)),
        stepper=GeodesicAcceleration(residual, _GEODESIC_CORRECTIONS),
        least=_LEAST_PROGRESS,
    )


def polished(equations: SumEquations, labels: Array, fit: LeastSquaresFit) -> LeastSquaresFit:
    """Continue an exact fit until only round-off is left."""
    if not EXACT >= fit.norm > 0 or equations.floor > EXACT:
        return fit
    return levenberg_marquardt(
        lambda p: equations.linearised(p.reshape(equations.shape), labels),
        fit.point,
        steps=_POLISHING_STEPS,
        goal=0.0,
    )
