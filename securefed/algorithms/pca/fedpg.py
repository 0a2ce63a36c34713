"""FedPG: federated PCA on the Grassmann manifold by consensus ADMM (fedpca_grassmann, Algorithm 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.algorithms.base import Outcome, Public, require
from securefed.algorithms.pca import server as common
from securefed.algorithms.pca.operators import Gram, check_rank, energy_bound, off, orth, random_basis
from securefed.algorithms.pca.server import BASIS
from securefed.datasets.base import Dataset
from securefed.errors import ConfigError, DivergenceError
from securefed.messages import Aggregate, ClientId
from securefed.state import local
from securefed.tensors import Array, Layout, Tensors, TensorSpec

POINT = "point"


@dataclass(frozen=True)
class FedPGServer:
    """State of the server.

    Attributes:
        mean: Z, (features, rank): a mean of points, orthonormal only at the start and in the limit.
        round: rounds combined so far.
        survivors: of the last round.
        change: ||Z+ - Z||_F / ||Z||_F of the last round; `None` unless the round before had the same survivors.
    """

    mean: Array
    round: int
    survivors: tuple[ClientId, ...]
    change: float | None


@dataclass(frozen=True)
class FedPGClient:
    """State of one client.

    Attributes:
        basis: U_i, (features, rank), orthonormal; `None` before the first contribution.
        dual: Y_i; `None` likewise (zero).
        point: M_i = U_i + Y_i / rho as last sent, from which `settle` makes the dual; `None` once settled.
        scale: 1, or 1 / n_i where the Gram matrix is normalised.
    """

    basis: Array | None
    dual: Array | None
    point: Array | None
    scale: float
    gram: Gram = local()


@dataclass(frozen=True)
class FedPG:
    """C local Riemannian gradient steps on f_i(U) + <Y_i, U - Z> + rho/2 ||U - Z||^2, then a mean of U_i + Y_i / rho.

    f_i(U) = ||(I - U U^T) A_i||_F^2, so grad f_i = -2 (I - U U^T) S_i U for orthonormal U.

    Attributes:
        rank: p.
        rho: penalty. To converge: rho well above 2 lambda_1(S_i).
        step_size: eta. To converge: eta (2 lambda_1 + rho) below about 1.
        local_steps: C.
        normalise: use S_i / n_i instead of S_i, the consistent choice where clients differ in size by much.
        tolerance: stop when ||Z+ - Z||_F <= tolerance ||Z||_F between rounds of the same survivors; 0 never.
        max_rounds: stop after so many rounds.

    The dual update Y_i <- Y_i + rho (U_i - Z+) = rho (M_i - Z+) uses the Z+ of the round contributed to; so
    `settle` needs that broadcast. After a round in which everybody took part the duals sum to zero.
    NOT private: `duals/fedpg` reads U_i and Y_i off the messages.
    """

    rank: int
    rho: float = 1.0
    step_size: float = 0.01
    local_steps: int = 10
    normalise: bool = True
    tolerance: float = 1e-10
    max_rounds: int = 3000
    needs_outcome: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.rank >= 1, f"rank must be at least 1, not {self.rank}")
        for name in ("rho", "step_size"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"{name} must be positive and finite, not {value}")
        require(self.local_steps >= 1, f"local_steps must be at least 1, not {self.local_steps}")
        require(0 <= self.tolerance < 1, f"tolerance must lie in [0, 1), not {self.tolerance}")
        require(self.max_rounds >= 1, f"max_rounds must be at least 1, not {self.max_rounds}")

    def layout(self, public: Public) -> Layout:
        """|M_i| <= |U_i| + |Y_i| / rho, |U_i| <= 1. At a fixed point Y_i = 2 (I - Z Z^T) S_i Z, of norm <= lambda_1.

        The bound 2 + lambda_1-bound / rho leaves room for transients; it is no theorem. Beyond it a client refuses
        (`RangeRefused`) and the federation doubles the bound.
        """
        check_rank(self.rank, public)
        bound = 2 + energy_bound(public, normalised=self.normalise) / self.rho
        return Layout((TensorSpec(POINT, (public.features, self.rank), bound, 64),))

    def start(self, public: Public, rng: np.random.Generator) -> FedPGServer:
        check_rank(self.rank, public)
        return FedPGServer(random_basis(public.features, self.rank, rng), 0, (), None)

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> FedPGClient:
        check_rank(self.rank, public)
        return FedPGClient(None, None, None, 1 / data.rows if self.normalise else 1.0, Gram.of(data.x))

    def broadcast(self, server: FedPGServer) -> Tensors:
        return {BASIS: server.mean}

    def contribute(
        self, client: FedPGClient, broadcast: Tensors, rng: np.random.Generator
    ) -> tuple[FedPGClient, Tensors]:
        Z = broadcast[BASIS]
        U = orth(Z) if client.basis is None else client.basis  # U_i^0 = Z^0; a late client starts at the Z it sees
        Y = np.zeros_like(Z) if client.dual is None else client.dual
        for _ in range(self.local_steps):
            U = local_step(U, client.scale * client.gram.times(U), Y - self.rho * Z, self.step_size)
        point = U + Y / self.rho  # M_i
        return FedPGClient(U, Y, point, client.scale, client.gram), {POINT: point}

    def combine(self, server: FedPGServer, aggregate: Aggregate) -> FedPGServer:
        mean = aggregate.total[POINT] / aggregate.count  # (8), a mean over the survivors
        if not np.isfinite(mean).all():
            raise DivergenceError("the mean point is not finite: lower step_size, or raise rho")
        same = server.survivors == aggregate.survivors
        change = float(np.linalg.norm(mean - server.mean) / np.linalg.norm(server.mean)) if same else None
        return FedPGServer(mean, server.round + 1, aggregate.survivors, change)

    def settle(self, client: FedPGClient, outcome: Outcome) -> FedPGClient:
        """Y_i <- rho (M_i - Z+). Raises `ConfigError` where the outcome lacks the round's own Z+."""
        if outcome.broadcast is None or client.point is None:
            raise ConfigError("FedPG settles a contribution with the broadcast that followed from its round")
        dual = self.rho * (client.point - outcome.broadcast[BASIS])
        return FedPGClient(client.basis, dual, None, client.scale, client.gram)

    def evaluation_layout(self, public: Public) -> Layout:
        return common.evaluation_layout(public)

    def evaluate(self, client: FedPGClient, broadcast: Tensors) -> Tensors:
        """`captured` and `total` energy of the raw rows, for orth(Z)."""
        return common.evaluate(client.gram, orth(broadcast[BASIS]))

    def personal(self, client: FedPGClient) -> None:
        return None

    def finished(self, server: FedPGServer) -> str | None:
        if self.tolerance and server.change is not None and server.change <= self.tolerance:
            return f"Z changed by {server.change:.1e} <= {self.tolerance:g}"
        if server.round >= self.max_rounds:
            return f"{self.max_rounds} rounds, the maximum"
        return None


def local_step(U: Array, SU: Array, linear: Array, step_size: float) -> Array:
    """One step: g = (I - U U^T)[-2 S U + Y + rho (U - Z)], U <- QR(U - eta g).

    Args:
        U: (features, rank), orthonormal.      SU: S U.
        linear: Y - rho Z; the term rho U vanishes under the projection.
    """
    return orth(U - step_size * off(U, linear - 2 * SU))
