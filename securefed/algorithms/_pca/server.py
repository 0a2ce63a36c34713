"""The server of SSI, LocalPower and FAPS: it sums the clients' Y_i, sets Z+ = orth(sum_i Y_i), and stops by a rule.

Z (features, rank) is the orthonormal basis that the server broadcasts, A_i (features, rows) client i's data, and
S_i = A_i A_i^T its Gram matrix. Y_i depends on the method; it is S_i Z for SSI. orth is the Q of a QR decomposition.
The stop rules are "energy", the relative change of the captured energy sum_i ||A_i^T Z||_F^2  (27), and "kkt", the
residual ||(I - Z Z^T) sum_i S_i Z||_F of the optimality condition. Equation numbers are those of the FAPS paper.

A run calls `broadcast` and, with the sum of what the clients sent, `combine`, until `finished` gives a reason to stop.
The survivors of a round are the clients that its sum counts.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from securefed._hyperparameters import check_choice, check_integer, check_number
from securefed._messages import Aggregate, ClientId
from securefed._public import Public
from securefed._tensors import Array, Layout, Tensors, TensorSpec
from securefed.algorithms._base import Algorithm
from securefed.algorithms._pca.operators import (
    Gram,
    check_orthonormal,
    check_rank,
    energy_bound,
    off,
    orth,
    product_bound,
    random_basis,
)
from securefed.errors import DivergenceError

BASIS = "basis"
"""The broadcast Z."""
PRODUCT, GRAM_PRODUCT, CAPTURED = "product", "gram_product", "captured"
"""Tensors of a contribution: Y_i, S_i Z (where a stop rule needs it and Y_i is another), ||A_i^T Z||_F^2."""
TOTAL = "total"
"""The sum that an evaluation has beside CAPTURED: sum_i ||A_i||_F^2."""

Stop = Literal["energy", "kkt"]
TOLERANCE = {"energy": 1e-10, "kkt": 1e-4}
"""Tolerance used for `tolerance=None`: the paper's in (27), and the residual that reproduces its printed errors."""


@dataclass(frozen=True)
class SubspaceServer:
    """State of the server between rounds.

    Attributes:
        basis: Z^k, (features, rank), orthonormal.
        round: k, the rounds combined so far.
        captured: sum ||A_i^T Z^{k-1}||_F^2 over the survivors of the last round; `None` before the first.
        survivors: the clients of that round.
        change: |relative change of `captured`| to the round before; `None` unless both had the same survivors.
        residual: ||(I - Z Z^T) sum S_i Z||_F at the Z that the last round was sent; `None` unless the stop is "kkt".
    """

    basis: Array
    round: int
    captured: float | None
    survivors: tuple[ClientId, ...]
    change: float | None
    residual: float | None


@dataclass(frozen=True)
class SubspaceMethod(Algorithm[SubspaceServer, Any]):
    """Base class of the three subspace methods.

    Attributes:
        rank: p, the number of components.
        tolerance: the tolerance of the stop rule: relative for "energy", in units of the squared data for "kkt"; 0
            never stops by it, `None` is 1e-10 and 1e-4 respectively.
        max_rounds: stop after so many rounds.
        stop: "energy" is rule (27), the relative change of sum ||A_i^T Z||_F^2; "kkt" stops at the first Z with
            ||(I - Z Z^T) sum S_i Z||_F <= tolerance, which is then the output.

    "kkt" needs sum S_i Z. SSI sends nothing else. LocalPower with several local steps and FAPS send it as a further
    tensor, `gram_product`, which doubles the upload. The server then has what SSI would send it, so that FAPS hides S_i
    no better than SSI does (faps proposition 2; attack `gram/power`).

    What the rules do not do:
    - Rule (27) is compared only between rounds of the same survivors. The residual is that of its round's survivors
      alone: a Z that is stationary for them stops the run though it is not for all, and while survivors change the
      residual seldom falls to the tolerance.
    - Noise of standard deviation s on an entry of the sum adds about s sqrt(features x rank) to the residual: with a
      smaller tolerance it never stops the run. (27) may then stop it early or never, as with few bits in fixed point.
    - Both find stationary points: that the subspace is the dominant one follows from the random start.
    `max_rounds` always holds.
    """

    rank: int
    tolerance: float | None = None
    max_rounds: int = 3000
    stop: Stop = "energy"

    # Settings with which tests run the method.
    test_settings: ClassVar = {"rank": 2, "tolerance": 0.0}

    def __post_init__(self) -> None:
        check_integer("rank", self.rank, 1, note="(and at most the number of features)")
        check_choice("stop", self.stop, tuple(TOLERANCE))
        largest = 1.0 if self.stop == "energy" else math.inf
        check_number("tolerance", self.threshold, 0, largest)
        check_integer("max_rounds", self.max_rounds, 1)

    @property
    def threshold(self) -> float:
        """Tolerance of the stop rule: `tolerance`, or the rule's own where that is `None`."""
        return TOLERANCE[self.stop] if self.tolerance is None else self.tolerance

    @property
    @abstractmethod
    def contributes_gram_product(self) -> bool:
        """Return whether `product` itself is S_i Z in every round."""

    @property
    def sends_gram_product(self) -> bool:
        """Return whether contributions carry S_i Z beside their own product, for the stop rule."""
        return self.stop == "kkt" and not self.contributes_gram_product

    def start(self, public: Public, rng: np.random.Generator) -> SubspaceServer:
        """Return the server's state before the first round, with a random orthonormal basis."""
        check_rank(self.rank, public)
        return SubspaceServer(random_basis(public.features, self.rank, rng), 0, None, (), None, None)

    def broadcast(self, server: SubspaceServer) -> Tensors:
        """Return what the server sends to the clients of the next round: Z as `basis`."""
        return {BASIS: server.basis}

    def check_broadcast(self, broadcast: Tensors, public: Public) -> None:
        """Refuse a basis that is not orthonormal, which the bounds of contributions assume.

        Raises:
            DataError: the basis is not orthonormal.
        """
        check_orthonormal(broadcast[BASIS])

    def combine(self, server: SubspaceServer, aggregate: Aggregate) -> SubspaceServer:
        """Return the server's next state from the sum of the contributions.

        Raises:
            DivergenceError: a sum is not finite.
        """
        total = aggregate.total
        captured = float(total[CAPTURED])
        if not np.isfinite(captured):
            raise DivergenceError("the summed stop-rule scalar is not finite")
        residual = self._residual(server.basis, total)
        return SubspaceServer(
            # Z^{k+1} = orth(sum Y_i)  (2), (19); a Z^k found stationary stays
            basis=server.basis if self._stationary(residual) else orth(total[PRODUCT]),
            round=server.round + 1,
            captured=captured,
            survivors=aggregate.survivors,
            change=_change(server, captured, aggregate.survivors),
            residual=residual,
        )

    def evaluation_layout(self, public: Public) -> Layout:
        """Name the sums that `evaluate` returns, with bounds."""
        return evaluation_layout(public)

    def evaluate(self, client: Any, broadcast: Tensors) -> Tensors:
        """Return the energy of the client's rows, `captured` by Z and in `total`."""
        return evaluate(client.gram, broadcast[BASIS])

    def finished(self, server: SubspaceServer) -> str | None:
        """Return the reason why the run may stop, or `None`."""
        if self._stationary(server.residual):
            return f"the KKT residual is {server.residual:.1e} <= {self.threshold:g}"
        if self.stop == "energy" and self.threshold and server.change is not None and server.change <= self.threshold:
            return f"rule (27): the captured energy changed by {server.change:.1e} <= {self.threshold:g}"
        if server.round >= self.max_rounds:
            return f"{self.max_rounds} rounds, the maximum"
        return None

    def contribution_layout(self, public: Public, bound: float) -> Layout:
        """Name the tensors of a contribution, each summed in integers of 64 bits under defences in fixed point.

        These are Y_i as `product` (features, rank), with entries up to `bound`, the scalar ||A_i^T Z||_F^2 of rule (27)
        as `captured`, and S_i Z as `gram_product` where the stop rule needs it and Y_i is another.
        """
        check_rank(self.rank, public)
        shape = (public.features, self.rank)
        specs = [TensorSpec(PRODUCT, shape, bound, 64), TensorSpec(CAPTURED, (), energy_bound(public), 64)]
        if self.sends_gram_product:
            specs.append(TensorSpec(GRAM_PRODUCT, shape, product_bound(public), 64))
        return Layout(tuple(specs))

    def contribution(self, product: Array, basis: Array, gram_product: Array) -> Tensors:
        """Return the tensors of `contribution_layout`.

        Args:
            product: Y_i.
            basis: Z.
            gram_product: S_i Z, from which `captured` = tr(Z^T S_i Z) follows.
        """
        out = {PRODUCT: product, CAPTURED: np.reshape(np.vdot(basis, gram_product), ())}
        return out | {GRAM_PRODUCT: gram_product} if self.sends_gram_product else out

    def _residual(self, basis: Array, total: Tensors) -> float | None:
        """Return ||(I - Z Z^T) sum S_i Z||_F; `None` where the stop rule is another."""
        if self.stop != "kkt":
            return None
        residual = float(np.linalg.norm(off(basis, total[GRAM_PRODUCT if self.sends_gram_product else PRODUCT])))
        if not np.isfinite(residual):
            raise DivergenceError("the summed products S_i Z are not finite")
        return residual

    def _stationary(self, residual: float | None) -> bool:
        """Return whether the residual stops the run."""
        return residual is not None and self.threshold > 0 and residual <= self.threshold


def evaluation_layout(public: Public) -> Layout:
    """Name the two sums of an evaluation: the energy that the basis captures, and all of it."""
    bound = energy_bound(public)
    return Layout((TensorSpec(CAPTURED, (), bound, 64), TensorSpec(TOTAL, (), bound, 64)))


def evaluate(gram: Gram, basis: Array) -> Tensors:
    """Return `captured` = ||A^T Z||_F^2 and `total` = ||A||_F^2 for an orthonormal `basis` Z."""
    return {CAPTURED: np.asarray(np.vdot(basis, gram.times(basis))), TOTAL: np.asarray(gram.trace())}


def _change(server: SubspaceServer, captured: float, survivors: tuple[ClientId, ...]) -> float | None:
    """Return the relative change of the captured energy; `None` unless both rounds had the same survivors."""
    if server.captured is None or server.survivors != survivors:
        return None
    return abs(captured - server.captured) / max(abs(captured), np.finfo(float).tiny)  # (27)
