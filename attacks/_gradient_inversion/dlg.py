"""Deep leakage from gradients: the exact ratio for one row, otherwise L-BFGS through the simulated local steps.

For logistic and softmax regression. One row x with label y has the gradients (p - y) x^T of the weights and p - y of
the bias, p the predicted probabilities, so that the ratio is x. Local steps on this one row add up such gradients, each
with its own p, so that their sums still have the ratio x. Several rows are searched for: those whose simulated local
steps send the observed messages. Rows are given by their coordinates in the messages' row space (`SumEquations.basis`).

Sources: Zhu et al. 2019, Deep Leakage from Gradients; Zhao et al. 2020, iDLG (labels from signs); Geng et al. 2021
(simulated local steps); Phong et al. 2018 (the ratio of weight to bias gradients).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np
from scipy.optimize import minimize

from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._gradient_inversion.fitting_attack import FittingAttack
from securefed.attacks._gradient_inversion.multistart_search import (
    SOLVED,
    Search,
    SearchResult,
    fit_rows,
    polished,
    solves,
)
from securefed.attacks._gradient_inversion.row_fit_problem import RowFitProblem, problem_from_view
from securefed.attacks._gradient_inversion.starting_points import StartGenerator, StartingPoint
from securefed.attacks._gradient_inversion.sum_equations import SumEquations

_STARTS = 4
"""Largest number of starts; the search stops at the first that explains the messages."""
_ITERATIONS, _LAST_STEPS = 25, 100
"""L-BFGS iterations of each start, and Levenberg-Marquardt steps that refine each end."""
_UNREACHABLE = 1e30
"""Value of the objective where it is not finite, so that the line search turns back."""


@dataclass(frozen=True)
class LBFGSSearch:
    """Minimise the squared residual by L-BFGS from a few starts, and refine each end by Levenberg-Marquardt."""

    def __call__(self, equations: SumEquations, starts: StartGenerator, rng: np.random.Generator) -> SearchResult:
        """Return the best fit found.

        Args:
            equations: what rows and labels must satisfy.
            starts: makes the starting points, labels and rows, one after the other.
            rng: draws them.
        """
        best: SearchResult | None = None
        used = tried = 0
        for start in islice(starts(rng), _STARTS):
            point, evaluations = self._descend(equations, start)
            fit = fit_rows(equations, start.labels, point, _LAST_STEPS)
            used, tried = used + evaluations + fit.steps, tried + 1
            if best is None or fit.norm < best.fit.norm:
                best = SearchResult(start.labels, fit)
            if solves(equations, fit):
                break
        assert best is not None  # starts never end
        return SearchResult(best.labels, polished(equations, best.labels, best.fit), tried, used)

    def _descend(self, equations: SumEquations, start: StartingPoint) -> tuple[Array, int]:
        """Return where L-BFGS ends, coordinates flattened, and the number of evaluations."""

        def objective(point: Array) -> tuple[float, Array]:
            residual, jacobian = equations.linearised(point.reshape(equations.shape), start.labels)
            value = 0.5 * float(residual @ residual)
            return (value, jacobian.T @ residual) if np.isfinite(value) else (_UNREACHABLE, np.zeros_like(point))

        outcome = minimize(
            objective, start.samples.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS}
        )
        return outcome.x, int(outcome.nfev)


@dataclass(frozen=True)
class DLG(FittingAttack):
    """Recover rows by deep leakage from gradients.

    For one row and a model with a bias, the weights' gradient over the bias' gradient is the row, whatever the local
    steps were. Otherwise, or if the ratio does not explain the messages, rows in the messages' row space are fitted to
    several rounds together by L-BFGS.

    Attributes:
        rounds: number of rounds to fit; more are taken if the rows need them.
        search: the search for rows.
    """

    rounds: int = 5
    search: Search = LBFGSSearch()

    name: ClassVar[str] = "gradient_inversion/dlg"

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Recover the rows of data.

        Raises:
            TranscriptError: the attack does not apply to this view.
        """
        problem = problem_from_view(observed, target, rounds=self.rounds)
        exact = self._ratio(problem)
        return self.solve(problem, rng) if exact is None else exact

    @staticmethod
    def _ratio(problem: RowFitProblem) -> Reconstruction | None:
        """Return the row by the ratio, or `None` if it does not explain the messages."""
        equations, model = problem.equations, problem.equations.simulation.model
        if equations.shape[0] != 1 or not model.bias:
            return None
        # one estimated gradient for each round: (outputs, coordinates) of the weights, (outputs,) of the bias
        weights = np.concatenate([model.weight(item.gradient) for item in problem.starts.gradients])
        biases = np.concatenate([np.asarray(model.offset(item.gradient)) for item in problem.starts.gradients])
        energy = float(biases @ biases)
        if energy == 0.0:
            return None
        row: Array = (biases @ weights / energy)[None]  # least squares of weights = biases x^T, all rounds together
        counts = problem.starts.label_counts[0]  # the likeliest: a single 1, at the row's class
        labels = np.repeat(np.arange(len(counts)), counts)
        residual = equations.relative_residual(row, labels)
        if not residual <= SOLVED:
            return None
        return Reconstruction(
            "samples",
            row @ equations.basis,
            labels=labels,
            residual=residual,
            rank=1,  # the one row is one unknown, and is determined
            unknowns=1,
            condition=1.0,
            members=frozenset(equations.simulation.members),
            diagnostics={"ratio": True},
        )
