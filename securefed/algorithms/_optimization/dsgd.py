"""Distributed (S)GD: clients send gradients at the server's model, the server makes the step.

Source: LoSAC (Liu et al.), sec. 5.4, where DSGD is the reference for gradient leakage; Zhu et al., Deep Leakage
from Gradients, sec. 3.1.

In a round the base class calls `steps` for each client, with the broadcast vectors, and `update` at the server, with
the sum of what the survivors sent: the clients whose contributions the sum counts. Vectors have one entry per parameter
of the model; clients that are computed together add a leading axis. n_i is client i's number of rows, N the number of
clients; `public` holds the facts that all parties know.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._public import Public
from securefed._tensors import Array, Ring
from securefed.algorithms._audit_case import ROWS_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._optimization.local_steps import BatchDraw, LocalTraining, Memory, Vectors, batches
from securefed.algorithms._optimization.method import GradientMethod


@algorithms.register(
    "optimization/dsgd",
    summary="Distributed gradient descent: clients send gradients",
    source="LoSAC (Liu et al.), sec. 5.4; Deep Leakage from Gradients (Zhu et al.), sec. 3.1",
    transmits="sum over rows of the gradient at the model",
)
@dataclass(frozen=True, kw_only=True)
class DSGD(GradientMethod):
    """Sum the clients' gradients at the server's model; the server makes the step.

    g_i = n_i * mean gradient at x (a SUM over rows);  x <- x - eta (sum_i g_i) / (sum_i n_i), i over the survivors.

    x is the server's model and eta the `learning_rate`. The numbers n_i are public (`Public.rows`), so the sum of
    gradients is all the server needs. Under secure aggregation, where the server sees only the sum, that sum IS the
    gradient of one client that holds the pooled rows.

    Attributes:
        batch_size: rows of a client's gradient, drawn anew each round; `None` takes all. Their mean gradient is
            multiplied by n_i all the same.
    """

    # Settings with which tests and audits run the method.
    test_settings: ClassVar = {"learning_rate": 0.05}
    audit_case: ClassVar = replace(ROWS_CASE, settings={"problem": "softmax", "learning_rate": 0.1}, default=True)

    batch_size: int | None = None

    sent: ClassVar[tuple[str, ...]] = ("gradient",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size, 1, note="(or None for all rows)")

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Return the sent vectors' bounds, in units of a gradient's largest entry, and their bits in fixed point."""
        return {"gradient": (float(max(public.rows)), 32)}

    def draw(self, rows: int, rng: np.random.Generator) -> BatchDraw:
        """Draw the rows of the one local step, for a client with `rows` rows."""
        return BatchDraw.of(batches(rows, self.batch_size, 1, rng))

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Return `gradient`, g_i, and the memory, which stays empty."""
        return {"gradient": work.rows * work.gradient(received["x"], 0)}, memory

    def update(self, vectors: Vectors, total: Vectors, survivors: Array, public: Public) -> dict[str, Array]:
        """Return the next `x`, by a step against the mean gradient of the survivors' rows."""
        rows = np.asarray(public.rows)[survivors].sum()
        return {"x": vectors["x"] - self.learning_rate * total["gradient"] / rows}
