"""Compute both gradients of a LoSAC client with two local steps, and their points, from its messages in closed form.

N is the number of clients, eta the learning rate, x the broadcast model and phi the broadcast sum of stored gradients.
With all rows in one block, y the gradient that the client stores, g and g' the gradients of its two steps and x' the
point between them, the client sends the changes (equations (8) and (11) of the paper, which `LoSAC` states, twice)

    dphi = g' - y,      dx = -eta (2 phi / N + (1 + 1/N) (g - y) + g' - g),      x' = x - eta (phi / N + g - y).

This gives g' = y + dphi, then g, then x'; g' is the next round's y. The rows are then fitted to gradients at the known
points x and x', as if DSGD, whose clients send the gradient at the broadcast model, had run a round at each: no steps
are simulated. Clients store y = 0 before the first round, with which the history begins.
`sample_fit` tries this before it simulates steps. It also works at learning rates at which local steps overshoot, where
paths simulated from wrong rows lead the search astray (learning rate 0.3, 1 to 8 digits: all clients' rows, none
without it).
"""

from __future__ import annotations

import numpy as np

from securefed._public import Public
from securefed.algorithms._optimization.dsgd import DSGD
from securefed.algorithms._optimization.losac import LoSAC
from securefed.attacks._gradient_inversion.gradient_rounds import GradientRound, LocalRound
from securefed.attacks._gradient_inversion.linear_model import LinearModel
from securefed.attacks._gradient_inversion.proximal_derivatives import is_proximal
from securefed.attacks._gradient_inversion.row_fit_problem import RowFitProblem, problem_from_rounds


def two_step_problem(
    method: LocalRound, model: LinearModel, public: Public, history: tuple[GradientRound, ...], *, rounds: int
) -> RowFitProblem | None:
    """Build the problem of fitting rows to both gradients of each round.

    Args:
        method: the method whose rounds these are.
        model: the linear model.
        public: the public part of the federation.
        history: the rounds.
        rounds: number of rounds to fit, two gradients each.

    Returns:
        The problem, or `None` if the gradients do not follow from the messages: other methods, sums of clients,
        clips, noise.
    """
    if not isinstance(method, LoSAC) or is_proximal(method) or (method.local_steps, method.blocks) != (2, 1):
        return None
    if any(len(item.members) > 1 or item.clips or item.noise for item in history):
        return None
    if len({item.members for item in history}) > 1:
        return None
    eta, clients, stored = method.learning_rate, public.clients, np.zeros_like(history[0].received["x"])
    gradients, before = list[GradientRound](), 0.0  # `before`: variance that rounding leaves in an entry of `stored`
    for item in history:
        x, phi = item.received["x"], item.received["phi"]
        second = stored + item.total["dphi"]
        first = clients * (-item.total["dx"] / eta - 2 * phi / clients + (1 + 1 / clients) * stored - second)
        middle = x - eta * (phi / clients + first - stored)
        of_dx, of_dphi = (item.rounding.get(part, 0.0) ** 2 for part in ("dx", "dphi"))
        # g' = y + dphi and g = y - N dphi - (N / eta) dx + (what is known): errors of different rounds are independent
        after, of_first = before + of_dphi, before + clients**2 * (of_dphi + of_dx / eta**2)
        gradients += [
            GradientRound({"x": at}, {"gradient": g}, item.members, {"gradient": float(np.sqrt(variance))})
            for at, g, variance in ((x, first, of_first), (middle, second, after))
        ]
        stored, before = second, after
    return problem_from_rounds(DSGD(problem=method.problem), model, public, tuple(gradients), rounds=2 * rounds)
