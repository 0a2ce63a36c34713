"""FAPS: federated ADMM-like PCA with projection splitting (faps, Algorithm 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from securefed.algorithms.base import Outcome, Public, require
from securefed.algorithms.pca.operators import Gram, check_rank, energy_bound, off, orth
from securefed.algorithms.pca.server import BASIS, SubspaceMethod, evaluate, message, message_layout
from securefed.datasets.base import Dataset
from securefed.state import local
from securefed.tensors import Array, Layout, Tensors

InnerRule = Literal["subspace", "bases"]
PERIOD, GROWTH, STALL = 5, 1.1, 1.01
"""Rule (25): every PERIOD rounds beta grows by GROWTH unless the distance fell by more than the factor STALL."""


@dataclass(frozen=True)
class FAPSClient:
    """State of one client.

    Attributes:
        beta: penalty beta_i.
        basis: X_i, (features, rank); `None` before the first contribution, which starts at the Z it is sent.
        mask: W_i = -(I - X X^T) S_i X  (16); `None` likewise.
        round: k, the contributions counted so far.
        distance: ||X X^T - Z Z^T||_F when rule (25) last looked.
    """

    beta: float
    basis: Array | None
    mask: Array | None
    round: int
    distance: float
    gram: Gram = local()


@dataclass(frozen=True)
class FAPS(SubspaceMethod):
    """Clients move their own subspace X_i towards Z, and send Q_i Z with the mask matrix Q_i of (18).

    Attributes:
        beta_scale: beta_i^0 = beta_scale ||A_i||_2^2. At or below .05 without adaptation the method stagnates.
        adaptive: let beta_i grow by rule (25).
        inner_rule: when the inner iterations end: `subspace` compares subspaces, `bases` is the paper's (26).
        inner_tolerance: eps_x of that rule.
        inner_cap: largest number of inner iterations.
        inner_steps: exactly so many inner iterations instead of a rule.

    The default rule stops by itself; exactly 10 steps are the published speed on (23)-(24) and fragile (11 or
    more, or 2, cost two to four times the rounds), 5 are a safer fixed choice. Rule (26) compares bases, which
    rotate inside a subspace: in round 0 it can run tens of steps and amplify round-off.
    NOT promised: fewer rounds than SSI (clients sorted by class: SSI wins at every beta), convergence under
    partial participation (no theory; X_i and W_i of an absent client go stale), or the privacy that the paper
    argues for (its proposition 5; attack `gram/consensus`).
    """

    beta_scale: float = 0.15
    adaptive: bool = True
    inner_rule: InnerRule = "subspace"
    inner_tolerance: float = 1e-2
    inner_cap: int = 100
    inner_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 < self.beta_scale < math.inf,
            f"beta_scale must be positive and finite, not {self.beta_scale}",
        )
        require(self.inner_rule in ("subspace", "bases"), f"inner_rule is 'subspace' or 'bases', not {self.inner_rule}")
        require(self.inner_tolerance > 0, f"inner_tolerance must be positive, not {self.inner_tolerance}")
        require(self.inner_cap >= 1, f"inner_cap must be at least 1, not {self.inner_cap}")
        require(self.inner_steps is None or self.inner_steps >= 1, "inner_steps must be at least 1, or None for a rule")

    def layout(self, public: Public) -> Layout:
        """||Q_i||_2 <= beta_i + lambda_1 / 2, since ||(I - P) S P||_2 <= lambda_1 / 2 for S >= 0. The bound below holds
        while beta_i <= max(1, 4 beta_scale) lambda_1-bound; should rule (25) go beyond, the client refuses
        (`RangeRefused`) and the federation doubles the bound.
        """
        bound = energy_bound(public)
        return message_layout(public, self.rank, (max(1.0, 4 * self.beta_scale) + 0.5) * bound)

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> FAPSClient:
        check_rank(self.rank, public)
        gram = Gram.of(data.x)
        # All-zero data has no scale of its own; any positive beta gives the right (zero-information) step.
        beta = self.beta_scale * gram.norm() or np.finfo(float).tiny
        return FAPSClient(beta, None, None, 0, math.inf, gram)

    def contribute(
        self, client: FAPSClient, broadcast: Tensors, rng: np.random.Generator
    ) -> tuple[FAPSClient, Tensors]:
        Z, beta = broadcast[BASIS], client.beta
        X, W = client.basis, client.mask
        if X is None or W is None:
            X = Z  # X_i^0 = Z^0
            W = -off(X, client.gram.times(X))
        next_beta, distance = self._adapt(client, X, Z)
        X = self._inner(Masked(client.gram, X, W, beta, Z), X)
        W = -off(X, client.gram.times(X))  # (16)
        t = X.T @ Z
        Y = beta * (X @ t) - X @ (W.T @ Z) - W @ t  # Y_i = Q_i Z  (18), (19)
        captured = float(np.vdot(Z, client.gram.times(Z)))
        return FAPSClient(next_beta, X, W, client.round + 1, distance, client.gram), message(Y, captured)

    def settle(self, client: FAPSClient, outcome: Outcome) -> FAPSClient:
        return client

    def evaluate(self, client: FAPSClient, broadcast: Tensors) -> Tensors:
        return evaluate(client.gram, broadcast[BASIS])

    def personal(self, client: FAPSClient) -> None:
        return None

    def _adapt(self, client: FAPSClient, X: Array, Z: Array) -> tuple[float, float]:
        """Rule (25): the beta of the NEXT round, and the distance it was decided on."""
        if not self.adaptive or client.round % PERIOD:
            return client.beta, client.distance
        # ||X X^T - Z Z^T||_F, in the form that keeps its digits near consensus
        distance = math.sqrt(2) * float(np.linalg.norm(off(X, Z)))
        stalled = client.round > 0 and client.distance <= STALL * distance
        return client.beta * (GROWTH if stalled else 1.0), distance

    def _inner(self, H: Masked, X: Array) -> Array:
        """X_i^{k+1}: subspace iterations V <- orth(H V) from V = X_i^k."""
        for _ in range(self.inner_steps or self.inner_cap):
            new = orth(H.times(X))
            change = off(X, new) if self.inner_rule == "subspace" else new - X  # (26)
            X = new
            if self.inner_steps is None and np.linalg.norm(change) <= self.inner_tolerance * np.linalg.norm(new):
                break
        return X


@dataclass(frozen=True)
class Masked:
    """H = S + X W^T + W X^T + beta Z Z^T as an operator (12), (15); positive semidefinite."""

    gram: Gram
    X: Array
    W: Array
    beta: float
    Z: Array

    def times(self, V: Array) -> Array:
        multiplier = self.X @ (self.W.T @ V) + self.W @ (self.X.T @ V)  # Lambda V  (15)
        return np.asarray(self.gram.times(V) + multiplier + self.beta * (self.Z @ (self.Z.T @ V)))
