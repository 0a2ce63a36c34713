"""FedADMM for a smooth loss plus a regulariser: linearised local steps, dual steps, one proximal step at the server.

Source: Liu et al., LoSAC, appendix E, (74)-(84), Algorithm 3, after Zhou and Li, Federated Learning via Inexact ADMM
(arXiv:2204.10607). The personalised FedADMM of FLAME's tables is a different method under another name.

In a round the base class calls `steps` for each client, with the broadcast vectors, and `update` at the server, with
the sum of what the survivors sent: the clients whose contributions the sum counts. Vectors have one entry per parameter
of the model; clients that are computed together add a leading axis. n_i is client i's number of rows, N the number of
clients; `public` holds the facts that all parties know.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from securefed._hyperparameters import check_choice, check_integer, check_positive
from securefed._public import Public, require
from securefed._tensors import Array, Ring
from securefed.algorithms._audit_case import ROWS_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._optimization.local_steps import LocalTraining, Memory, Vectors
from securefed.algorithms._optimization.method import ModelServer
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._optimization.proximal import L1, NoRegulariser, Regulariser, check_regulariser, reach
from securefed.algorithms._optimization.stepping import SteppingMethod

DualSteps = Literal["each", "last"]


@algorithms.register(
    "optimization/fedadmm",
    summary="Linearised consensus ADMM with a regulariser at the server",
    source="LoSAC (Liu et al.), appendix E, (74)-(84), Algorithm 3; Zhou and Li 2022 (arXiv:2204.10607)",
    transmits="change of (the dual plus rho times the local model)",
)
@dataclass(frozen=True, kw_only=True)
class CompositeFedADMM(SteppingMethod):
    """Solve a sum of losses plus a regulariser by linearised consensus ADMM.

    min sum_i f_i(X_i) + Psi(Z), X_i = Z, with f_i the SUM of client i's losses and Psi a regulariser. Z is the server's
    model, X_i client i's, pi_i its dual variable, eta the `learning_rate`. T = `local_steps` times from the X_i, pi_i
    that the client keeps:

        X_i  <- (rho eta Z - eta pi_i + X_i - eta grad f_i(X_i)) / (1 + rho eta)     (83)
        pi_i <- pi_i + rho (X_i - Z)                                                 (84)

    v_i = pi_i + rho X_i; the client sends v_i+ - v_i, so that the server's running sum keeps an absent client's.
    Server (82), H the number of clients heard so far:
    Z = argmin sum_i (rho/2) ||Z - v_i / rho||^2 + Psi(Z) = prox_{Psi / (rho H)}(sum_i v_i / (rho H)).

    Algorithm 3 leaves X_i^0 and pi_i^0 open. Here a client starts at X_i = Z (the first that it receives) and pi_i = 0,
    so v_i = rho Z, which the server adds for it; clients not heard yet are no part of (82), which the paper sums over
    all N clients. With all clients in every round this is Algorithm 3 started at X_i^0 = Z^0. With few of them Z moves
    sooner: N - H silent copies of Z^0 would hold it back, and both have the same fixed points. On digits over 100
    clients, 10 of them in a round, (f(Z) - f*) / (f(Z^0) - f*), with f* the lowest loss known, is .37 after 60 rounds
    where the rows are shuffled and .12 where they are sorted by class, against .54 and .29 with the paper's sum; but on
    sorted digits the loss first rises above f(Z^0) (docs/reproduction.md).

    Invariant: the server's vector `sum` = sum of the v_i of the clients heard. It is a running sum, in which rounding
    errors add up, so the change `dv` is summed in integers of 64 bits. The bound of `dv` is a heuristic: where a client
    exceeds it, the round is repeated with twice the bound.

    With full batches a fixed point is the optimum of sum_i f_i + Psi; it is reached for T = 1. For T > 1 Algorithm 3
    often diverges, on strongly convex problems too: T dual steps against one Z act as one of T rho, where ADMM allows
    (1 + sqrt 5) / 2 rho. `dual_steps="last"` is the remedy.

    Attributes:
        rho: penalty of the distance between X_i and Z, positive.
        regulariser: Psi.
        dual_steps: `each`: (84) after every local step, as Algorithm 3 prints it; `last`: once, after the T-th.
        server_steps: 0 solves (82) in closed form; else so many proximal steps (81) from the old Z, the paper's M.
        server_rate: eta_g of those steps, with eta_g rho N < 2.
    """

    # Settings with which tests and audits run the method.
    test_settings: ClassVar = {"learning_rate": 0.002, "local_steps": 2, "regulariser": L1(0.05)}
    audit_case: ClassVar = replace(ROWS_CASE, settings={"problem": "softmax", "learning_rate": 0.05, "local_steps": 1})

    learning_rate: float = 1e-4
    local_steps: int = 1
    rho: float = 1.0
    dual_steps: DualSteps = "each"
    regulariser: Regulariser = NoRegulariser()
    server_steps: int = 0
    server_rate: float = 1e-4

    sent: ClassVar[tuple[str, ...]] = ("dv",)
    exact_sums: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("rho", self.rho), ("server_rate", self.server_rate)):
            check_positive(name, value)
        check_regulariser(self.regulariser)
        check_choice("dual_steps", self.dual_steps, ("each", "last"))
        check_integer("server_steps", self.server_steps, 0, note="(0: closed form)")

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Return the sent vectors' bounds, in units of a gradient's largest entry, and their bits in fixed point."""
        reach(self.regulariser, self.problem, public)  # refuses a regulariser that does not fit
        product = self.server_rate * self.rho * public.clients
        require(
            not self.server_steps or product < 2,
            f"server_rate * rho * clients must be below 2 or (81) diverges, not {product:g}; lower server_rate",
        )
        # dv is the change of pi_i plus that of rho X_i. pi_i approaches minus a gradient, n_i gradients of one row, and
        # overshoots less than twofold: 2 n_i. rho X_i moves by at most as much: 4 n_i together. A heuristic: where an
        # entry is larger the sum is void, and it is repeated with twice the bound.
        return {"dv": (4.0 * max(public.rows), 64)}

    def memory(self, model: Model) -> Memory:
        """Return X_i, pi_i, and a flag, all 0; the flag is 1, and X_i is used, once the client has taken part."""
        return model.zeros(), model.zeros(), np.zeros(1, self.problem.dtype)

    def start(self, public: Public, rng: np.random.Generator) -> ModelServer:
        """Return the server's state before the first round: Z, the running sum, and which clients were heard."""
        server = super().start(public, rng)
        server.vectors["sum"] = np.zeros_like(server.vectors["x"])
        server.vectors["heard"] = np.zeros(public.clients)
        return server

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Return `dv`, the change of v_i in the T steps, and the client's new memory: X_i, pi_i, and the flag.

        Args:
            received: Z under the name `x`.
            memory: X_i, pi_i and the flag, as `memory` describes them.
            work: gives the mean gradient over the client's rows, and their number n_i.
        """
        z, (stored, dual, joined) = received["x"], memory
        point = joined * stored + (1.0 - joined) * z  # X_i; Z for a client that has not taken part yet
        before, eta = dual + self.rho * point, self.learning_rate
        shrink = 1.0 / (1.0 + self.rho * eta)
        for step in range(self.local_steps):
            gradient = work.rows * work.gradient(point, step)
            point = shrink * (self.rho * eta * z - eta * dual + point - eta * gradient)  # (83)
            if self.dual_steps == "each" or step == self.local_steps - 1:
                dual = dual + self.rho * (point - z)  # (84)
        # the flag becomes 1, by arithmetic since attacks run these steps on dual numbers too
        return {"dv": dual + self.rho * point - before}, (point, dual, 0.0 * joined + 1.0)

    def update(self, vectors: Vectors, total: Vectors, survivors: Array, public: Public) -> dict[str, Array]:
        """Return the next Z as `x`, the running `sum` of the v_i, and for each client whether it was `heard`."""
        heard = vectors["heard"].copy()
        joining = len(survivors) - heard[survivors].sum()  # clients heard for the first time
        heard[survivors] = 1.0
        z = vectors["x"].astype(self.problem.dtype)  # as the clients have it
        summed = vectors["sum"] + total["dv"] + joining * self.rho * z  # v_i = rho Z of a client before its first steps
        return {"x": self._solve(vectors["x"], summed, heard.sum(), public), "sum": summed, "heard": heard}

    def _solve(self, z: Array, summed: Array, heard: float, public: Public) -> Array:
        """Return the next Z by (82), or by `server_steps` steps (81)."""
        layout, prox = Model(self.problem, public).layout, self.regulariser.prox
        if not self.server_steps:
            return prox(summed / (self.rho * heard), 1.0 / (self.rho * heard), layout)
        for _ in range(self.server_steps):
            z = prox(z - self.server_rate * (heard * self.rho * z - summed), self.server_rate, layout)  # (81)
        return z
