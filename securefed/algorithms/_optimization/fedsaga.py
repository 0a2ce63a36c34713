"""FedSaga: SAGA on every client, and an average; the naive extension that LoSAC is measured against.

Source: Liu et al., LoSAC: An Efficient Local Stochastic Average Control Method for Federated Optimization,
equations (7)-(9), Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from securefed._hyperparameters import check_choice
from securefed._public import Public
from securefed._tensors import Array, Ring
from securefed.algorithms._audit_case import ROWS_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._optimization.blocks import BlockMethod
from securefed.algorithms._optimization.local_steps import LocalTraining, Memory, Vectors, pick, put

Average = Literal["participants", "clients"]


@algorithms.register(
    "optimization/fedsaga",
    summary="SAGA on every client, and an average",
    source="LoSAC (Liu et al.), (7)-(9), Algorithm 1",
    transmits="local update",
)
@dataclass(frozen=True, kw_only=True)
class FedSaga(BlockMethod):
    """Average models that clients train by local SAGA steps.

    T local SAGA steps (9), x^- the point before the step, f_ij the SUM of block j's losses, n_ij its rows:

        x_i  <- x_i - eta ((n_i / n_ij) (grad f_ij(x_i^-) - y_ij) + sum_j y_ij)
        y_ij <- grad f_ij(x_i^-)

    from x_i = x. (9) prints blocks of one row, n_ij = 1. Sends dx = x_i - x. phi_i = sum_j y_ij is not stored: it is
    summed from the memory, so it cannot drift from it. With one block, phi_i - y_i = 0 and a step is FedAvg's with
    g = n_i * mean gradient; with one client this is SAGA, whose fixed point is the optimum. With several clients
    it drifts as FedAvg does: only the local variance is reduced (sec. 3.1.1).

    Attributes:
        average: `participants`: x <- x + mean of the survivors' dx, "as FedAvg does" (sec. 3.1);
            `clients`: x <- x + (1/N) sum dx, as line 6 of Algorithm 1 prints it, S/N of the former.
    """

    audit_case: ClassVar = replace(
        ROWS_CASE, settings={"problem": "softmax", "learning_rate": 0.05, "local_steps": 2, "blocks": 1}
    )

    average: Average = "participants"

    sent: ClassVar[tuple[str, ...]] = ("dx",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("average", self.average, ("participants", "clients"))

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Bound each contributed vector in units of the gradient's largest entry."""
        self.enough_rows(public)
        # |(n_i / n_ij) grad f_ij| and |phi_i| are each at most n_i gradients.
        return {"dx": (3.0 * self.learning_rate * self.local_steps * max(public.rows), 32)}

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Run the local steps of one round."""
        point, stored = received["x"], list(memory)
        phi = sum(stored[1:], stored[0])
        for step, j in enumerate(work.blocks):
            fresh = work.sizes[step] * work.gradient(point, step)
            change = fresh - pick(stored, j)
            point = point - self.learning_rate * (work.rows / work.sizes[step] * change + phi)  # (9)
            phi = phi + change
            stored = put(stored, j, fresh)  # (8)
        return {"dx": point - received["x"]}, tuple(stored)

    def update(self, vectors: Vectors, total: Vectors, survivors: Array, public: Public) -> dict[str, Array]:
        """Compute the server's next vectors from the sum."""
        count = len(survivors) if self.average == "participants" else public.clients
        return {"x": vectors["x"] + total["dx"] / count}
