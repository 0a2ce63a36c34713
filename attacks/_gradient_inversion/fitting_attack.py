"""Base of the attacks that fit rows to simulated rounds: solve the equations and report the rows.

An attack turns a view into a `RowFitProblem`: equations `simulated messages(rows, labels) - observed messages = 0`, and
starting points for them. `FittingAttack.solve` minimises the norm of their left side over rows and labels by the
attack's search, or, where a defence added noise of known size, computes the rows' posterior mean. Rows are unknown in
the messages' row space only: rows = coordinates @ `equations.basis`, with basis (coordinates, features).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._gradient_inversion.gradient_rounds import why_not_invertible
from securefed.attacks._gradient_inversion.multistart_search import SOLVED, MultiStartSearch, Search, SearchResult
from securefed.attacks._gradient_inversion.posterior_estimate import PosteriorEstimate, has_known_noise
from securefed.attacks._gradient_inversion.proximal_derivatives import is_proximal
from securefed.attacks._gradient_inversion.row_fit_problem import RowFitProblem
from securefed.errors import TranscriptError

SIGN_OPEN: Final = (
    "each row's sign, and with it its label, since (x, label 0) and (-x, label 1) have the same gradients without a "
    "bias (taken so that each row's sum is positive; wrong for rows that are not)"
)
"""`Reconstruction.open` of models without a bias (`LinearModel.mirrored`), for the reader of a report."""
_RANK_TOLERANCE = 1e-10
"""Singular values of the Jacobian below this share of the largest do not count for the rank."""
_PROXIMAL_COST = 3
"""Factor by which `limit` is smaller for proximal methods, which are fitted in all coordinates at a higher cost."""


@dataclass(frozen=True)
class FittingAttack:
    """Fit rows to simulated rounds.

    Attributes:
        rounds: smallest number of rounds to fit, if the view has them.
        search: how the equations are solved.
        limit: number of unknowns (rows * coordinates) above which the first starting point is returned unfitted.
    """

    rounds: int = 4
    search: Search = MultiStartSearch()
    limit: int = 640

    secret: ClassVar[str] = "samples"

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack does not apply, or `None` if it does."""
        return why_not_invertible(target, observed)

    def solve(self, problem: RowFitProblem, rng: np.random.Generator) -> Reconstruction:
        """Search for the rows; an estimate that does not fit is clipped to the public range of features.

        Raises:
            TranscriptError: the messages lead to numbers that are not finite.
        """
        equations, limit = problem.equations, self.limit
        if has_known_noise(problem.simulation):
            return self._posterior(problem, rng)
        if not all(np.isfinite(item.gradient).all() for item in problem.starts.gradients):
            raise TranscriptError("the view's messages lead to numbers that are not finite")
        if is_proximal(equations.simulation.method):
            limit = limit // _PROXIMAL_COST
        if int(np.prod(equations.shape)) > limit:
            start = next(problem.starts(rng))
            return reconstruction(problem, problem.starts.samples(start.labels), start.labels, None)
        found = self.search(equations, problem.starts, rng)
        return reconstruction(problem, found.fit.point.reshape(equations.shape), found.labels, found)

    def _posterior(self, problem: RowFitProblem, rng: np.random.Generator) -> Reconstruction:
        """Return the posterior mean under known noise; or a fit, if the mean leaves more than noise and a fit less.

        The posterior's equations are scaled by the noise. Those that are reported get the scales of the problem, so
        that the residual is relative to the messages as everywhere.
        """
        estimate = PosteriorEstimate.of(problem.simulation)
        if not estimate.explained and int(np.prod(problem.equations.shape)) <= self.limit:
            found = self.search(problem.equations, problem.starts, rng)
            rows = found.fit.point.reshape(problem.equations.shape) @ problem.equations.basis
            estimate = min(estimate, estimate.fitted(rows, found.labels), key=lambda one: one.objective)
        equations = replace(estimate.equations, scales=problem.equations.scales)
        out = reconstruction(replace(problem, equations=equations), estimate.coordinates, estimate.labels, None)
        return replace(
            out,
            unknowns=estimate.rows.size,
            diagnostics={**out.diagnostics, "explained": estimate.explained, "certain labels": estimate.certain},
        )


def reconstruction(
    problem: RowFitProblem, coordinates: Array, labels: Array, found: SearchResult | None
) -> Reconstruction:
    """Report rows in the features' own units, with the rank and condition of the equations there.

    Args:
        problem: the problem that was solved.
        coordinates: (rows, coordinates) the solution.
        labels: (rows,) its labels.
        found: the search that found it; `None` where none ran, so that there is no Jacobian.

    Returns:
        The rows, clipped to their public range if they do not explain the messages.
    """
    equations = problem.equations
    bound = equations.simulation.public.feature_bound
    samples = coordinates @ equations.basis
    residual = equations.relative_residual(coordinates, labels)
    if not residual <= np.sqrt(SOLVED):  # about 3e-5: rounded messages leave more than `SOLVED`
        samples = np.clip(np.nan_to_num(samples), -bound, bound)
    mirrored = equations.simulation.model.mirrored
    if mirrored:  # (x, 0) and (-x, 1) fit equally well; most features are positive
        labels = (samples.sum(axis=1) < 0).astype(np.int64)
        samples = np.where(labels[:, None] == 1, -samples, samples)
    out = Reconstruction(
        "samples",
        samples,
        labels=labels,
        residual=residual,
        unknowns=int(np.prod(equations.shape)),
        members=frozenset(equations.simulation.members),
        diagnostics={
            "coordinates": len(equations.basis),
            "starts": found.starts if found else 0,
            "steps": found.steps if found else 0,
            "known points": problem.known_points,  # whether gradients at known parameters were fitted, without steps
            "full batches assumed": not problem.repeatable,  # in place of the clients' random ones
        },
        open=(SIGN_OPEN,) if mirrored else (),
    )
    if found is None or not found.fit.jacobian.size or not np.isfinite(found.fit.jacobian).all():
        return out
    values = np.linalg.svd(found.fit.jacobian, compute_uv=False)
    kept = values[values > _RANK_TOLERANCE * values[0]]
    condition = float(kept[0] / kept[-1]) if kept.size else float("nan")
    return replace(out, rank=int(kept.size), condition=condition)
