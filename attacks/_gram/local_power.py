"""Reconstruct a client's Gram matrix S from rounds of LocalPower with q > 1 local products.

LocalPower is federated PCA in which a client does several steps of the power method between two sums. In round k it
multiplies the received basis Z_k, (features, rank), by S = A A^T q times, with A^T its rows, orthonormalising in
between, and sends the last product Y_k. Orthonormalising multiplies by an upper triangular matrix from the right, so
that S^q Z_k = Y_k R_k with an unknown triangular R_k, (rank, rank). Since S^q is symmetric, any two rounds satisfy

    Z_j^T Y_k R_k = (Z_k^T Y_j R_j)^T,

linear equations that determine all R_k up to one common factor, which the scalars tr(Z_k^T S Z_k) give: clients send
them for the stop rule. `repeated_products` solves these equations, solves S^q from its products S^q Z_k, takes the q-th
root, and fits S to the messages. Rounds with q = 1 are linear in S; the attack `gram/power` reads them. In a
`RoundView` the tensors named `BASIS`, `PRODUCT` and `CAPTURED` are Z_k, Y_k and tr(Z_k^T S Z_k), and `LOCAL_STEPS` is
q. The attack is registered as `gram/local-power`; audits call `applies`, then `run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from securefed._public import require
from securefed._tensors import Array
from securefed.algorithms._pca.localpower import LOCAL_STEPS, LocalPower
from securefed.algorithms._pca.server import BASIS, CAPTURED, PRODUCT
from securefed.attacks._base import Reconstruction, RoundView, Target, View
from securefed.attacks._engine.fit import Fit
from securefed.attacks._gram.observed_rounds import most_frequent_members, rounds_by_members, rows_of
from securefed.attacks._gram.repeated_products import LocalPowerRound, polish, root
from securefed.attacks._requirements import MEMORY, check_applies, too_large, why_incomplete


@dataclass(frozen=True)
class LocalPowerGram:
    """Solve for S^q from rounds with the same number q > 1 of local steps, take the root, and fit it to all rounds.

    The attack needs a view that shows the messages of ONE client, since a sum of the S_i^q is not the q-th power of the
    sum of the S_i. Where the products span the range of S, the relative error is about round-off divided by
    (lambda_r / lambda_1)^q, where r is the rank of S. If no fit is possible, the root is returned, and
    `diagnostics["method"]` is "root". The root loses eigenvalues below the q-th root of round-off: with q = 4, those
    below 1e-4 of the largest.

    Attributes:
        fit_features: largest rank of S for which the fit is tried; the rank is taken to be the number of rows or of
            features, whichever is smaller. The cost of the fit grows with the sixth power of the rank; rank 20 takes a
            second.
        memory: largest number of bytes for the elimination; the attack does not apply where it needs more.
    """

    fit_features: int = 30
    memory: int = MEMORY
    name: ClassVar[str] = "gram/local-power"
    secret: ClassVar[str] = "gram"

    def __post_init__(self) -> None:
        require(self.fit_features >= 0, f"fit_features must be at least 0, not {self.fit_features}")

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None`."""
        if not isinstance(target.algorithm, LocalPower) or target.algorithm.contributes_gram_product:
            return "The messages hold no repeated products S V; this attack is for LocalPower with several local steps."
        if target.algorithm.sends_gram_product:
            return "With a KKT stop rule the clients send S Z itself; use `gram/power`."
        if (reason := why_incomplete(observed.rounds, every=False)) is not None:
            return reason
        members = _members(observed)
        if members is None or len(members) > 1:
            return f"No observed message is of client {observed.target} alone; a sum of several clients cannot be used."
        return self._no_room(_most_rounds(_rounds(observed, members, target)))

    def _no_room(self, same: Sequence[LocalPowerRound]) -> str | None:
        """Return why the rounds `same`, which have one number of local steps, cannot be solved, or `None`."""
        if len(same) < 2:
            return "No two rounds have the same number of local steps above one; for one local step use `gram/power`."
        features, rank = same[0].start.shape  # of the columns of Z_k whose products were kept (`_rounds`)
        # unknowns: the R_k. Equations: rank^2 for every pair of rounds; and where sum_k Z_k N_k = 0 for some matrices
        # N_k, also sum_k S^q Z_k N_k = 0, `features` numbers for each of at most K rank columns
        unknowns = len(same) * rank * (rank + 1) // 2
        equations = (len(same) * rank) ** 2 // 2 + len(same) * rank * features
        what = f"Eliminating S^q of {features} features from {len(same)} rounds of rank {rank}"
        # three copies of the matrix, 8 bytes an entry
        return too_large(24 * unknowns * equations, self.memory, what)

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Reconstruct the target's Gram matrix.

        Raises:
            TranscriptError: the attack does not apply to this view.
        """
        check_applies(self.applies(target, observed))
        members = _members(observed)
        assert members is not None
        rows = rows_of(members, target.public)
        rounds = _rounds(observed, members, target)
        estimate = root(_most_rounds(rounds), rows)
        fit_result = self._fitted(rounds, estimate, rows, cast(LocalPower, target.algorithm))
        gram, fitted = (estimate, None) if fit_result is None else fit_result
        method = "root" if fitted is None else "fitted" if fitted.proven else "fitted, not proven"
        return Reconstruction(
            secret=self.secret,
            value=gram,
            residual=float("nan") if fitted is None else fitted.residual,
            rank=0 if fitted is None else fitted.rank,
            unknowns=target.public.features if fitted is None else fitted.unknowns,
            condition=float("nan") if fitted is None else fitted.condition,
            diagnostics={"rounds": len(rounds), "method": method},
            members=members,
        )

    def _fitted(
        self, rounds: Sequence[LocalPowerRound], estimate: Array, rows: int, algorithm: LocalPower
    ) -> tuple[Array, Fit] | None:
        """Fit S in a basis of its range; return `None` where the products do not span it or its rank is too large."""
        products = np.hstack([r.product for r in rounds])
        rank = min(rows, len(products))
        if rank > min(self.fit_features, products.shape[1]):
            return None
        frame = np.linalg.svd(products, full_matrices=False)[0][:, :rank]
        reduced = [LocalPowerRound(frame.T @ r.probe, frame.T @ r.product, r.steps, r.captured) for r in rounds]
        gram, fit = polish(reduced, frame.T @ estimate @ frame, algorithm)
        return frame @ gram @ frame.T, fit


def _members(observed: View) -> frozenset[int] | None:
    """Return the set of clients that includes the target and has most rounds with a known broadcast."""
    return most_frequent_members(rounds_by_members(o for o in observed.rounds if o.broadcast), observed.target)


def _rounds(observed: View, members: frozenset[int], target: Target) -> list[LocalPowerRound]:
    """Return the client's messages.

    The number of rows bounds the rank of S, and of the products that the client orthonormalises. Orthonormal columns
    beyond that rank are made of round-off, so that these columns of the sent product are left out.
    """
    rows = rows_of(members, target.public)
    return [_round(o, rows) for o in observed.rounds if o.broadcast and o.members == members]


def _round(observation: RoundView, rows: int) -> LocalPowerRound:
    """Read one message; keep at most `rows` columns of the product."""
    return LocalPowerRound(
        probe=observation.broadcast[BASIS],
        product=observation.message[PRODUCT][:, :rows],
        steps=int(observation.broadcast[LOCAL_STEPS]),
        captured=float(observation.message[CAPTURED]),
    )


def _most_rounds(rounds: Sequence[LocalPowerRound]) -> list[LocalPowerRound]:
    """Return the rounds with the most frequent number of local steps above one; ties go to the fewest steps."""
    counts = sorted({r.steps for r in rounds if r.steps > 1})
    same = [[r for r in rounds if r.steps == count] for count in counts]
    return max(same, key=len, default=[])
