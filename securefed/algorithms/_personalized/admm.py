"""The base class of FLAME and FedADMM: the server's model is the mean of z_i = w_i + pi_i / rho over all clients.

w_i is client i's local model, pi_i its dual variable of the constraint w_i = w, w the server's model, and rho the
penalty. A client sends the change of z_i, so that the server's sum also holds the z_i of clients that take no part in a
round. A method adds the clients' local steps; the server's `update` here is the same for both. Vectors have one entry
per parameter of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from securefed._hyperparameters import check_choice, check_positive
from securefed._public import Public
from securefed._tensors import Array
from securefed.algorithms._optimization.local_steps import Size, Vectors
from securefed.algorithms._personalized.method import KnownStart

Weighting = Literal["uniform", "rows"]


@dataclass(frozen=True, kw_only=True)
class ConsensusADMM(KnownStart):
    """Base of personalised consensus ADMM with m clients.

    A client sends dz = z_i^{t+1} - z_i^t, and the server sets w <- w + (1/m) sum dz.

    Invariant: w = (1/m) sum_i z_i over ALL m clients, z_i being that of the client's last contribution that a sum
    counted. A client that has never taken part has z_i = w^0, the first model, which all parties know. The methods have
    dz summed in integers of 64 bits: w is a running sum, and in 32 bits rounding would make it drift. The weights a_i
    enter through the clients' local losses, so the mean over the clients is plain.

    Attributes:
        penalty: rho > 0, the penalty of the distance between w_i and the server's w.
        weighting: weights a_i of the clients' losses: `uniform`: a_i = 1/m; `rows`: a_i = n_i / n, the client's share
            of all rows.
    """

    penalty: float = 0.01
    weighting: Weighting = "uniform"

    sent: ClassVar[tuple[str, ...]] = ("dz",)
    exact_sums: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("penalty (rho)", self.penalty)
        check_choice("weighting", self.weighting, ("uniform", "rows"))

    def share(self, rows: Size, public: Public) -> Size:
        """Return the weight a_i of a client with `rows` rows; of several clients, an array."""
        if self.weighting == "rows":
            return rows / float(np.sum(public.rows))
        return 0 * rows + 1.0 / public.clients  # 1 / m in the shape of `rows`

    def reach(self, pull: float, public: Public) -> float:
        """Bound how far local steps get from the point that they are pulled to, in units of a gradient's largest entry.

        A step makes the distance d into (1 - eta pull) d - eta g, with g a gradient and eta the learning rate. From 0,
        steps reach at most the sum of eta |1 - eta pull|^t, and so min(eta T, 1 / pull) where eta pull <= 1. Where it
        is above 1, each step overshoots the point, and the sum is larger than 1 / pull.

        Args:
            pull: strength of the pull, the weight of half the squared distance.
            public: numbers of rows, from which T, the number of steps of the client with the most, follows.
        """
        steps, kept = self.most_steps(public), abs(1 - self.learning_rate * pull)
        if self.learning_rate * pull <= 1:
            return min(self.learning_rate * steps, 1 / pull)
        distance = 0.0
        for _ in range(steps):
            distance = kept * distance + self.learning_rate
        return distance

    def update(self, vectors: Vectors, total: Vectors, survivors: Array, public: Public) -> dict[str, Array]:
        """Return the next w as `x`, from the sum of dz over the clients that it counts."""
        return {"x": vectors["x"] + total["dz"] / public.clients}
