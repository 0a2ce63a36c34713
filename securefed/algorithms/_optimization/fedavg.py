"""FedAvg: federated averaging of models that clients train by local gradient steps.

Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, Algorithm 1.
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

    The weight w_i is inside the sum; the survivors' weights are public, so the division is the server's.

    Attributes:
        weighting: `rows`: w_i = n_i over the mean of all n_i (public); `uniform`: w_i = 1.
    """

    audit_case: ClassVar = replace(
        ROWS_CASE, settings={"problem": "softmax", "learning_rate": 0.05, "local_steps": 5}, default=True
    )

    weighting: Weighting = "rows"

    sent: ClassVar[tuple[str, ...]] = ("delta",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("weighting", self.weighting, ("rows", "uniform"))

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Bound each contributed vector in units of the gradient's largest entry."""
        largest = float(np.max(self.weight(np.asarray(public.rows, float), public)))
        return {"delta": (self.learning_rate * self.most_steps(public) * largest, 32)}

    def weight(self, rows: Size, public: Public) -> Size:
        """Return the weight w_i of a client with `rows` rows (one number, or one for each client)."""
        return rows / float(np.mean(public.rows)) if self.weighting == "rows" else 0 * rows + 1.0

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Run the local steps of one round."""
        point = received["x"]
        for step in range(len(work.sizes)):  # one batch size for each local step
            point = point - self.learning_rate * work.gradient(point, step)
        return {"delta": self.weight(work.rows, work.public) * (point - received["x"])}, memory

    def update(self, vectors: Vectors, total: Vectors, survivors: Array, public: Public) -> dict[str, Array]:
        """Compute the server's next vectors from the sum."""
        weight = np.sum(self.weight(np.asarray(public.rows, float)[survivors], public))
        return {"x": vectors["x"] + total["delta"] / weight}
