"""Find the rows that, run through the clients' own steps, send the observed messages.

From a view of a gradient method on logistic or softmax regression, the attack fits all rows and labels of the members
(the clients whose sum each observed message is) to several rounds together: Levenberg-Marquardt on the difference
between simulated and observed messages. It is registered as `gradient_inversion/fit`, and audits run it. The base class
brings `rounds` (how many to fit), `search` (the fit from many starting points), `limit` (most unknowns) and `solve`
(search, then report).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed.algorithms._optimization.local_steps import BatchDraw
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._gradient_inversion.batch_search import BatchSearch, number_of_draws
from securefed.attacks._gradient_inversion.fitting_attack import FittingAttack, reconstruction
from securefed.attacks._gradient_inversion.gradient_rounds import method_of, read_rounds
from securefed.attacks._gradient_inversion.linear_model import LinearModel
from securefed.attacks._gradient_inversion.losac_two_steps import two_step_problem
from securefed.attacks._gradient_inversion.multistart_search import SOLVED, fit_rows, solves
from securefed.attacks._gradient_inversion.proximal_derivatives import is_proximal
from securefed.attacks._gradient_inversion.row_fit_problem import RowFitProblem, problem_from_view

_LAST_STEPS = 10
"""Jacobians spent on the messages after a fit to gradients at known points: in float64 1 is enough."""


@dataclass(frozen=True)
class SampleFit(FittingAttack):
    """Fit all rows to several simulated rounds by Levenberg-Marquardt, labels unknown, in the messages' row space.

    Every member is simulated separately, so that sums over clients with several local steps are modelled exactly. A
    LoSAC client divides its rows into blocks and stores a gradient of each. With one block and two local steps, the
    gradients of both steps follow from its messages in closed form, and are fitted first (`losac_two_steps`). If one
    client draws mini-batches or blocks at random, its draws are searched for together with its rows; then
    `diagnostics["batches"]` holds the rows of every step of every round, numbered as in the estimate. If that search
    fails, or the view shows a sum of several such clients, full batches stand in for the random ones: the residual is
    large, and `diagnostics["draws"]` gives the reason. Such an estimate is no evidence of protection.

    Attributes:
        batch_search: the search for random draws.
    """

    batch_search: BatchSearch = BatchSearch()

    name: ClassVar[str] = "gradient_inversion/fit"

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Recover the rows of data.

        Raises:
            TranscriptError: the attack does not apply to this view.
        """
        problem = problem_from_view(observed, target, rounds=self.rounds)
        if problem.repeatable:  # the clients' steps use all rows, so that a simulation can repeat them
            return self._from_two_steps(observed, target, problem, rng) or self.solve(problem, rng)
        reason = self._why_no_batch_search(problem)
        if reason is None:
            found = self._with_draws(observed, target, rng)
            # The root, about 3e-5, is the limit of `reconstruction` too: rounded messages leave more than `SOLVED`.
            if found.residual <= np.sqrt(SOLVED):
                return found
            reason = f"searched for in vain: they leave a residual of {found.residual:.1e}"
        plain = self.solve(problem, rng)
        return replace(plain, diagnostics={**plain.diagnostics, "draws": reason})

    def _from_two_steps(
        self, observed: View, target: Target, problem: RowFitProblem, rng: np.random.Generator
    ) -> Reconstruction | None:
        """Fit rows to LoSAC's two gradients a round and then to the messages; `None` if that explains nothing."""
        model = LinearModel.of(target)
        assert model is not None  # `problem_from_view` refuses other models
        rounds = read_rounds(observed, target)
        known = two_step_problem(method_of(target), model, target.public, rounds, rounds=self.rounds)
        if known is None or int(np.prod(known.equations.shape)) > self.limit:
            return None
        found, equations = self.search(known.equations, known.starts, rng), problem.equations
        # `basis` is (coordinates, features): from coordinates of the first problem to features, to those of the second
        rows = found.fit.point.reshape(known.equations.shape) @ known.equations.basis @ equations.basis.T
        fit = fit_rows(equations, found.labels, rows.ravel(), _LAST_STEPS)
        if not solves(equations, fit):
            return None
        return reconstruction(problem, fit.point.reshape(equations.shape), found.labels, replace(found, fit=fit))

    def _why_no_batch_search(self, problem: RowFitProblem) -> str | None:
        """Return why random draws are not searched for, for `diagnostics["draws"]`, or `None` if they are."""
        simulation = problem.equations.simulation
        if len(simulation.members) > 1:
            return "not searched for: the view shows a sum of several clients"
        if any(gradient_round.noise for gradient_round in simulation.rounds):
            return "not searched for: noise hides them"
        if is_proximal(simulation.method):
            return "not searched for: local steps pass through a proximal operator"
        if int(np.prod(problem.equations.shape)) > self.limit:
            return "not searched for: too many rows"
        options = number_of_draws(simulation.method, int(simulation.sizes[0]))
        if options > self.batch_search.options:
            return f"not searched for: a round has {options:.3g}, the limit is {self.batch_search.options}"
        return None

    def _with_draws(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Search for the rows together with the draws of every round."""
        rounds = self.batch_search.rounds
        # LoSAC's clients send changes of stored gradients, whose running sums are about the full gradients later in a
        # run. The starting points are estimated from these sums as if they were the full gradients.
        problem = problem_from_view(observed, target, rounds=rounds)
        starts = problem_from_view(observed, target, rounds=rounds, running_sums=True).starts
        equations, found = self.batch_search(problem.equations, starts, rng)
        known = replace(problem, equations=equations, repeatable=True)
        out = reconstruction(known, found.fit.point.reshape(equations.shape), found.labels, found)
        batches = tuple(_batches(draw, equations.shape[0]) for draw in equations.simulation.draws or ())
        return replace(out, diagnostics={**out.diagnostics, "draws": "found", "batches": batches})


def _batches(draw: BatchDraw, rows: int) -> tuple[tuple[int, ...], ...]:
    """Return the indices of the rows of each local step."""
    return tuple(tuple(int(row) for row in np.arange(rows)[part]) for part in draw.parts)
