"""Recover the rows of a FLAME client from its personal models.

In FLAME, a personalised method, client i keeps its personal model theta_i, but sends enough for the server to compute
it after every round t (`admm_recursion`). In each round, local steps of a known rule on the client's rows lead from
theta_i^t to theta_i^{t+1}; the rows are fitted so that simulated steps do the same. This attack, `personal/path`, is
for linear models (logistic and softmax regression); `flame_network_inversion` is for networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._optimization.local_steps import BatchDraw, LocalTraining, Memory, Vectors
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._personalized.flame import FLAME
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._gradient_inversion.fitting_attack import FittingAttack
from securefed.attacks._gradient_inversion.gradient_rounds import GradientRound, why_not_invertible
from securefed.attacks._gradient_inversion.linear_model import LinearModel
from securefed.attacks._gradient_inversion.row_fit_problem import problem_from_rounds
from securefed.attacks._personal.admm_recursion import states_of_view, why_no_states
from securefed.errors import TranscriptError
from securefed.problems._base import Problem


@dataclass(frozen=True)
class FLAMELocalSteps:
    """Simulate the part of FLAME's round that uses rows: the local steps from one personal model to the next.

    theta <- theta - eta (grad f(theta) + lambda (theta - anchor)) from theta = x;  delta = theta - x        (9)

    f is the mean loss of the client's rows, eta the learning rate and lambda the attraction; (9) is of FLAME's paper.
    The anchor is the client's local model w_i at the start of the round, or the broadcast model, as `FLAME.anchor`
    says. To the fit of rows this is a gradient method of its own, which receives x and anchor and sends delta.

    Attributes:
        method: the algorithm.
    """

    method: FLAME

    sent: ClassVar[tuple[str, ...]] = ("delta",)

    @property
    def problem(self) -> Problem:
        """The algorithm's problem."""
        return self.method.problem

    def memory(self, model: Model) -> Memory:
        """Return no vectors: the steps remember nothing."""
        return ()

    def draw(self, rows: int, rng: np.random.Generator) -> BatchDraw:
        """Draw the batches of a round as the algorithm does."""
        return self.method.draw(rows, rng)

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Run the local steps from `received["x"]`, with attraction to `received["anchor"]`.

        Args:
            received: both vectors, (..., parameters).
            memory: not used.
            work: the gradient function, and the number of rows of each step.

        Returns:
            `delta`, by name, and the memory unchanged.
        """
        x, anchor = received["x"], received["anchor"]
        rate, attraction = self.method.learning_rate, self.method.attraction
        theta = x
        for step in range(len(work.sizes)):
            theta = theta - rate * (work.gradient(theta, step) + attraction * (theta - anchor))
        return {"delta": theta - x}, memory


@dataclass(frozen=True)
class FLAMERowFit(FittingAttack):
    """Fit rows to the steps between the personal models that `personal/recursion` computes.

    Each round is simulated from the known personal model at its start, so that errors do not add up over rounds. Rounds
    spread over the whole run are fitted together.
    """

    name: ClassVar[str] = "personal/path"

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None`."""
        if not isinstance(target.algorithm, FLAME):
            return "It follows the personal models of FLAME, and this is another algorithm."
        if len(observed.members) > 1:
            return "It follows one client's personal model, and the view shows a sum of several."
        return why_no_states(observed, target) or why_not_invertible(target, observed)

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Recover the client's rows, (rows, features), and their labels.

        Raises:
            TranscriptError: the attack does not apply to this view.
        """
        if (reason := self.applies(target, observed)) is not None:
            raise TranscriptError(reason)
        method, states, linear = target.algorithm, states_of_view(observed, target), LinearModel.of(target)
        assert isinstance(method, FLAME) and linear is not None  # `applies` refuses others
        model, history = Model(method.problem, target.public), []
        for k, item in enumerate(observed.rounds):
            anchor = states.local[k] if method.anchor == "local" else model.vector("", item.broadcast)
            received = {"x": states.personal[k], "anchor": anchor}
            total = {"delta": states.personal[k + 1] - states.personal[k]}
            history.append(GradientRound(received, total, tuple(item.members)))
        scene = problem_from_rounds(FLAMELocalSteps(method), linear, target.public, tuple(history), rounds=self.rounds)
        return self.solve(scene, rng)
