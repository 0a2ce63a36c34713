"""Consensus ADMM for PCA: the common part of FedPG and FedPE (fedpca_grassmann, Algorithms 1 and 2).

Client i has rows, the columns of A_i (features, rows), a basis U_i (features, rank) and dual variables Y_i of the shape
of U_i; the server has the consensus Z.

    minimise  sum_i f_i(U_i)  subject to  U_i = Z,    f_i(U) = ||(I - U U^T) A_i||_F^2                          (3)

    client:  C local steps from U_i that decrease f_i(U) + <Y_i, U - Z> + rho/2 ||U - Z||^2; sends M_i = U_i + Y_i / rho
    server:  Z+ = mean of the M_i of the round's clients                                                       (8)
    client:  Y_i <- Y_i + rho (U_i - Z+), once it has received Z+                                              (9)

The two methods differ in the local step: FedPG keeps U_i orthonormal, FedPE penalises the deviation from it.

In code S_i = A_i A_i^T is the client's Gram matrix. A round's survivors are the clients that its sum counts. Only they
commit their new state, and they do so when the next broadcast has brought them Z+.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed._hyperparameters import check_integer, check_number, check_positive
from securefed._messages import Aggregate, ClientId
from securefed._persistence.packing import local
from securefed._public import Public, require
from securefed._tensors import Array, Layout, Tensors, TensorSpec
from securefed.algorithms._audit_case import AuditCase
from securefed.algorithms._base import Algorithm, RoundOutcome
from securefed.algorithms._capabilities import result_or_error
from securefed.algorithms._pca import server as common
from securefed.algorithms._pca.cohort import StackedGrams, groups
from securefed.algorithms._pca.operators import Gram, check_rank, energy_bound, orth, random_basis
from securefed.algorithms._pca.server import BASIS
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError, DataError, DivergenceError, SecureFedError

POINT = "point"
"""Name of the contribution, M_i."""
BLOWN_UP = 1e6
"""A run has diverged when an entry of a U_i or of Z exceeds this; entries of orthonormal bases are at most 1."""


@dataclass(frozen=True)
class ConsensusServer:
    """State of the server.

    Attributes:
        mean: Z, (features, rank): a mean of points, orthonormal only at the start and in the limit.
        round: rounds combined so far.
        survivors: clients whose points the last mean includes.
        change: ||Z+ - Z||_F / ||Z||_F of the last round; `None` unless the round before had the same survivors.
    """

    mean: Array
    round: int
    survivors: tuple[ClientId, ...]
    change: float | None


@dataclass(frozen=True)
class ConsensusClient:
    """State of one client.

    Attributes:
        basis: U_i, (features, rank); `None` before the first contribution.
        dual: Y_i, of the same shape; `None` stands for zero.
        constraint_dual: T_i, (rank, rank), of FedPE's constraint h(U_i) <= 0, where
            h(U) = max(0, U^T U - I)^2 entry by entry; stays zero for FedPG.
        point: M_i = U_i + Y_i / rho as last sent, from which `commit` computes the dual; `None` after `commit`.
        scale: factor of the Gram matrix: 1, or 1 / n_i where it is normalised.
        gram: the client's Gram matrix S_i; it is never stored with the state.
    """

    basis: Array | None
    dual: Array | None
    constraint_dual: Array
    point: Array | None
    scale: float
    gram: Gram = local()


@dataclass(frozen=True)
class ConsensusPCA(Algorithm[ConsensusServer, ConsensusClient]):
    """Solve consensus PCA by ADMM; the base of FedPG and FedPE.

    Attributes:
        rank: k of the paper, the number of components.
        rho: penalty parameter. To converge it must be well above 2 lambda_1(S_i), with S_i = A_i A_i^T (over n_i where
            normalised). With a smaller rho the runs approach the pooled subspace but do not converge to it.
        step_size: eta.
        local_steps: C.
        normalise: use S_i / n_i instead of S_i, the consistent choice where clients differ in size by much.
        tolerance: stop when ||Z+ - Z||_F <= tolerance ||Z||_F between rounds of the same survivors; 0 never.
        max_rounds: stop after so many rounds.

    Only the participants of a round change their state: Z+ is the mean of THEIR points (8), and they update Y_i with
    the Z+ of the round they contributed to (9), so `commit` needs that broadcast. All other clients keep U_i and Y_i,
    and a client that joins late starts at orth(Z) of the Z that it receives. (The paper draws a random U_i^0 for each
    client before round 0. With a tenth of the clients a round, ours captures more of the variance after 80 rounds in
    three settings of four; docs/reproduction.md has them.) After a round of all clients the duals sum to zero; only
    then does the plain mean of the U_i (11) equal (8). Z is a mean and not orthonormal: its columns span the result,
    and rows are scored with `orth(Z)`. With rho below 2 lambda_1 and few participants, the norm of Z may vary
    several-fold.
    """

    rank: int
    rho: float = 1.0
    step_size: float = 0.01
    local_steps: int = 10
    normalise: bool = True
    tolerance: float = 1e-10
    max_rounds: int = 3000
    needs_outcome: ClassVar[bool] = True
    exact_sums: ClassVar[bool] = True
    # Settings with which tests and audits run the method.
    test_settings: ClassVar = {"rank": 2, "tolerance": 0.0}
    audit_case: ClassVar[AuditCase] = AuditCase(
        settings={"rank": 3, "rho": 1.0, "step_size": 0.01, "local_steps": 1, "normalise": True},
        secret="gram",
        split="standardised=20",
        rounds=13,
        clip=2.0,
        utility="captured_variance",
    )

    def __post_init__(self) -> None:
        check_integer("rank", self.rank, 1, note="(and at most the number of features)")
        for name in ("rho", "step_size"):
            check_positive(name, getattr(self, name))
        require(
            self.step_size * self.rho < 2,
            f"step_size * rho must lie below 2, not {self.step_size} * {self.rho}, or the penalty alone makes "
            "the steps diverge: lower step_size",
        )
        check_integer("local_steps", self.local_steps, 1)
        check_number("tolerance", self.tolerance, 0, 1)
        check_integer("max_rounds", self.max_rounds, 1)

    @abstractmethod
    def step(self, U: Array, SU: Array, linear: Array, constraint_dual: Array) -> Array:
        """Return U after one local step. Shapes are (..., features, rank): leading axes count clients.

        Args:
            U: the iterate.
            SU: S U.
            linear: Y - rho Z.
            constraint_dual: T, (..., rank, rank).
        """

    def next_constraint_dual(self, client: ConsensusClient) -> Array:
        """Return T_i after a round that counted the client's contribution."""
        return client.constraint_dual

    def layout(self, public: Public) -> Layout:
        """Name the tensor of one contribution, M_i, with its bound.

        |M_i| <= |U_i| + |Y_i| / rho and |U_i| <= 1; at a fixed point Y_i = 2 (I - Z Z^T) S_i Z, of norm <= lambda_1.
        The bound 2 + (bound of lambda_1) / rho leaves room for transients, but is not proven. A client whose M_i
        exceeds it raises `RangeRefused`, and the federation doubles the bound.
        """
        check_rank(self.rank, public)
        bound = 2 + energy_bound(public, normalised=self.normalise) / self.rho
        return Layout((TensorSpec(POINT, (public.features, self.rank), bound, 64),))

    def start(self, public: Public, rng: np.random.Generator) -> ConsensusServer:
        """Return the server's state before the first round: Z is a random orthonormal basis."""
        check_rank(self.rank, public)
        return ConsensusServer(random_basis(public.features, self.rank, rng), 0, (), None)

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> ConsensusClient:
        """Return a client's state before its first round; its U_i and Y_i follow from the first Z that it receives."""
        check_rank(self.rank, public)
        scale = 1 / data.rows if self.normalise else 1.0
        return ConsensusClient(None, None, np.zeros((self.rank, self.rank)), None, scale, Gram.of(data.x))

    def broadcast(self, server: ConsensusServer) -> Tensors:
        """Return what the server sends to the clients of the next round: Z as `basis`."""
        return {BASIS: server.mean}

    def check_broadcast(self, broadcast: Tensors, public: Public) -> None:
        """Refuse a mean so large that the server would have stopped with it.

        Raises:
            DataError: an entry is 1e6 or larger.
        """
        largest = float(np.abs(broadcast[BASIS]).max(initial=0.0))
        if not largest < BLOWN_UP:
            raise DataError(f"the mean reaches {largest:.3g}; means of points that have not diverged stay below 1e6")

    def contribute(
        self, client: ConsensusClient, broadcast: Tensors, rng: np.random.Generator
    ) -> tuple[ConsensusClient, Tensors]:
        """Compute one client's contribution M_i.

        Raises:
            DivergenceError: the local steps diverge.
        """
        U, Y = self._start_of_round(client, broadcast[BASIS])
        linear = Y - self.rho * broadcast[BASIS]
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(self.local_steps):
                U = self.step(U, client.scale * client.gram.times(U), linear, client.constraint_dual)
        return self._contribution(client, U, Y)

    def contribute_together(
        self, clients: Sequence[ConsensusClient], broadcast: Tensors, rngs: Sequence[np.random.Generator]
    ) -> list[tuple[ConsensusClient, Tensors] | SecureFedError]:
        """Return for each client the result of `contribute`, or the error that it raises; clients are stacked."""
        out: dict[int, tuple[ConsensusClient, Tensors] | SecureFedError] = {}
        for members in groups([client.gram for client in clients], [None] * len(clients)):
            try:
                moved = self._moved([clients[k] for k in members], broadcast[BASIS])
            except DivergenceError:  # at least one client diverged; compute each alone to find which
                out |= {k: result_or_error(self.contribute, clients[k], broadcast, rngs[k]) for k in members}
                continue
            for k, (U, Y) in zip(members, moved, strict=True):
                out[k] = result_or_error(self._contribution, clients[k], U, Y)
        return [out[k] for k in range(len(clients))]

    def _moved(self, clients: Sequence[ConsensusClient], Z: Array) -> list[tuple[Array, Array]]:
        """Return U_i after the local steps, and Y_i, for clients in one stack."""
        starts = [self._start_of_round(client, Z) for client in clients]
        U, Y = (np.stack(part) for part in zip(*starts, strict=True))
        T = np.stack([client.constraint_dual for client in clients])
        scale = np.array([client.scale for client in clients])[:, None, None]
        grams, linear = StackedGrams.of([client.gram for client in clients]), Y - self.rho * Z
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(self.local_steps):
                U = self.step(U, scale * grams.times(U), linear, T)
        # copies, or one client's state would keep the whole stack alive
        return [(own.copy(), dual) for own, (_, dual) in zip(U, starts, strict=True)]

    def combine(self, server: ConsensusServer, aggregate: Aggregate) -> ConsensusServer:
        """Return the server's next state from the sum of the contributions.

        Raises:
            DivergenceError: an entry of the mean is 1e6 or larger, or not a number.
        """
        mean = aggregate.total[POINT] / aggregate.count  # (8), a mean over the survivors
        if not np.abs(mean).max() < BLOWN_UP:
            raise DivergenceError(
                f"round {server.round}: the mean point reached {np.abs(mean).max():.3g}: lower step_size (now "
                f"{self.step_size:g}), or raise rho (now {self.rho:g})"
            )
        same = server.survivors == aggregate.survivors
        change = float(np.linalg.norm(mean - server.mean) / np.linalg.norm(server.mean)) if same else None
        return ConsensusServer(mean, server.round + 1, aggregate.survivors, change)

    def commit(self, client: ConsensusClient, outcome: RoundOutcome) -> ConsensusClient:
        """Update the dual: Y_i <- Y_i + rho (U_i - Z+) = rho (M_i - Z+)  (9).

        Raises:
            ConfigError: the outcome lacks the Z+ that followed from the round.
        """
        if outcome.broadcast is None or client.point is None:
            raise ConfigError(
                "FedPG and FedPE commit a contribution with the broadcast that followed from its round; it is missing"
            )
        dual = self.rho * (client.point - outcome.broadcast[BASIS])  # (9)
        return replace(client, dual=dual, constraint_dual=self.next_constraint_dual(client), point=None)

    def evaluation_layout(self, public: Public) -> Layout:
        """Name the sums that `evaluate` returns, with bounds."""
        return common.evaluation_layout(public)

    def evaluate(self, client: ConsensusClient, broadcast: Tensors) -> Tensors:
        """Return the energy of the raw rows, `captured` by orth(Z) and in `total`."""
        return common.evaluate(client.gram, orth(broadcast[BASIS]))

    def finished(self, server: ConsensusServer) -> str | None:
        """Return the reason why the run may stop, or `None`."""
        if self.tolerance and server.change is not None and server.change <= self.tolerance:
            return f"Z changed by {server.change:.1e} <= {self.tolerance:g}"
        if server.round >= self.max_rounds:
            return f"{self.max_rounds} rounds, the maximum"
        return None

    @staticmethod
    def _start_of_round(client: ConsensusClient, Z: Array) -> tuple[Array, Array]:
        """Return U_i and Y_i at the start of a round; before a client's first they are orth(Z) and 0."""
        U = orth(Z) if client.basis is None else client.basis
        return U, np.zeros_like(Z) if client.dual is None else client.dual

    def _contribution(self, client: ConsensusClient, U: Array, Y: Array) -> tuple[ConsensusClient, Tensors]:
        """Return a client's tentative state and M_i, from U_i after the local steps and Y_i before them."""
        if not np.abs(U).max() < BLOWN_UP:
            raise DivergenceError(
                f"a client's local steps reached {np.abs(U).max():.3g}: lower step_size (now {self.step_size:g})"
            )
        point = U + Y / self.rho  # M_i
        return replace(client, basis=U, dual=Y, point=point), {POINT: point}
