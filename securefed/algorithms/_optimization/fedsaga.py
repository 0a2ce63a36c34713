"""FedSaga: SAGA on every client, and an average; the naive extension that LoSAC is measured against.

Source: Liu et al., LoSAC: An Efficient Local Stochastic Average Control Method for Federated Optimization,
equations (7)-(9), Algorithm 1.

SAGA remembers the last gradient of each block of rows. A step on one block takes the block's change of gradient plus
the remembered gradient of all rows: the same mean as the block's gradient, with a variance that vanishes in the limit.

In a round the base class calls `steps` for each client, with the broadcast vectors, and `update` at the server, with
the sum of what the survivors sent: the clients whose contributions the sum counts. Vectors have one entry per parameter
of the model; clients that are computed together add a leading axis. n_i is client i's number of rows, N the number of
clients; `public` holds the facts that all parties know.
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

    from x_i = x, the server's model, with eta the `learning_rate`. A client has M = `blocks` blocks and takes T =
    `local_steps` steps, each on a block j drawn at random. (9) prints blocks of one row, n_ij = 1. The client keeps the
    y_ij from round to round; they are 0 before the first.
    The client sends dx = x_i - x. phi_i = sum_j y_ij is not stored: it is summed from the memory, so it cannot drift
    from it. With one block, phi_i - y_i = 0 and a step is FedAvg's with g = n_i * mean gradient; with one client this
    is SAGA, whose fixed point is the optimum. With several clients it drifts as FedAvg does: only the local variance is
    reduced (sec. 3.1.1).

    Attributes:
        average: `participants`: x <- x + mean of the survivors' dx, "as FedAvg does" (sec. 3.1);
            `clients`: x <- x + (1/N) sum dx, as line 6 of Algorithm 1 prints it: S/N of the former, S survivors.
    """

    # Settings with which audits run the method.
    audit_case: ClassVar = replace(
        ROWS_CASE, settings={"problem": "softmax", "learning_rate": 0.05, "local_steps": 2, "blocks": 1}
    )

    average: Average = "participants"

    sent: ClassVar[tuple[str, ...]] = ("dx",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("average", self.average, ("participants", "clients"))

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Return the sent vectors' bounds, in units of a gradient's largest entry, and their bits in fixed point."""
        self.enough_rows(public)
        # A step subtracts eta times (n_i / n_ij) (grad f_ij - y_ij) + phi_i: three terms, each at most n_i gradients.
        return {"dx": (3.0 * self.learning_rate * self.local_steps * max(public.rows), 32)}

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Return `dx` after the T steps, and the client's new memory, y_ij for each block j."""
        point, stored = received["x"], list(memory)
        phi = sum(stored[1:], stored[0])  # phi_i = sum_j y_ij
        for step, j in enumerate(work.blocks):
            fresh = work.sizes[step] * work.gradient(point, step)  # grad f_ij: the mean gradient times n_ij
            change = fresh - pick(stored, j)
            point = point - self.learning_rate * (work.rows / work.sizes[step] * change + phi)  # (9)
            phi = phi + change
            stored = put(stored, j, fresh)  # (8)
        return {"dx": point - received["x"]}, tuple(stored)

    def update(self, vectors: Vectors, total: Vectors, survivors: Array, public: Public) -> dict[str, Array]:
        """Return the next `x`, by the mean of the survivors' dx or by (1/N) times their sum."""
        count = len(survivors) if self.average == "participants" else public.clients
        return {"x": vectors["x"] + total["dx"] / count}
