"""Gram matrices from FAPS, whose masked products the paper holds to be private (faps proposition 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from securefed.algorithms.base import Outcome, require
from securefed.algorithms.pca.faps import FAPS
from securefed.algorithms.pca.guarded import GuardedFAPS
from securefed.algorithms.pca.server import PRODUCT
from securefed.attacks.base import Observation, Observed, Reconstruction, Target
from securefed.attacks.gram.faps_fit import Found, coordinates_of, fit_client
from securefed.attacks.gram.near_consensus import ROUNDS, near_consensus, spread_out
from securefed.attacks.gram.rounds import by_members, most_seen, rows_of
from securefed.attacks.requirements import untold
from securefed.datasets.base import Dataset
from securefed.errors import TranscriptError
from securefed.tensors import Array

_AT_CONSENSUS = 1e-4
"""A client's first message is at consensus, to the round-off of float32 at least; without it there is no fit."""


@dataclass(frozen=True)
class ConsensusGram:
    """First the near-consensus estimate, which every view allows; then, on single clients, an exact fit.

    Attributes:
        fit_unknowns: largest number of unknowns at which the exact fit is tried; its cost grows with their square
            and more (200: about a second). A client of m rows has about (features - rank) (m - rank)
            of them, and features^2 / 2 at most.
        starts: starts of the fit.
        largest: largest number of features at all: the estimate holds 60 matrices of features x features.

    The exact fit is accepted only at a misfit of round-off with a Jacobian of full rank; otherwise the estimate is
    reported, and `residual` is the misfit of a FAPS client that holds it (NaN for sums, which no single client
    sends). `diagnostics["method"]` says which it was. Noise in the messages leaves only the estimate.
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
        if isinstance(target.algorithm, GuardedFAPS):
            return "Rounds of SSI between blocks of FAPS are not modelled here; `gram/power` reads those rounds."
        if (reason := untold(observed.rounds)) is not None:
            return reason
        if target.public.features > self.largest:
            need, have = (ROUNDS * features**2 * 3 * 8 / 2**20 for features in (target.public.features, self.largest))
            return (
                f"{target.public.features} features need about {need:.0f} MiB; the limit here is {have:.0f} MiB, "
                f"{self.largest} features (`largest`)."
            )
        if most_seen(by_members(observed.rounds), observed.target) is None:
            return f"No observed sum holds client {observed.target}."
        return None

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        reason = self.applies(target, observed)
        if reason is not None:
            raise TranscriptError(reason)
        algorithm = cast(FAPS, target.algorithm)
        groups = by_members(observed.rounds)
        members = most_seen(groups, observed.target)
        assert members is not None
        rounds = groups[members]
        rows = rows_of(members, target.public)
        estimate = near_consensus(spread_out(rounds), algorithm.beta_scale, rows)
        entries = target.public.features * (target.public.features + 1) // 2
        alone = len(members) == 1
        found = None
        if alone and estimate.distances[0] < _AT_CONSENSUS and self._fits(algorithm.rank, target.public.features, rows):
            found = fit_client(rounds, algorithm, rows, self.starts)
        gram = estimate.gram if found is None else found.gram
        return Reconstruction(
            secret=self.secret,
            value=gram,
            residual=replay_misfit(gram, rounds, target) if alone else float("nan"),
            rank=0 if found is None else found.rank,
            unknowns=entries if found is None else found.unknowns,
            condition=float("nan") if found is None else found.condition,
            diagnostics=_diagnostics(rounds, estimate.scale, estimate.distances, found),
            members=members,
        )

    def _fits(self, rank: int, features: int, rows: int) -> bool:
        block = np.zeros((features - rank, rank))
        return rank < features and coordinates_of(block, rows).count <= self.fit_unknowns


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


def _diagnostics(
    rounds: Sequence[Observation], scale: float, distances: Array, found: Found | None
) -> dict[str, object]:
    out: dict[str, object] = {
        "method": "near consensus" if found is None else "exact fit",
        "rounds": len(rounds),
        "largest eigenvalue": scale,
        "distance from consensus": float(distances[-1]),
    }
    if found is not None:
        out |= {"misfit": found.misfit, "starts": found.starts, "inner counts": found.counts.round(6).tolist()}
    return out
