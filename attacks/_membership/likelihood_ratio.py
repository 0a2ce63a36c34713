"""Score record membership by simulating the messages with and without the candidate record among the rows.

`ShadowMembership` (after the likelihood ratio attack LiRA, Carlini et al., S&P 2022, with a Gaussian fitted to every
number of the messages) knows the population that rows come from, but not the client's other rows. `ConfirmationAttack`
knows all other rows, as the adversary of differential privacy does: it confirms a guess. Only noise protects against
it, because any deterministic message that depends on every row confirms the right guess. The audit scores records that
are members and records that are not, and computes the error rates (`membership_rates`). A member of a sum, in contrast,
is a client: the observed messages are sums over the members of a view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from securefed._public import require
from securefed._tensors import Array
from securefed.attacks._generic.client_replay import Replay
from securefed.errors import DataError

_VARIANCE_FLOOR = 1e-9
"""Smallest variance of a number, relative to the mean square: keeps constant numbers from dividing by zero."""


@dataclass(frozen=True)
class CandidateRecord:
    """A record that may be a member, and where it would stand.

    Attributes:
        row: its features.
        place: its index among the rows of all clients in the sum (their order is no secret).
        label: its label, where rows have one.
    """

    row: Array
    place: int
    label: int | None = None


class MembershipAttack(Protocol):
    """An attack that scores candidate records; a higher score means membership is more likely."""

    name: ClassVar[str]

    def score(self, replay: Replay, candidates: list[CandidateRecord], known: Array, rng: np.random.Generator) -> Array:
        """Return one score for each candidate.

        Args:
            replay: the observed rounds as a function of rows: `replay(rows, seed)` gives the messages that members with
                these rows would send, as one vector (numbers,), and `replay.messages` holds the observed ones.
            candidates: the records in question.
            known: (rows, features) the rows that the attacker knows; each class documents which.
            rng: source of randomness.
        """
        ...


@dataclass(frozen=True)
class ShadowMembership:
    """Score by the likelihood ratio of shadow runs with and without the candidate.

    `known` holds rows of the population, from which the shadow clients' rows are drawn without replacement. The numbers
    of a message are modelled as independent Gaussians. They are dependent, which weakens the attack; its error rates
    remain valid because they are measured, not computed from the model.

    Attributes:
        shadows: simulated cohorts with each candidate, and as many without it.
    """

    shadows: int = 12
    name: ClassVar[str] = "membership/shadow"

    def __post_init__(self) -> None:
        require(self.shadows >= 4, f"shadows must be at least 4, to estimate a variance; got {self.shadows}")

    def score(self, replay: Replay, candidates: list[CandidateRecord], known: Array, rng: np.random.Generator) -> Array:
        """Return the mean log likelihood ratio over the messages' numbers, one for each candidate.

        Raises:
            DataError: `known` has fewer rows than the members together.
        """
        if len(known) < replay.rows:
            raise DataError(
                f"shadow clients need at least {replay.rows} population rows; got {len(known)}. Give more rows as "
                "`population`."
            )
        draws = [known[rng.permutation(len(known))[: replay.rows]] for _ in range(self.shadows)]
        without = np.stack([replay(rows, seed=1 + k) for k, rows in enumerate(draws)])
        return np.array([self._ratio(replay, candidate, draws, without) for candidate in candidates])

    def _ratio(self, replay: Replay, candidate: CandidateRecord, draws: list[Array], without: Array) -> float:
        """Return the score of one candidate.

        Args:
            replay: the observed rounds as a function of rows.
            candidate: the record.
            draws: by shadow run, all members' rows drawn from the population.
            without: (shadows, numbers) messages of these runs; the runs with the candidate replace one row each.
        """
        runs = []
        for k, rows in enumerate(draws):  # the seed of the run without it: only the record makes a difference
            changed = rows.copy()
            changed[candidate.place] = candidate.row
            runs.append(replay(changed, seed=1 + k))
        inside = np.stack(runs)
        floor = _VARIANCE_FLOOR * replay.scale**2 / replay.messages.size  # `scale`: norm of the observed messages
        # Each side has its own variance. A common one, which Carlini et al. use with few shadows, is steadier. But a
        # number of the message that depends on the record alone has no variance with it, and would lose by a common
        # variance just what gives the record away.
        return float(
            np.mean(gaussian_log(replay.messages, inside, floor) - gaussian_log(replay.messages, without, floor))
        )


@dataclass(frozen=True)
class ConfirmationAttack:
    """Compare the observed messages with those that the known rows and the candidate would send.

    `known` holds all members' rows; the candidate replaces the one at its place.

    Attributes:
        draws: simulations to average over if the client step is random.
    """

    draws: int = 8
    name: ClassVar[str] = "membership/confirmation"

    def __post_init__(self) -> None:
        require(self.draws >= 1, f"draws must be at least 1; got {self.draws}")

    def score(self, replay: Replay, candidates: list[CandidateRecord], known: Array, rng: np.random.Generator) -> Array:
        """Return minus the distance between simulated and observed messages, one for each candidate.

        Raises:
            DataError: `known` does not hold exactly the members' rows.
        """
        if len(known) != replay.rows:
            raise DataError(f"confirmation needs the rows of all members, all {replay.rows} rows; got {len(known)}")
        count = 1 if replay.deterministic else self.draws
        out = []
        for candidate in candidates:
            rows = known.copy()
            rows[candidate.place] = candidate.row
            mean = np.mean([replay(rows, seed=1 + k) for k in range(count)], axis=0)
            out.append(-float(np.linalg.norm(mean - replay.messages)))
        return np.array(out)


def gaussian_log(observed: Array, runs: Array, floor: float | Array) -> Array:
    """Return the log likelihood of every number under a Gaussian fitted to `runs`, up to a constant."""
    variance = runs.var(axis=0, ddof=1) + floor
    return np.asarray(-((observed - runs.mean(axis=0)) ** 2) / (2 * variance) - np.log(variance) / 2)
