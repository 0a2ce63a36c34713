"""Record membership by simulation: what would have been sent with the candidate among the rows, and what without?

Two adversaries. `ShadowMembership` (after the likelihood ratio attack, Carlini et al., S&P 2022, with Gaussians fitted
to every number of the messages) knows the population that rows come from, and not a client's other rows.
`Confirmation` knows all other rows, the adversary of differential privacy: it checks a guess. Any deterministic message
that depends on every row fails against that one; only noise helps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from securefed.attacks.generic.replay import Replay
from securefed.errors import DataError
from securefed.public import require
from securefed.tensors import Array

_FLOOR = 1e-9


@dataclass(frozen=True)
class Candidate:
    """A record, and the place among all members' rows at which it would stand (the order is no secret)."""

    row: Array
    place: int
    label: int | None = None


class Membership(Protocol):
    """Scores candidates: higher means rather a member."""

    name: ClassVar[str]

    def score(self, replay: Replay, candidates: list[Candidate], known: Array, rng: np.random.Generator) -> Array:
        """One number for each candidate.

        Args:
            known: (rows, features) what the adversary knows: see the class.
        """
        ...


@dataclass(frozen=True)
class ShadowMembership:
    """Likelihood ratio from shadow runs.

    Attributes:
        shadows: simulated cohorts with, and as many without, each candidate.

    `known` are rows of the population, from which shadow clients' rows are drawn without replacement.
    The numbers of a message are taken as independent Gaussians, which they are not: that costs the attack some of its
    strength, and its rates stay what they are, for they are measured and not computed from the Gaussians.
    """

    shadows: int = 12
    name: ClassVar[str] = "membership/shadow"

    def __post_init__(self) -> None:
        require(self.shadows >= 4, f"shadows must be at least 4 for a variance, not {self.shadows}")

    def score(self, replay: Replay, candidates: list[Candidate], known: Array, rng: np.random.Generator) -> Array:
        if len(known) < replay.rows:
            raise DataError(
                f"shadow clients need {replay.rows} population rows, there are {len(known)}; give more rows as "
                "`population`"
            )
        draws = [known[rng.permutation(len(known))[: replay.rows]] for _ in range(self.shadows)]
        without = np.stack([replay(rows, seed=1 + k) for k, rows in enumerate(draws)])
        return np.array([self._ratio(replay, candidate, draws, without) for candidate in candidates])

    def _ratio(self, replay: Replay, candidate: Candidate, draws: list[Array], without: Array) -> float:
        runs = []
        for k, rows in enumerate(draws):
            changed = rows.copy()
            changed[candidate.place] = candidate.row
            runs.append(replay(changed, seed=1 + k))
        inside = np.stack(runs)
        floor = _FLOOR * replay.scale**2 / replay.seen.size
        # One variance for both sides where they could not be told apart from so few shadows is safer (Carlini's
        # offline variant); a number that the candidate fixes (variance 0 inside only) is what single fingerprints show.
        return float(np.mean(gaussian_log(replay.seen, inside, floor) - gaussian_log(replay.seen, without, floor)))


@dataclass(frozen=True)
class Confirmation:
    """Compare what was sent with what the known rows and the candidate would send; `known` holds all other rows.

    Attributes:
        draws: simulations averaged over where the client step draws at random.
    """

    draws: int = 8
    name: ClassVar[str] = "membership/confirmation"

    def __post_init__(self) -> None:
        require(self.draws >= 1, f"draws must be at least 1, not {self.draws}")

    def score(self, replay: Replay, candidates: list[Candidate], known: Array, rng: np.random.Generator) -> Array:
        if len(known) != replay.rows:
            raise DataError(f"confirmation knows all {replay.rows} rows but one, not {len(known)}")
        count = 1 if replay.deterministic else self.draws
        out = []
        for candidate in candidates:
            rows = known.copy()
            rows[candidate.place] = candidate.row
            mean = np.mean([replay(rows, seed=1 + k) for k in range(count)], axis=0)
            out.append(-float(np.linalg.norm(mean - replay.seen)))
        return np.array(out)


def gaussian_log(seen: Array, runs: Array, floor: float | Array) -> Array:
    """Gaussian log likelihood of every number, up to a constant."""
    variance = runs.var(axis=0, ddof=1) + floor
    return np.asarray(-((seen - runs.mean(axis=0)) ** 2) / (2 * variance) - np.log(variance) / 2)
