"""FedADMM, the baseline of FLAME: one model by consensus ADMM, whose local problems are solved by a few gradient steps.

Source: Gong et al., FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System Heterogeneity,
Algorithm 1 with server step |S| / m; Zhou and Li, Federated Learning via Inexact ADMM. FLAME (Zhu et al.,
`personalized/flame`) compares itself with it. The baseline of the same name in LoSAC is `optimization/fedadmm`.

In a round the base classes call `steps` for each client, with the broadcast vectors, and `update` at the server
(inherited from `ConsensusADMM`), with the sum of what the survivors sent: the clients whose contributions the sum
counts. Vectors have one entry per parameter of the model; clients that are computed together add a leading axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from securefed._hyperparameters import check_choice
from securefed._public import Public
from securefed._tensors import Array, Ring
from securefed.algorithms._audit_case import PERSONAL_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._optimization.local_steps import LocalTraining, Memory, Size, Vectors
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._personalized.admm import ConsensusADMM

Begin = Literal["global", "local"]


@algorithms.register(
    "personalized/fedadmm",
    summary="One model by consensus ADMM, inexact local solves",
    source="Gong et al. 2022, Algorithm 1; FLAME (Zhu et al.), sec. 5",
    transmits="change of the local model plus scaled dual",
)
@dataclass(frozen=True, kw_only=True)
class FedADMM(ConsensusADMM):
    """Train one model by consensus ADMM with inexact local solves.

    min over w and x_i = w of  sum_i m a_i f_i(x_i)

    f_i is the mean loss of client i's rows, x_i its local model, w the server's, pi_i the dual variable of x_i = w, m
    the number of all clients, a_i the client's weight (`weighting`), rho `penalty`, eta `learning_rate`, and H
    `local_epochs`; where that is `None` the client makes `local_steps` steps instead of H passes.

    A client, from the x_i, pi_i that it keeps (at first w^0, the first model, and 0):

        x_i <- x_i - eta (m a_i grad f_i(x_i) + pi_i + rho (x_i - w))       H passes over its batches
        pi_i <- pi_i + rho (x_i - w)

    and it sends dz_i, the change of z_i = x_i + pi_i / rho. The server sets w <- w + (1/m) sum dz_i over the clients
    that the sum counts, so that w = (1/m) sum_i z_i over all m clients; an absent client's z_i stays in it.

    At rest x_i = w and sum_i a_i grad f_i(w) = 0, a minimiser of the weighted loss. Local steps do not converge where
    eta (m a_i L + rho) > 2, L the smoothness of f_i: refused at enrolment where L is known.

    Attributes:
        begin: where the local steps begin. `global`: at the broadcast w; `local`: at the x_i of the last time. Exact
            solves would not differ; FLAME's paper does not say, and its figures need `global`.
    """

    # Settings with which tests and audits run the method.
    test_settings: ClassVar = {"learning_rate": 0.02, "local_steps": 2, "penalty": 0.5}
    audit_case: ClassVar = replace(
        PERSONAL_CASE, settings={"problem": "softmax", "learning_rate": 0.01, "local_steps": 5, "penalty": 0.1}, also=()
    )  # also=(): there is no personal model to attack

    begin: Begin = "global"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("begin", self.begin, ("global", "local"))

    def curvature(self, smoothness: float, rows: int, public: Public) -> float:
        """Bound the curvature of the function that the local steps descend; `smoothness` is that of f_i."""
        return float(self._scale(rows, public)) * smoothness + self.penalty

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Return the sent vectors' bounds, in units of a gradient's largest entry, and their bits in fixed point."""
        # dz = 2 (x_i+ - w) - (x_i - w), with x_i before and x_i+ after the T local steps. Let G = m a_i times a
        # gradient's largest entry, and reach that of the T steps under the pull rho to w.
        #   x_i+ - w: a step makes it 1 - eta rho times as large and subtracts eta (m a_i grad + pi_i). pi_i tends to
        #       minus a gradient, so the bracket is at most 2 G, and T steps give at most 2 reach G.
        #   x_i - w: as much from the w of the client's last round, and w has moved by about as much since: 4 reach G.
        # Together 2 * 2 + 4 = 8. It is planned, not proved: where an entry is larger the sum is void, and it is
        # repeated with twice the bound. Ring 64, since w is a running sum, which would drift in 32 bits.
        scale = float(np.max(self._scale(np.asarray(public.rows, float), public)))
        return {"dz": (8 * scale * self.reach(self.penalty, public), 64)}

    def memory(self, model: Model) -> Memory:
        """Return what a client remembers before its first round: x_i and pi_i."""
        return self.initial(model), model.zeros()

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Return `dz`, the change of z_i, and the client's new memory: x_i and pi_i.

        Args:
            received: w under the name `x`.
            memory: x_i and pi_i.
            work: gives the mean gradient over the rows of each local step.
        """
        w, (old_x_i, old_pi_i), scale = received["x"], memory, self._scale(work.rows, work.public)
        x_i = old_x_i if self.begin == "local" else w
        for step in range(len(work.sizes)):
            gradient = scale * work.gradient(x_i, step)
            x_i = x_i - self.learning_rate * (gradient + old_pi_i + self.penalty * (x_i - w))
        pi_i = old_pi_i + self.penalty * (x_i - w)
        return {"dz": x_i - old_x_i + (1 / self.penalty) * (pi_i - old_pi_i)}, (x_i, pi_i)

    def _scale(self, rows: Size, public: Public) -> Size:
        """Return m a_i, the factor of a client's gradient."""
        return public.clients * self.share(rows, public)
