"""The server half that SSI, LocalPower and FAPS share: Z+ = orth(sum Y_i), and stop rule (27)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.algorithms.base import Public, require
from securefed.algorithms.pca.operators import Gram, check_rank, energy_bound, orth, random_basis
from securefed.errors import DivergenceError
from securefed.messages import Aggregate, ClientId
from securefed.tensors import Array, Layout, Tensors, TensorSpec

PRODUCT = "product"
CAPTURED = "captured"
TOTAL = "total"
BASIS = "basis"


@dataclass(frozen=True)
class SubspaceServer:
    """State of the server between rounds.

    Attributes:
        basis: Z^k, (features, rank), orthonormal.
        round: k, the rounds combined so far.
        captured: sum ||A_i^T Z^{k-1}||_F^2 over the survivors of the last round; `None` before the first.
        survivors: the clients of that round.
        change: |relative change of `captured`| to the round before; `None` unless both had the same survivors.
    """

    basis: Array
    round: int
    captured: float | None
    survivors: tuple[ClientId, ...]
    change: float | None


@dataclass(frozen=True)
class SubspaceMethod:
    """What the three subspace methods have in common.

    Attributes:
        rank: p, the number of components.
        tolerance: of stop rule (27), relative; 0 never stops by it.
        max_rounds: stop after so many rounds.

    Stop rule (27) is compared only between rounds of the same survivors. Under noise or under a coarse ring it
    may stop early or never; `max_rounds` always holds.
    """

    rank: int
    tolerance: float = 1e-10
    max_rounds: int = 3000
    needs_outcome: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(self.rank >= 1, f"rank must be at least 1, not {self.rank}")
        require(0 <= self.tolerance < 1, f"tolerance must lie in [0, 1), not {self.tolerance}")
        require(self.max_rounds >= 1, f"max_rounds must be at least 1, not {self.max_rounds}")

    def start(self, public: Public, rng: np.random.Generator) -> SubspaceServer:
        check_rank(self.rank, public)
        return SubspaceServer(random_basis(public.features, self.rank, rng), 0, None, (), None)

    def broadcast(self, server: SubspaceServer) -> Tensors:
        return {BASIS: server.basis}

    def combine(self, server: SubspaceServer, aggregate: Aggregate) -> SubspaceServer:
        captured = float(aggregate.total[CAPTURED])
        if not np.isfinite(captured):
            raise DivergenceError("the summed stop-rule scalar is not finite")
        return SubspaceServer(
            basis=orth(aggregate.total[PRODUCT]),  # Z^{k+1} in orth(sum Y_i)  (2), (19)
            round=server.round + 1,
            captured=captured,
            survivors=aggregate.survivors,
            change=_change(server, captured, aggregate.survivors),
        )

    def evaluation_layout(self, public: Public) -> Layout:
        return evaluation_layout(public)

    def finished(self, server: SubspaceServer) -> str | None:
        if self.tolerance and server.change is not None and server.change <= self.tolerance:
            return f"rule (27): the captured energy changed by {server.change:.1e} <= {self.tolerance:g}"
        if server.round >= self.max_rounds:
            return f"{self.max_rounds} rounds, the maximum"
        return None


def message_layout(public: Public, rank: int, product_bound: float) -> Layout:
    """Y_i (features, rank) and the scalar ||A_i^T Z||_F^2 of rule (27), each in a ring of 64 bits."""
    check_rank(rank, public)
    return Layout(
        (
            TensorSpec(PRODUCT, (public.features, rank), product_bound, 64),
            TensorSpec(CAPTURED, (), energy_bound(public), 64),
        )
    )


def message(product: Array, captured: float) -> Tensors:
    """One contribution in the layout above."""
    return {PRODUCT: product, CAPTURED: np.asarray(captured)}


def evaluation_layout(public: Public) -> Layout:
    """Two sums: the energy that the basis captures, and all of it."""
    bound = energy_bound(public)
    return Layout((TensorSpec(CAPTURED, (), bound, 64), TensorSpec(TOTAL, (), bound, 64)))


def evaluate(gram: Gram, basis: Array) -> Tensors:
    """`captured` = ||A^T Z||_F^2 and `total` = ||A||_F^2; `basis` is orthonormal."""
    return {CAPTURED: np.asarray(np.vdot(basis, gram.times(basis))), TOTAL: np.asarray(gram.trace())}


def _change(server: SubspaceServer, captured: float, survivors: tuple[ClientId, ...]) -> float | None:
    if server.captured is None or server.survivors != survivors:
        return None
    return abs(captured - server.captured) / max(abs(captured), np.finfo(float).tiny)  # (27)
