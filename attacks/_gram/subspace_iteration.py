"""Reconstruct Gram matrices from subspace iteration (SSI, simultaneous subspace iteration).

SSI is federated PCA. Client i has the rows A_i^T and the Gram matrix S_i = A_i A_i^T, (features, features). In round k
the server broadcasts an orthonormal basis Z_k, (features, rank), client i sends S_i Z_k, and the server takes an
orthonormal basis of the sum as Z_{k+1} (eq. 2 of the FAPS paper). An observed sum over some clients is Y_k = S Z_k,
with S the sum of their S_i: it is linear in S. K rounds are K such equations, which are solved together as

    S [Z_1 .. Z_K] = [Y_1 .. Y_K].

This is the attack of the FAPS paper's proposition 2, by which SSI is not private. Several rounds are needed because one
shows S on only `rank` directions, the columns of Z_k. The attack is registered; an audit runs it on views of SSI, and
on rounds of other methods that show S Z.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from securefed._public import require
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, RoundView, Target, View
from securefed.attacks._diagnosis import EXPLAINED, ROUNDING
from securefed.attacks._gram.clipped_products import PerturbedProducts, PerturbedSolution, is_perturbed
from securefed.attacks._gram.linear import ESTIMATORS, TAU, Estimator, GramSolution, solve
from securefed.attacks._gram.observed_rounds import (
    linear_rounds,
    most_frequent_members,
    rounding_of_products,
    rounds_by_members,
    rows_of,
    shows_products,
    stacked_products,
    why_too_large,
)
from securefed.attacks._requirements import MEMORY, check_applies, why_incomplete

_SINGLE: Final = 1e-9
"""Relative rounding error of the products, over their root mean square, from which on it is coarser than double."""
SCALE_OPEN: Final = (
    "the size of the Gram matrix, one factor, since every message was clipped (guessed from the clipping norms and the "
    "declared range of the data)"
)
"""`Reconstruction.open` where all messages of one client were clipped, for the reader of a report."""


@dataclass(frozen=True)
class PowerGram:
    """Stack the Z_k and Y_k of the rounds that show one set of clients, and solve S Z = Y.

    The attack works on any view, since a sum of linear messages equals the message of one client with the pooled rows.
    Where the members of the sum change from round to round only the most frequent set is used; `gram/difference` uses
    the others too. It also reads LocalPower's rounds with one local step, which are rounds of SSI, and any PCA method
    that stops by the optimality (KKT) condition (I - Z Z^T) S Z = 0: for this test its clients send S_i Z too, beside
    their message.

    The columns of the Z_k are called probes. The estimate is exact once they span the features (features / rank
    rounds), and with `psd` already after rows / rank rounds. S is symmetric, so Z^T Y = Z^T S Z is too; its asymmetry
    Z^T Y - Y^T Z measures rounding and noise. Directions whose image under S is no larger than this are left out and
    counted (`diagnostics["directions lost to noise"]`).

    Where the view states noise or clips (`RoundView.noise`, `clips`) and the estimator is `psd`, S is a penalised
    likelihood estimate (`shrinkage`) and the clip is undone (`clipped_products`): exactly for one client without noise
    and with an unclipped round, for sums under the assumption that clients hold shares of S in proportion to their
    rows. `diagnostics["clipped to"]` is the mean factor by which clipping scaled the sums.

    Attributes:
        estimator: `minimum-norm` (the paper's), `symmetric`, or `psd`, the strongest (see `linear.solve`).
        tau: smallest singular value of the probes that is used, relative to the largest.
        memory: bytes that the solve may take; more is refused before anything is allocated.
    """

    estimator: Estimator = "psd"
    tau: float = TAU
    memory: int = MEMORY
    name: ClassVar[str] = "gram/power"
    secret: ClassVar[str] = "gram"

    def __post_init__(self) -> None:
        require(self.estimator in ESTIMATORS, f"estimator is one of {', '.join(ESTIMATORS)}, not {self.estimator!r}")
        require(0 < self.tau < 1, f"tau must lie in (0, 1), not {self.tau}")

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None`."""
        if not shows_products(target.algorithm):
            return "The messages are no products S Z: this attack is for SSI and LocalPower, or a KKT stop."
        if (reason := why_incomplete(observed.rounds, every=False)) is not None:
            return reason
        rounds = linear_rounds(observed)
        if not rounds:
            return "Every observed round has several local steps or is one of FAPS: no message is linear in S."
        if most_frequent_members(rounds_by_members(rounds), observed.target) is None:
            return f"No observed sum holds client {observed.target}."
        return why_too_large(target.public.features, rounds, 1, self.memory)

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Reconstruct the Gram matrix of the target, or of the most frequent set of clients that includes it.

        Raises:
            TranscriptError: the attack does not apply to this view.
        """
        check_applies(self.applies(target, observed))
        groups = rounds_by_members(linear_rounds(observed))
        members = most_frequent_members(groups, observed.target)
        assert members is not None
        rounds = groups[members]
        probes, products = stacked_products(rounds)
        rows = rows_of(members, target.public)
        errors = rounding_of_products(rounds)
        solution = solve(probes, products, estimator=self.estimator, tau=self.tau, rows=rows, errors=errors)
        corrected = self._private(rounds, target, rows, solution)
        directions = min(target.public.features, rows or target.public.features)  # that many determine S
        diagnostics = {
            "rounds": len(rounds),
            "rounds observed": len(observed.rounds),
            "estimator": self.estimator,
            "noise": solution.noise if corrected is None else corrected.noise,
            "directions lost to noise": solution.lost,
            ROUNDING: self._rounding(probes, products, errors, rows, solution),
        }
        if corrected is not None:
            # parts[k, i]: the client's share of S times the factor of its clip in round k
            diagnostics |= {"clipped to": float(corrected.parts.sum(axis=1).mean()), "explained": corrected.explained}
        return Reconstruction(
            secret=self.secret,
            value=solution.gram if corrected is None else corrected.gram,
            residual=solution.residual if corrected is None else corrected.residual,
            rank=min(solution.rank, directions),
            unknowns=directions,
            condition=solution.condition,
            diagnostics=diagnostics,
            members=members,
            open=(SCALE_OPEN,) if corrected is not None and corrected.scale_open else (),
        )

    def _rounding(self, probes: Array, products: Array, errors: Array, rows: int, solution: GramSolution) -> float:
        """Return how far the rounding of the products moves those that the estimate predicts, relative to them.

        The completion of S magnifies rounding in directions in which the probes are weak. So the attack solves once
        more, for products that are changed by as much as their rounding, with draws from a fixed seed.
        """
        scale = float(np.linalg.norm(products))
        if not scale or not errors.max() > _SINGLE * scale / math.sqrt(products.size):
            return 0.0  # in double precision a residual above round-off is a sign of something else
        changed = products + errors * np.random.default_rng(0).normal(size=products.shape)
        again = solve(probes, changed, estimator=self.estimator, tau=self.tau, rows=rows, errors=errors)
        return float(np.linalg.norm((again.gram - solution.gram) @ probes)) / scale

    def _private(
        self, rounds: Sequence[RoundView], target: Target, rows: int, plain: GramSolution
    ) -> PerturbedSolution | None:
        """Solve with noise and clips taken into account; `None` where the messages are as the clients computed them.

        Without noise that is so if no message reaches the clipping norm, or if S = `plain` explains several rounds, for
        clips by different factors would contradict each other. One round alone fits whatever its factor is.
        """
        if self.estimator != "psd" or not is_perturbed(rounds):
            return None
        products = PerturbedProducts.of(rounds, target.public)
        if not products.noise.any() and (
            not products.may_be_clipped or (len(rounds) > 1 and plain.residual < EXPLAINED)
        ):
            return None
        return products.estimate_gram(rows)
