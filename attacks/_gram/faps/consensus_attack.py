"""Reconstruct Gram matrices from FAPS, whose masked products the paper holds to be private (FAPS, proposition 5).

At consensus messages are linear in S, which gives an estimate from any view; messages of a single client determine its
subspaces and S exactly, by the methods that `ConsensusGram` describes. A view (`View`) is what an attacker observes of
a run: for each round the broadcast, and the message or the sum of the messages of a set of clients, its members. The
target is the client that is attacked. The package's head has the symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np

from securefed._public import require
from securefed._tensors import Array
from securefed.algorithms._base import RoundOutcome
from securefed.algorithms._pca.faps import FAPS
from securefed.algorithms._pca.server import PRODUCT
from securefed.attacks._base import Reconstruction, RoundView, Target, View
from securefed.attacks._gram.clipped_products import PerturbedProducts, is_perturbed
from securefed.attacks._gram.faps.client_fit import estimate_of_low_rank, fit_client
from securefed.attacks._gram.faps.clipped_masked_products import ClippedMaskedProducts
from securefed.attacks._gram.faps.near_consensus import ROUNDS, evenly_spaced, near_consensus
from securefed.attacks._gram.faps.round_by_round import is_solvable_by_rounds, solve_round_by_round, solves_subproblems
from securefed.attacks._gram.faps.solution import FAPSSolution
from securefed.attacks._gram.observed_rounds import most_frequent_members, rounds_by_members, rows_of
from securefed.attacks._requirements import check_applies, why_incomplete
from securefed.datasets._base import Dataset

_AT_CONSENSUS = 1e-4
"""Largest relative distance of a client's first message from consensus (||Z^T Y - beta I|| / (rank beta)) at which
exact methods, which start from X = Z, are tried. Messages in float32 are below it too.
"""
_REPLAYED, _EXACT = 1e-3, 1e-6
"""Relative residuals of a simulated client that holds a round-by-round solution. Below the second, the solution is
accepted. Between the two its last rounds, or a subspace that few rounds leave open, may be slightly wrong; it is then
accepted if it explains the messages better than the estimate does. Above the first it is rejected.
"""


@dataclass(frozen=True)
class ConsensusGram:
    """Estimate S near consensus, on every view; then, on single clients, solve for it exactly. Registered as an attack.

    With one inner step, or a tolerance at which clients solve their subproblems exactly, rounds are solved one by one,
    at any number of features (`round_by_round`). Elsewhere, or where that fails, a simulated client is fitted
    (`client_fit`).

    `diagnostics["method"]` is one of these:

    - "round by round": proven where a FAPS client that holds this S sends the messages.
    - "exact fit": proven by a residual of round-off, of double or single precision, with a Jacobian of full rank.
    - "fit to noise, not proven": the residual is as large as the noise that the first message shows. The diagnostics
      hold the expected error ("hidden error"), at most 5e-2: larger noise, above about 1e-5, leaves only the estimate.
    - "shrunk": the noise and the clipping norms that the view states are taken into account
      (`clipped_masked_products`).
    - "near consensus": the estimate; for exact messages of a client of few rows that of `low_rank_estimate`, where it
      explains the messages better. The residual is that of a FAPS client with this S (NaN for sums, which no single
      client sends).

    Attributes:
        fit_unknowns: largest number u of unknowns of S at which the fit is tried. Where every start fails, it takes a
            second at u = 200 and two minutes at u = 700. A client of m rows has about (m + K rank) m - m^2 / 2
            unknowns in K rounds (156 at m = 8, rank 5 and K = 3); one of full rank has features^2 / 2.
        starts: largest number of starts of the fit.
        largest: largest number of features; the estimate holds 180 matrices of features x features, three for each of
            the 60 rounds that it reads at most: 1.3 GiB at 1000 features.
    """

    fit_unknowns: int = 700
    starts: int = 4
    largest: int = 1000
    name: ClassVar[str] = "gram/consensus"
    secret: ClassVar[str] = "gram"

    def __post_init__(self) -> None:
        require(self.fit_unknowns >= 0, f"fit_unknowns must be at least 0, not {self.fit_unknowns}")
        require(self.starts >= 1, f"starts must be at least 1, not {self.starts}")
        require(self.largest >= 1, f"largest must be at least 1, not {self.largest}")

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None`."""
        if not isinstance(target.algorithm, FAPS):
            return "The messages are no masked products of FAPS."
        if (reason := why_incomplete(observed.rounds)) is not None:
            return reason
        if target.public.features > self.largest:
            return (
                f"{target.public.features} features need about {_mebibytes(target.public.features):.0f} MiB; the limit "
                f"here is {_mebibytes(self.largest):.0f} MiB, {self.largest} features: raise `largest`."
            )
        if most_frequent_members(rounds_by_members(observed.rounds), observed.target) is None:
            return f"No observed sum holds client {observed.target}."
        return None

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Reconstruct the Gram matrix of the target, or of the most frequent set of clients that includes it.

        The methods are tried from the most to the least exact; the first result that is accepted is returned.

        Args:
            observed: the view.
            target: the algorithm with its settings, and the public numbers of rows and features.
            rng: not used; the random starts of the fit come from a fixed seed.

        Raises:
            TranscriptError: the attack does not apply to this view.
        """
        check_applies(self.applies(target, observed))
        algorithm = cast(FAPS, target.algorithm)
        groups = rounds_by_members(observed.rounds)
        members = most_frequent_members(groups, observed.target)
        assert members is not None
        rounds = groups[members]
        rows = rows_of(members, target.public)
        estimate = near_consensus(evenly_spaced(rounds), algorithm.beta_scale, rows)
        # distances[0]: how far the first message is from consensus, where it is unless noise or rounding disturbs it
        solution = _from_clipped_or_noised(rounds, target, rows, estimate.distances[0])
        if solution is None and len(members) > 1:
            solution = FAPSSolution(estimate.gram, "near consensus", unknowns=_entries(estimate.gram))
        if solution is None and estimate.distances[0] < _AT_CONSENSUS:
            solution = self._chained(rounds, target, rows, estimate.gram) or self._fitted(rounds, target, rows)
        if solution is None:
            solution = self._estimated(rounds, target, rows, estimate.gram)
        return Reconstruction(
            secret=self.secret,
            value=solution.gram,
            residual=solution.residual,
            rank=solution.rank,
            unknowns=solution.unknowns,
            condition=solution.condition,
            diagnostics={
                "method": solution.method,
                "rounds": len(rounds),
                "largest eigenvalue": estimate.scale,
                "distance from consensus": float(estimate.distances[-1]),
                **solution.notes,
            },
            members=members,
        )

    def _chained(self, rounds: Sequence[RoundView], target: Target, rows: int, estimate: Array) -> FAPSSolution | None:
        """Solve round by round; `None` where that is impossible, or the solution is rejected (see `_REPLAYED`)."""
        algorithm = cast(FAPS, target.algorithm)
        chain = solve_round_by_round(rounds, algorithm, rows, estimate) if is_solvable_by_rounds(algorithm) else None
        if chain is None:
            return None
        residual = replay_residual(chain.gram, rounds, target)
        if not residual < _REPLAYED or (residual > _EXACT and residual >= replay_residual(estimate, rounds, target)):
            return None
        return replace(chain, residual=residual)

    def _fitted(self, rounds: Sequence[RoundView], target: Target, rows: int) -> FAPSSolution | None:
        """Fit a simulated client; `None` where there are too many unknowns, or no start ends at an accepted fit.

        Clients that iterate to the end (`solves_subproblems`) are not fitted: they make hundreds of inner steps.
        """
        algorithm = cast(FAPS, target.algorithm)
        if not algorithm.rank < target.public.features or solves_subproblems(algorithm):
            return None
        fit = fit_client(rounds, algorithm, rows, self.starts, self.fit_unknowns)
        return None if fit is None else replace(fit, residual=replay_residual(fit.gram, rounds, target))

    def _estimated(self, rounds: Sequence[RoundView], target: Target, rows: int, estimate: Array) -> FAPSSolution:
        """Return the estimate; of few rows the one of that rank, where it explains the messages better."""
        algorithm, guesses = cast(FAPS, target.algorithm), [estimate]
        if algorithm.rank < target.public.features:
            sharper = estimate_of_low_rank(rounds, algorithm, rows, self.fit_unknowns)
            guesses += [] if sharper is None else [sharper]
        residuals = [replay_residual(guess, rounds, target) for guess in guesses]
        best = int(np.argmin(residuals))
        return FAPSSolution(guesses[best], "near consensus", residuals[best], unknowns=_entries(estimate))


def replay_residual(gram: Array, rounds: Sequence[RoundView], target: Target) -> float:
    """Return ||messages of a FAPS client with this Gram matrix - observed ones|| / ||observed ones|| over all rounds.

    The algorithm's own client step is run, on rows A^T = diag(sqrt(l)) V^T with gram = V diag(l) V^T, so that
    A A^T = gram. It draws no random numbers.

    Args:
        gram: S, (features, features).
        rounds: one client's rounds, from its first on.
        target: the algorithm and the public facts.
    """
    algorithm = cast(FAPS, target.algorithm)
    values, vectors = np.linalg.eigh(gram)
    rng = np.random.default_rng(0)
    data = Dataset((vectors * np.sqrt(np.maximum(values, 0))).T)
    client = algorithm.enroll(data, target.public, rng)
    squared_error = total = 0.0
    for observation in rounds:
        tentative, sent = algorithm.contribute(client, observation.broadcast, rng)
        client = algorithm.commit(tentative, RoundOutcome(True, None))
        observed = observation.message[PRODUCT]
        squared_error += float(np.sum((sent[PRODUCT] - observed) ** 2))
        total += float(np.sum(observed**2))
    return float(np.sqrt(squared_error / (total or 1.0)))


def _from_clipped_or_noised(
    rounds: Sequence[RoundView], target: Target, rows: int, distance: float
) -> FAPSSolution | None:
    """Estimate S from messages that a defence clipped or noised; `None` leaves them to the other methods.

    Args:
        rounds: rounds of the same clients.
        target: the algorithm and the public facts.
        rows: bound on the rank of S; 0 for none.
        distance: relative distance of the first message from consensus.

    Returns:
        The estimate, or `None`.
    """
    if not is_perturbed(rounds):
        return None
    selected = evenly_spaced(rounds)
    masked = ClippedMaskedProducts(
        PerturbedProducts.of(selected, target.public, PRODUCT), cast(FAPS, target.algorithm).beta_scale
    )
    if not len(masked.rounds.traces):  # scalars were clipped apart from the products, and show no factor of theirs
        return None
    noised = masked.rounds.noise.any() and distance >= _AT_CONSENSUS
    if not noised and not masked.rounds.may_be_clipped:  # exact methods apply: noise moves the first message too little
        return None
    solution = masked.estimate_gram(rows)
    if not noised and not solution.explained:  # the clip factors that were found contradict each other
        return None
    # a row of `parts` sums to the factor by which clipping scaled that round's sum
    notes = {"noise": solution.noise, "clipped to": float(solution.parts.sum(axis=1).mean())}
    return FAPSSolution(solution.gram, "shrunk", solution.residual, unknowns=_entries(solution.gram), notes=notes)


def _mebibytes(features: int) -> float:
    """Return the memory that the estimate takes: three matrices of float64 for each round that it reads."""
    return ROUNDS * 3 * features**2 * 8 / 2**20


def _entries(gram: Array) -> int:
    """Return the number of entries of a symmetric matrix."""
    return len(gram) * (len(gram) + 1) // 2
