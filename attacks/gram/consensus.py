"""Gram matrices from FAPS, whose masked products the paper holds to be private (faps proposition 5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from securefed.algorithms.base import Outcome
from securefed.algorithms.pca.faps import FAPS
from securefed.algorithms.pca.guarded import BLOCK, GuardedFAPS
from securefed.algorithms.pca.server import PRODUCT
from securefed.attacks.base import Observation, Observed, Reconstruction, Target
from securefed.attacks.gram.faps_chain import chain_client, is_chain, solved_exactly
from securefed.attacks.gram.faps_fit import estimate_within, fit_client
from securefed.attacks.gram.near_consensus import ROUNDS, near_consensus, spread_out
from securefed.attacks.gram.private import Disturbed, disturbed
from securefed.attacks.gram.private_consensus import Masked
from securefed.attacks.gram.rounds import Members, by_members, most_seen, rows_of
from securefed.attacks.requirements import untold
from securefed.datasets.base import Dataset
from securefed.errors import TranscriptError
from securefed.public import require
from securefed.tensors import Array

_AT_CONSENSUS = 1e-4
"""A client's first message is at consensus, to the round-off of float32 at least; without it there is no fit."""
_REPLAYED, _EXACT = 1e-3, 1e-6
"""A chain counts where a client that holds its S sends the messages to the first relative misfit: its last rounds, and
a subspace that few rounds leave open, may miss a little. Above the second it has to do better than the estimate."""


@dataclass(frozen=True)
class ConsensusGram:
    """First the near-consensus estimate, which every view allows; then, on single clients, an exact solution.

    With one inner step, or a tolerance that solves the subproblems, rounds are solved one by one, at any number of
    features (`faps_chain`); elsewhere, or where that chain breaks, a simulated client is fitted (`faps_fit`).
    Of guarded FAPS the longest block is read, which is a run of FAPS from its first round on; rounds of SSI
    between blocks are `gram/power`'s.

    Attributes:
        fit_unknowns: largest number of unknowns u at which the fit is tried. A linearisation costs about 2.5 u^2
            (2 u + features rank) operations, u^3 in the main, and an attack takes up to `starts` x 100 of them:
            at u = 200 a second, at u = 600 one to two minutes where every start fails. A client of m rows has about
            (m + rank (rounds fitted - 1)) (m - rank) unknowns at any number of features, 66 at m = 8 and rank 5; of
            m <= rank m (m + 1) / 2. Under noise it has (features - rank) (m - rank), and features^2 / 2 at most.
        starts: starts of the fit; twice as many where the messages move in few directions (`faps_span`).
        largest: largest number of features at all: the estimate holds 60 matrices of features x features.

    The fit is proven only at a misfit of round-off with a Jacobian of full rank, the chain where a FAPS client that
    holds its S sends the messages. A fit that leaves no more than even noise, of no more than the size that the first
    message shows, weighs every entry by its own error and stays at the estimate where the noise hides S
    (`faps_noise`): "fit to noise, not proven", with the noise and the error to be expected ("hidden error"; digits: the
    actual one was .5 to 1.7 times that) in the diagnostics. Otherwise the estimate is reported, of exact messages of
    few rows the one that `faps_estimate` sharpens, and `residual` is the misfit of a FAPS client that holds it (NaN for
    sums, which no single client sends). `diagnostics["method"]` says which it was. Noise above about 1e-4 of the first
    message leaves only the estimate; noise and clips that the view tells (`Observation.noise`, `clips`) are reckoned
    with in it ("shrunk", `private_consensus`).
    """

    fit_unknowns: int = 600
    starts: int = 6
    largest: int = 1000
    name: ClassVar[str] = "gram/consensus"
    secret: ClassVar[str] = "gram"

    def __post_init__(self) -> None:
        require(self.fit_unknowns >= 0, f"fit_unknowns must be at least 0, not {self.fit_unknowns}")
        require(self.starts >= 1, f"starts must be at least 1, not {self.starts}")
        require(self.largest >= 1, f"largest must be at least 1, not {self.largest}")

    def applies(self, target: Target, observed: Observed) -> str | None:
        if not isinstance(target.algorithm, FAPS):
            return "The messages are no masked products of FAPS."
        if (reason := untold(observed.rounds)) is not None:
            return reason
        if target.public.features > self.largest:
            need, have = (ROUNDS * features**2 * 3 * 8 / 2**20 for features in (target.public.features, self.largest))
            return (
                f"{target.public.features} features need about {need:.0f} MiB; the limit here is {have:.0f} MiB, "
                f"{self.largest} features (`largest`)."
            )
        masked = runs_of_faps(observed.rounds, target.algorithm)
        if not masked:
            return "No observed round belongs to a block of FAPS; `gram/power` reads those of SSI."
        if most_seen(masked, observed.target) is None:
            return f"No observed sum holds client {observed.target}."
        return None

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        reason = self.applies(target, observed)
        if reason is not None:
            raise TranscriptError(reason)
        algorithm = cast(FAPS, target.algorithm)
        groups = runs_of_faps(observed.rounds, algorithm)
        members = most_seen(groups, observed.target)
        assert members is not None
        rounds = groups[members]
        rows = rows_of(members, target.public)
        estimate = near_consensus(spread_out(rounds), algorithm.beta_scale, rows)
        alone = len(members) == 1
        found = _private(rounds, target, rows, estimate.distances[0])
        if found is None and alone and estimate.distances[0] < _AT_CONSENSUS:
            found = self._chained(rounds, target, rows, estimate.gram) or self._fitted(rounds, target, rows)
        if found is None:
            found = self._estimated(rounds, target, rows, estimate.gram) if alone else _unproven(estimate.gram)
        return Reconstruction(
            secret=self.secret,
            value=found.gram,
            residual=found.misfit,
            rank=found.rank,
            unknowns=found.unknowns,
            condition=found.condition,
            diagnostics={
                "method": found.method,
                "rounds": len(rounds),
                "largest eigenvalue": estimate.scale,
                "distance from consensus": float(estimate.distances[-1]),
                **found.notes,
            },
            members=members,
        )

    def _chained(self, rounds: Sequence[Observation], target: Target, rows: int, estimate: Array) -> Solved | None:
        """Round by round, where that is possible and explains the messages better than the estimate."""
        algorithm = cast(FAPS, target.algorithm)
        chain = chain_client(rounds, algorithm, rows, estimate) if is_chain(algorithm) else None
        if chain is None:
            return None
        misfit = replay_misfit(chain.gram, rounds, target)
        if not misfit < _REPLAYED or (misfit > _EXACT and misfit >= replay_misfit(estimate, rounds, target)):
            return None
        notes = {"rounds solved": chain.rounds}
        return Solved(chain.gram, "round by round", misfit, chain.rank, chain.unknowns, chain.condition, notes)

    def _estimated(self, rounds: Sequence[Observation], target: Target, rows: int, estimate: Array) -> Solved:
        """Near consensus; with all that is known of few rows, where that explains the messages better."""
        algorithm, guesses = cast(FAPS, target.algorithm), [estimate]
        if algorithm.rank < target.public.features:
            within = estimate_within(rounds, algorithm, rows, self.fit_unknowns)
            guesses += [] if within is None else [within]
        told = [_unproven(guess, replay_misfit(guess, rounds, target)) for guess in guesses]
        return min(told, key=lambda one: one.misfit)

    def _fitted(self, rounds: Sequence[Observation], target: Target, rows: int) -> Solved | None:
        """All at once, where few unknowns are left."""
        algorithm = cast(FAPS, target.algorithm)
        if not algorithm.rank < target.public.features or solved_exactly(algorithm):
            return None
        fit = fit_client(rounds, algorithm, rows, self.starts, self.fit_unknowns)
        if fit is None:
            return None
        notes = {"misfit": fit.misfit, "starts": fit.starts, "inner counts": fit.counts.round(6).tolist()}
        notes["hidden error"] = fit.hidden
        if fit.noise:
            notes["noise"] = fit.noise
        misfit = replay_misfit(fit.gram, rounds, target)
        method = "fit to noise, not proven" if fit.noise else "exact fit"
        return Solved(fit.gram, method, misfit, fit.rank, fit.unknowns, fit.condition, notes)


@dataclass(frozen=True)
class Solved:
    """S by one method.

    Attributes:
        gram: S.      misfit: relative, of a FAPS client that holds it; NaN for sums.
        rank, unknowns, condition: of the method's linear system or Jacobian.      notes: further diagnostics.
    """

    gram: Array
    method: str
    misfit: float
    rank: int
    unknowns: int
    condition: float
    notes: Mapping[str, object]


def replay_misfit(gram: Array, rounds: Sequence[Observation], target: Target) -> float:
    """Relative misfit of all messages, had a FAPS client with this Gram matrix sent them."""
    algorithm = cast(FAPS, target.algorithm)
    values, vectors = np.linalg.eigh(gram)
    rng = np.random.default_rng(0)
    data = Dataset((vectors * np.sqrt(np.maximum(values, 0))).T)
    client = algorithm.enroll(data, target.public, rng)
    missed = total = 0.0
    for observation in rounds:
        tentative, sent = algorithm.contribute(client, observation.broadcast, rng)
        client = algorithm.settle(tentative, Outcome(True, None))
        seen = observation.message[PRODUCT]
        missed += float(np.sum((sent[PRODUCT] - seen) ** 2))
        total += float(np.sum(seen**2))
    return float(np.sqrt(missed / (total or 1.0)))


def runs_of_faps(rounds: Sequence[Observation], algorithm: FAPS) -> dict[Members, list[Observation]]:
    """By the clients in them, the rounds that are one run of FAPS: all, or of guarded FAPS the longest block."""
    groups = by_members(rounds)
    if not isinstance(algorithm, GuardedFAPS):
        return groups
    longest = {}
    for members, seen in groups.items():
        blocks: dict[int, list[Observation]] = {}
        for observation in seen:
            blocks.setdefault(int(observation.broadcast.get(BLOCK, 0)), []).append(observation)
        blocks.pop(0, None)
        if blocks:
            longest[members] = max(blocks.values(), key=len)
    return longest


def _private(rounds: Sequence[Observation], target: Target, rows: int, distance: float) -> Solved | None:
    """Where a defence clipped the messages, or its noise keeps even the first from consensus; a clip whose undoing is
    not consistent is left."""
    if not disturbed(rounds):
        return None
    seen = spread_out(rounds)
    masked = Masked(Disturbed.of(seen, target.public, PRODUCT), cast(FAPS, target.algorithm).beta_scale)
    noised = masked.seen.noise.any() and distance >= _AT_CONSENSUS
    if not len(masked.seen.traces) or not (noised or masked.seen.seen_clipped):
        return None
    found = masked.recovered(rows)
    if not noised and not found.explained:
        return None
    notes = {"noise": found.noise, "clipped to": float(found.parts.sum(axis=1).mean())}
    return Solved(
        found.gram, "shrunk", found.residual, 0, len(found.gram) * (len(found.gram) + 1) // 2, math.nan, notes
    )


def _unproven(gram: Array, misfit: float = math.nan) -> Solved:
    return Solved(gram, "near consensus", misfit, 0, len(gram) * (len(gram) + 1) // 2, math.nan, {})
