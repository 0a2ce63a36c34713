"""MimeSVRG: each round the exact gradient of the round's clients, then SVRG steps around it.

Source: Karimireddy et al., Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning (arXiv:2008.03606),
Algorithm 1 with SGD as the base and full-batch gradients in the correction.

SVRG replaces a batch gradient g(y) by g(y) - g(x) + c, with c the full gradient at x: the same mean, and a variance
that vanishes as y approaches x.

In a round the base class calls `steps` for each client, with the broadcast vectors, and `update` at the server, with
the sum of what the survivors sent: the clients whose contributions the sum counts. Vectors have one entry per parameter
of the model; clients that are computed together add a leading axis. `public` holds the facts that all parties know,
such as the numbers of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed._public import Public
from securefed._tensors import Array, Ring, Tensors
from securefed.algorithms._audit_case import ROWS_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._optimization.local_steps import LocalTraining, Memory, Vectors
from securefed.algorithms._optimization.method import ModelServer
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._optimization.stepping import SteppingMethod
from securefed.errors import DataError

PHASE = "phase"
GRADIENT, DESCENT = 0, 1
"""The two phases of a round: clients send gradients, or the mean direction of their local steps."""


@algorithms.register(
    "optimization/mimesvrg",
    summary="The gradient of a round's clients, then local SVRG steps around it",
    source="Karimireddy et al. 2020 (Mime, arXiv:2008.03606), Algorithm 1 with SGD and full-batch corrections",
    transmits="gradient and mean local step, in turn: two exchanges a round",
)
@dataclass(frozen=True, kw_only=True)
class MimeSVRG(SteppingMethod):
    """Train with local SVRG steps around the mean gradient of the round's clients.

    A round of the paper is two exchanges, since the second needs the first one's sum:

        phase 0:  client sends grad f_i(x), all rows.              Server: c <- mean over survivors.
        phase 1:  y <- y - eta (g(y) - g(x) + c), T times from y = x, g on the step's batch both times;
                  client sends (x - y) / (eta T).                  Server: x <- x - eta T (mean over survivors).

    x is the server's model, y a client's, f_i the mean loss of client i's rows, eta the `learning_rate`, and T the
    `local_steps`. The phase is part of the server's state and of every broadcast. In either phase the vector sent is
    called `direction` and is a mean of gradients, so that one bound and one form of message fit both. Each exchange
    draws its own clients, and its own drop out: with sampling, c is the gradient of OTHER clients than those that step,
    where the source has the same ones in both. No state is a running sum of sent vectors, which rounding to fixed point
    would let drift: 32 bits are enough. With all clients in every round, one full-batch step is gradient descent.
    """

    # Settings with which audits run the method.
    audit_case: ClassVar = replace(ROWS_CASE, settings={"problem": "softmax", "learning_rate": 0.05, "local_steps": 2})

    received: ClassVar[tuple[str, ...]] = ("x", "c")
    sent: ClassVar[tuple[str, ...]] = ("direction",)

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Return the sent vectors' bounds, in units of a gradient's largest entry, and their bits in fixed point."""
        return {"direction": (3.0, 32)}  # |g(y)|, |g(x)| and |c| are each at most one gradient

    def start(self, public: Public, rng: np.random.Generator) -> ModelServer:
        """Return the server's state before the first round: the initial model, c = 0, and phase 0."""
        server = super().start(public, rng)
        server.vectors[PHASE] = np.asarray(GRADIENT)
        return server

    def broadcast(self, server: ModelServer) -> Tensors:
        """Return what the server sends to the clients of the next exchange: x, c and the phase."""
        return {**super().broadcast(server), PHASE: server.vectors[PHASE]}

    def check_broadcast(self, broadcast: Tensors, public: Public) -> None:
        """Refuse a broadcast that no server sends.

        Raises:
            DataError: an entry is too large, or the phase is not 0 or 1.
        """
        super().check_broadcast(broadcast, public)
        if int(broadcast[PHASE]) not in (GRADIENT, DESCENT):
            raise DataError(f"phase {int(broadcast[PHASE])}; the phases are {GRADIENT} and {DESCENT}")

    def read(self, model: Model, broadcast: Tensors) -> dict[str, Array]:
        """Return the vectors of a broadcast by name, and `phase`, of shape ()."""
        return super().read(model, broadcast) | {PHASE: np.asarray(broadcast[PHASE])}

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Return `direction`: the gradient at x in phase 0, (x - y) / (eta T) after the T steps in phase 1."""
        x, c = received["x"], received["c"]
        if int(received[PHASE]) == GRADIENT:
            return {"direction": work.anchor(x)}, memory  # the mean gradient over all rows
        point, path = x, 0.0 * x  # zeros of x's shape, by `+ - *` alone (`LocalTraining`)
        for step in range(self.local_steps):
            direction = work.gradient(point, step) - work.gradient(x, step) + c  # both on the batch of this step
            point, path = point - self.learning_rate * direction, path + direction
        return {"direction": path / self.local_steps}, memory

    def update(self, vectors: Vectors, total: Vectors, survivors: Array, public: Public) -> dict[str, Array]:
        """Return the next `x` and `c`, and the phase of the next exchange."""
        mean = total["direction"] / len(survivors)
        if int(vectors[PHASE]) == GRADIENT:
            return {"x": vectors["x"], "c": mean, PHASE: np.asarray(DESCENT)}
        x = vectors["x"] - self.learning_rate * self.local_steps * mean
        return {"x": x, "c": vectors["c"], PHASE: np.asarray(GRADIENT)}
