"""FedAvg: federated averaging of models that clients train by local gradient steps.

Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, Algorithm 1.

In a round the base class calls `steps` for each client, with the broadcast vectors, and `update` at the server, with
the sum of what the survivors sent: the clients whose contributions the sum counts. Vectors have one entry per parameter
of the model; clients that are computed together add a leading axis. n_i is client i's number of rows, N the number of
clients; `public` holds the facts that all parties know.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from securefed._hyperparameters import check_choice
from securefed._public import Public
from securefed._tensors import Array, Ring
from securefed.algorithms._audit_case import ROWS_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._optimization.local_steps import LocalTraining, Memory, Size, Vectors
from securefed.algorithms._optimization.stepping import PassingMethod

Weighting = Literal["rows", "uniform"]


@algorithms.register(
    "optimization/fedavg",
    summary="Federated averaging of local updates",
    source="McMahan et al. 2017, Algorithm 1",
    transmits="weighted local update",
)
@dataclass(frozen=True, kw_only=True)
class FedAvg(PassingMethod):
    """Average the models that clients train by local gradient steps.

    y <- y - eta g(y), T times from y = x;  client sends w_i (y - x);  x <- x + (sum w_i (y_i - x)) / (sum w_i).

    x is the server's model, y a client's, g the mean gradient over the rows of a step, eta the `learning_rate`, and T
    the `local_steps`. The client multiplies by its weight w_i. The survivors' weights are public, so that the server
    can divide by their sum.

    Attributes:
        weighting: `rows`: w_i = n_i over the mean of all n_i (public); `uniform`: w_i = 1.
    """

    # Settings with which audits run the method.
    audit_case: ClassVar = replace(
        ROWS_CASE, settings={"problem": "softmax", "learning_rate": 0.05, "local_steps": 5}, default=True
    )

    weighting: Weighting = "rows"

    sent: ClassVar[tuple[str, ...]] = ("delta",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("weighting", self.weighting, ("rows", "uniform"))

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Return the sent vectors' bounds, in units of a gradient's largest entry, and their bits in fixed point."""
        largest = float(np.max(self.weight(np.asarray(public.rows, float), public)))
        return {"delta": (self.learning_rate * self.most_steps(public) * largest, 32)}

    def weight(self, rows: Size, public: Public) -> Size:
        """Return the weight w_i of a client with `rows` rows (one number, or one for each client)."""
        if self.weighting == "rows":
            return rows / float(np.mean(public.rows))
        return 0 * rows + 1.0  # ones in the shape of `rows`

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Return `delta`, w_i (y - x) after the T steps, and the memory, which stays empty."""
        point = received["x"]
        for step in range(len(work.sizes)):  # one batch size for each local step
            point = point - self.learning_rate * work.gradient(point, step)
        return {"delta": self.weight(work.rows, work.public) * (point - received["x"])}, memory

    def update(self, vectors: Vectors, total: Vectors, survivors: Array, public: Public) -> dict[str, Array]:
        """Return the next `x`, by the weighted mean of the survivors' y - x."""
        weight = np.sum(self.weight(np.asarray(public.rows, float)[survivors], public))
        return {"x": vectors["x"] + total["delta"] / weight}
