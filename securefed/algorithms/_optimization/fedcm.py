"""FedCM: clients mix their gradients with the mean direction of the last round.

Source: Xu et al., FedCM: Federated Learning with Client-level Momentum (arXiv:2106.10874), the FedCM algorithm.

In a round the base class calls `steps` for each client, with the broadcast vectors, and `update` at the server, with
the sum of what the survivors sent: the clients whose contributions the sum counts. Vectors have one entry per parameter
of the model; clients that are computed together add a leading axis. n_i is client i's number of rows, N the number of
clients; `public` holds the facts that all parties know.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from securefed._hyperparameters import check_number, check_positive
from securefed._public import Public
from securefed._tensors import Array, Ring
from securefed.algorithms._audit_case import ROWS_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._optimization.local_steps import LocalTraining, Memory, Vectors
from securefed.algorithms._optimization.stepping import SteppingMethod


@algorithms.register(
    "optimization/fedcm",
    summary="Local gradients mixed with the last round's mean direction",
    source="Xu et al. 2021 (FedCM, arXiv:2106.10874), the FedCM algorithm",
    transmits="local update",
)
@dataclass(frozen=True, kw_only=True)
class FedCM(SteppingMethod):
    """Mix every local gradient with the mean direction of the last round.

    y <- y - eta (alpha g(y) + (1 - alpha) Delta), T times from y = x;  client sends y - x;
    server Delta+ = -(mean over survivors of y - x) / (eta T),   x <- x - eta_g Delta+.

    x is the server's model, y a client's, g the mean gradient over the rows of a step, eta the `learning_rate`, and T
    the `local_steps`. Delta, called `momentum` in messages, has the sign of a gradient: it starts at 0 and stays a mean
    of gradients, so it is bounded as they are. Clients carry no memory. alpha = 1 is FedAvg with uniform weights where
    eta_g = eta T.

    Not guaranteed: that the fixed point is the optimum. Delta is at most as good as the mean of the drifted clients.

    Attributes:
        alpha: weight of the client's own gradient, in (0, 1].
        server_rate: eta_g > 0; `None` is eta T, which moves x by the mean of the local updates.
    """

    # Settings with which audits run the method.
    audit_case: ClassVar = replace(ROWS_CASE, settings={"problem": "softmax", "learning_rate": 0.05, "local_steps": 5})

    alpha: float = 0.1
    server_rate: float | None = None

    received: ClassVar[tuple[str, ...]] = ("x", "momentum")
    sent: ClassVar[tuple[str, ...]] = ("delta",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("alpha", self.alpha, most=1, positive=True)
        if self.server_rate is not None:  # `None` stands for learning_rate * local_steps
            check_positive("server_rate", self.server_rate)

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Return the sent vectors' bounds, in units of a gradient's largest entry, and their bits in fixed point."""
        return {"delta": (self.learning_rate * self.local_steps, 32)}

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Return `delta`, y - x after the T steps, and the memory, which stays empty."""
        x, momentum = received["x"], received["momentum"]
        point = x
        for step in range(self.local_steps):
            direction = self.alpha * work.gradient(point, step) + (1.0 - self.alpha) * momentum
            point = point - self.learning_rate * direction
        return {"delta": point - x}, memory

    def update(self, vectors: Vectors, total: Vectors, survivors: Array, public: Public) -> dict[str, Array]:
        """Return the next `x`, and Delta+ as the next `momentum`."""
        path = self.learning_rate * self.local_steps
        momentum = -total["delta"] / (len(survivors) * path)
        rate = path if self.server_rate is None else self.server_rate
        return {"x": vectors["x"] - rate * momentum, "momentum": momentum}
