"""FedProx: federated averaging with a quadratic pull towards the broadcast model.

Source: Li et al., Federated Optimization in Heterogeneous Networks (MLSys 2020), equation (2) and Algorithm 2.

In a round the base class calls `steps` for each client, with the broadcast model; the server's update is FedAvg's.
Vectors have one entry per parameter of the model; clients that are computed together add a leading axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from securefed._hyperparameters import check_number
from securefed._public import require
from securefed._tensors import Array
from securefed.algorithms._audit_case import ROWS_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._optimization.fedavg import FedAvg
from securefed.algorithms._optimization.local_steps import LocalTraining, Memory, Vectors


@algorithms.register(
    "optimization/fedprox",
    summary="Federated averaging with a pull towards the broadcast model",
    source="Li et al. 2020 (FedProx), (2), Algorithm 2",
    transmits="weighted local update",
)
@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """Average models that clients train by local steps with a penalty on the distance from the global model.

    A client starts at y = x, the broadcast model, and takes T steps y <- y - eta (g(y) + mu (y - x)), which
    approximately minimise f_i(y) + mu/2 ||y - x||^2  (2). f_i is the mean loss of client i's rows, g its gradient (on
    a batch where there are batches), eta the `learning_rate`, and T the `local_steps`. The server is FedAvg's: it adds
    the mean of the clients' y - x to x, weighted by their numbers of rows.

    The source leaves the local solver and its accuracy (its gamma) open; here it is T steps of gradient descent. With
    mu = 0 the results are FedAvg's, bit for bit.

    The fixed point need not be the optimum. With several local steps it is biased as FedAvg's is, less so for larger
    mu.

    Attributes:
        mu: weight of the penalty, at least 0, with eta mu <= 1; otherwise a local step could overshoot x, and the
            declared bound would not hold.
    """

    # Settings with which audits run the method.
    audit_case: ClassVar = replace(ROWS_CASE, settings={"problem": "softmax", "learning_rate": 0.05, "local_steps": 5})

    mu: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("mu", self.mu, 0)
        product = self.learning_rate * self.mu
        require(product <= 1, f"learning_rate * mu must be at most 1, not {product:g}; lower one of them")

    # `factors`, the bound of a contribution, is FedAvg's: |u+| <= (1 - eta mu) |u| + eta |g| for u = y - x, so that
    # |u| <= T eta |g| after T steps.

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Return `delta`, y - x after the T steps times the client's weight, and the memory, which stays empty."""
        x = received["x"]
        point = x
        for step in range(len(work.sizes)):
            point = point - self.learning_rate * (work.gradient(point, step) + self.mu * (point - x))
        return {"delta": self.weight(work.rows, work.public) * (point - x)}, memory
