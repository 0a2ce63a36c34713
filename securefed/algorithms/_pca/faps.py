"""FAPS: federated PCA by projection splitting (faps, Algorithm 1); the result spans the p leading components.

Client i holds the Gram matrix S_i = A_i A_i^T of its rows and an orthonormal basis X = X_i (features, p), the server an
orthonormal basis Z. In a round a client moves X_i towards Z, and sends Q_i Z with the mask matrix Q_i of (18):

    W        = -(I - X X^T) S_i X                                                       (16), for the X of last time
    H        = S_i + X W^T + W X^T + beta_i Z Z^T                                       (12), (15)
    X       <- the end of subspace iterations V <- orth(H V) from V = X, with W anew at the new X
    Y_i      = Q_i Z = beta_i X (X^T Z) - X (W^T Z) - W (X^T Z)                         (18), (19)
    server:  Z <- orth(sum_i Y_i)

orth is the Q of a QR decomposition. beta_i > 0 is the penalty: large values pull X_i to Z. Rule (25) adapts it, rule
(26) ends the inner iterations. H is positive semidefinite, since it is P S_i P + (I - P) S_i (I - P) + beta_i Z Z^T
with P = X X^T. Where X_i = Z, Y_i = beta_i Z + (I - Z Z^T) S_i Z; so Z then stays exactly if it is stationary for the
pooled rows, (I - Z Z^T) sum_i S_i Z = 0.

SSI below is the method that FAPS is compared with: federated subspace iteration, Z <- orth(sum_i S_i Z). The server's
part and its stop rules are in server.py. A round's survivors are the clients that its sum counts; only
they keep their new state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import numpy as np

from securefed._hyperparameters import check_choice, check_integer, check_positive
from securefed._persistence.packing import local
from securefed._public import Public
from securefed._tensors import Array, Layout, Tensors
from securefed.algorithms._audit_case import GRAM_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._capabilities import result_or_error
from securefed.algorithms._pca.cohort import StackedGrams, groups
from securefed.algorithms._pca.operators import Gram, check_rank, energy_bound, off, orth
from securefed.algorithms._pca.server import BASIS, SubspaceMethod
from securefed.datasets._base import Dataset
from securefed.errors import DivergenceError, SecureFedError

InnerRule = Literal["subspace", "bases", "reach"]
PERIOD, GROWTH, STALL = 5, 1.1, 1.01
"""The paper's constants of rule (25): every PERIOD rounds beta_i grows by the factor GROWTH, unless the distance
d_i = ||X_i X_i^T - Z Z^T||_F has fallen by more than the factor STALL since the last look."""


@dataclass(frozen=True)
class FAPSClient:
    """State of one client.

    Attributes:
        beta: penalty beta_i.
        basis: X_i, (features, rank); `None` before the first contribution, which starts at the Z it is sent.
        mask: W_i = -(I - X X^T) S_i X  (16); `None` before the first contribution.
        round: k, the contributions counted so far.
        distance: ||X X^T - Z Z^T||_F when rule (25) last looked.
        gram: S_i; it never goes into a checkpoint.
    """

    beta: float
    basis: Array | None
    mask: Array | None
    round: int
    distance: float
    gram: Gram = local()


@algorithms.register(
    "pca/faps",
    summary="projection splitting: local subspaces driven to consensus by masked products",
    source="faps Algorithm 1, eqs. (12)-(27)",
    transmits="Q_i Z (features x rank), ||A_i^T Z||_F^2; with a KKT stop also S_i Z",
)
@dataclass(frozen=True)
class FAPS(SubspaceMethod):
    """Move each client's subspace X_i towards the server's Z, and send Q_i Z with the mask matrix Q_i of (18).

    Attributes:
        beta_scale: beta_i starts at beta_scale ||A_i||_2^2. At or below .05 without adaptation the method stagnates.
        adaptive: let beta_i grow by rule (25).
        inner_rule: when the inner iterations end, V being the iterate and V+ the next. `subspace`: once
            ||(I - V V^T) V+||_F <= inner_tolerance ||V+||_F. `bases`, the paper's (26): once ||V+ - V||_F is as small.
            `reach`, a rule of this project: once V+ has left X_i by `reach` times the distance of Z from X_i, or moves
            by no more than `inner_tolerance` times the distance that it has moved.
        inner_tolerance: eps_x of these rules.
        inner_cap: largest number of inner iterations.
        inner_steps: exactly so many inner iterations instead of a rule.
        reach: the setting of the rule of that name, in units of the distance from X_i to Z.

    The paper's test matrices (23)-(24) have singular values xi^(1 - i). The default rule stops by itself; exactly 10
    steps are the published speed on these matrices and fragile (11 or more, or 2, cost two to four times the
    rounds), 5 are a safer fixed choice. Rule (26) compares bases, which rotate inside a subspace: in round 0 it can run
    tens of steps and amplify round-off. `reach` takes fewer rounds than a fixed number on most of these matrices, but
    not on the flattest spectra (xi = 1.002: twice SSI's), nor on clients sorted by class.
    NOT promised: fewer rounds than SSI (clients sorted by class: SSI wins at every beta), convergence under
    partial participation (no theory; X_i and W_i of an absent client go stale), or the privacy that the paper
    argues for (its proposition 5; attack `gram/consensus`).
    """

    # Settings with which audits run the method.
    audit_case: ClassVar = replace(GRAM_CASE, default=True, traced=1)  # a fit for every prefix takes seconds

    beta_scale: float = 0.15
    adaptive: bool = True
    inner_rule: InnerRule = "subspace"
    inner_tolerance: float = 1e-2
    inner_cap: int = 100
    inner_steps: int | None = None
    reach: float = 0.5

    @property
    def contributes_gram_product(self) -> bool:
        """Return whether `product` itself is S_i Z in every round."""
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("beta_scale", self.beta_scale)
        check_choice("inner_rule", self.inner_rule, get_args(InnerRule))
        check_positive("reach", self.reach)
        check_positive("inner_tolerance", self.inner_tolerance)
        check_integer("inner_cap", self.inner_cap, 1)
        if self.inner_steps is not None:
            check_integer("inner_steps", self.inner_steps, 1, note="(or None for a rule)")

    def layout(self, public: Public) -> Layout:
        """Name the tensors of one contribution, with bounds from public facts.

        An entry of Q_i Z is at most ||Q_i||_2 <= beta_i + lambda_1 / 2, since ||(I - P) S P||_2 <= lambda_1 / 2 for a
        projection P and S >= 0 with largest eigenvalue lambda_1. With B >= lambda_1 from public facts, the declared
        bound holds while beta_i <= max(1, 4 beta_scale) B. Should rule (25) go beyond, the client refuses
        (`RangeRefused`) and the federation doubles the bound.
        """
        bound = energy_bound(public)
        return self.contribution_layout(public, (max(1.0, 4 * self.beta_scale) + 0.5) * bound)

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> FAPSClient:
        """Return a client's state before its first round."""
        check_rank(self.rank, public)
        gram = Gram.of(data.x)
        # All-zero data has no scale of its own; any positive beta gives the right (zero-information) step.
        beta = self.beta_scale * gram.norm() or np.finfo(float).tiny
        return FAPSClient(beta, None, None, 0, math.inf, gram)

    def contribute(
        self, client: FAPSClient, broadcast: Tensors, rng: np.random.Generator
    ) -> tuple[FAPSClient, Tensors]:
        """Compute one client's contribution, Y_i = Q_i Z and ||A_i^T Z||_F^2, and its tentative state.

        The state becomes the client's only if the sum counts the contribution.

        Raises:
            DivergenceError: an iterate is not finite.
        """
        Z = broadcast[BASIS]
        X, W = self._start(client, Z)
        return self._result(client, Z, X, self._step(MaskedGram(client.gram, X, W, client.beta, Z)))

    def contribute_together(
        self, clients: Sequence[FAPSClient], broadcast: Tensors, rngs: Sequence[np.random.Generator]
    ) -> list[tuple[FAPSClient, Tensors] | SecureFedError]:
        """Return for each client the result of `contribute`, or the error that it raises; clients are stacked."""
        Z = broadcast[BASIS]
        out: dict[int, tuple[FAPSClient, Tensors] | SecureFedError] = {}
        grams = [client.gram for client in clients]
        for members in groups(grams, [client.basis is None for client in clients]):
            try:
                results: Sequence[tuple[FAPSClient, Tensors] | SecureFedError] = (
                    self._together([clients[i] for i in members], Z) if len(members) > 1 else ()
                )
            except DivergenceError:  # compute the clients one by one to find which of them diverged
                results = ()
            results = results or [result_or_error(self.contribute, clients[i], broadcast, rngs[i]) for i in members]
            out |= dict(zip(members, results, strict=True))
        return [out[i] for i in range(len(clients))]

    def _together(self, clients: Sequence[FAPSClient], Z: Array) -> Sequence[tuple[FAPSClient, Tensors]]:
        """Return for each client the result of `contribute`, computed in one stack."""
        grams = StackedGrams.of([client.gram for client in clients])
        X, W = (np.stack(part) for part in zip(*(self._start(client, Z) for client in clients), strict=True))
        beta = np.array([client.beta for client in clients])[:, None, None]
        results = self._step(MaskedGram(grams, X, W, beta, Z))
        # copies, or one client's state would keep the whole stack alive
        return [
            self._result(client, Z, X[k], (array[k].copy() for array in results)) for k, client in enumerate(clients)
        ]

    def _start(self, client: FAPSClient, Z: Array) -> tuple[Array, Array]:
        """Return the X_i and W_i with which a client starts a round; before its first round X_i is Z."""
        if client.basis is None or client.mask is None:
            return Z, -off(Z, client.gram.times(Z))  # (16)
        return client.basis, client.mask

    def _step(self, H: MaskedGram) -> tuple[Array, Array, Array, Array]:
        """Return the new X_i and W_i, Y_i and S_i Z, of one client or of a stack of them."""
        X = self._inner(H)
        W = -off(X, H.gram.times(X))  # (16)
        XtZ = X.mT @ H.Z
        Y = H.beta * (X @ XtZ) - X @ (W.mT @ H.Z) - W @ XtZ  # Y_i = Q_i Z  (18), (19)
        return X, W, Y, H.gram.times(H.Z)

    def _result(self, client: FAPSClient, Z: Array, X: Array, new: Iterable[Array]) -> tuple[FAPSClient, Tensors]:
        """Return a client's tentative state and its contribution, from its X before the round and `_step`'s results."""
        beta, distance = self._adapt(client, X, Z)
        X, W, Y, product = new
        new_client = replace(client, beta=beta, basis=X, mask=W, round=client.round + 1, distance=distance)
        return new_client, self.contribution(Y, Z, product)

    def _adapt(self, client: FAPSClient, X: Array, Z: Array) -> tuple[float, float]:
        """Return the beta of the NEXT round by rule (25), and the distance d_i when the rule last looked."""
        if not self.adaptive or client.round % PERIOD:
            return client.beta, client.distance
        # ||X X^T - Z Z^T||_F = sqrt(2) ||(I - X X^T) Z||_F, the form that keeps its digits near consensus
        distance = math.sqrt(2) * float(np.linalg.norm(off(X, Z)))
        stalled = client.round > 0 and client.distance <= STALL * distance
        return client.beta * (GROWTH if stalled else 1.0), distance

    def _inner(self, H: MaskedGram) -> Array:
        """Return the new X_i by subspace iterations V <- orth(H V) from V = X_i; in a stack each stops by itself."""
        V, moving = H.X, np.ones((*H.X.shape[:-2], 1, 1), bool)  # `moving`: which clients have not stopped yet
        for _ in range(self.inner_steps or self.inner_cap):
            new = orth(H.times(V))
            if self.inner_steps is not None:
                V = new
                continue
            still = moving & ~self.settled(H.X, H.Z, V, new)
            V, moving = np.where(moving, new, V), still
            if not moving.any():
                break
        return V

    def settled(self, X: Array, Z: Array, old: Array, new: Array) -> Array:
        """Return whether `inner_rule` ends the inner iterations, (..., 1, 1).

        Args:
            X: the basis from which the iterations started.
            Z: the server's basis.
            old: the iterate V.
            new: the next iterate V+.
        """
        if self.inner_rule == "reach":
            moved, away = frobenius(off(X, new)), frobenius(off(X, Z))
            change = frobenius(off(old, new))
            return np.asarray((moved >= self.reach * away) | (change <= self.inner_tolerance * moved))
        difference = off(old, new) if self.inner_rule == "subspace" else new - old  # (26)
        return np.asarray(frobenius(difference) <= self.inner_tolerance * frobenius(new))


def frobenius(matrix: Array) -> Array:
    """Return the Frobenius norm of each matrix of a stack, (..., 1, 1)."""
    return np.asarray(np.linalg.norm(matrix, axis=(-2, -1), keepdims=True))


@dataclass(frozen=True)
class MaskedGram:
    """The matrix H = S + X W^T + W X^T + beta Z Z^T (12), (15), as an operator; it is positive semidefinite.

    It belongs to one client, or to several: then X and W are (clients, features, rank) and beta is (clients, 1, 1).

    Attributes:
        gram: S, the client's Gram matrix.
        X: the client's orthonormal basis.
        W: -(I - X X^T) S X.
        beta: the penalty.
        Z: the server's orthonormal basis, (features, rank).
    """

    gram: Gram | StackedGrams
    X: Array
    W: Array
    beta: float | Array
    Z: Array

    def times(self, V: Array) -> Array:
        """Return H V."""
        multiplier = self.X @ (self.W.mT @ V) + self.W @ (self.X.mT @ V)  # Lambda V  (15)
        product: Array = self.gram.times(V) + multiplier + self.beta * (self.Z @ (self.Z.T @ V))
        return product
