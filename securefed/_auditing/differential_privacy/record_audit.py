"""Measure whether record-level privacy keeps its epsilon: canary records go through an algorithm's own code.

Users call `audit_records`, and so does the audit of membership (`membership_audit`).

Record-level privacy hides one row of a client, not the whole client: each row's part of the message is clipped before
the noise. A canary is one row of a client, or a row of zeros in its place. The adversary sees what epsilon covers: the
released sum, to which no other client contributes anything; or the upload, if the algorithm itself adds the noise
(DP-SGD). It scores row i by

    shift_i . (release - message of no row),

where shift_i is how far row i alone moves the message without noise. Up to a factor and a constant this is the log
likelihood ratio under Gaussian noise of equal size in all entries, if rows move the message in orthogonal directions.
Two games are played, which bound epsilon from below as in `noise_audit`: many rounds, in half of which the first row is
there and all others are not; and one round in which each row is there with probability 1/2.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from securefed._auditing.differential_privacy.epsilon_bounds import CONFIDENCE, Guesses
from securefed._auditing.differential_privacy.noise_engine import (
    Games,
    NoiseAudit,
    is_gaussian,
    judged,
    planned_noise,
    released_sum,
)
from securefed._auditing.differential_privacy.noise_tests import Noise
from securefed._public import Public, require
from securefed._tensors import Array, Tensors
from securefed.algorithms._base import Algorithm
from securefed.datasets._base import Dataset
from securefed.defenses._base import Defense, Plan
from securefed.errors import PlanError, SecureFedError

_OTHERS = 2  # silent clients: secure aggregation needs three in all


def audit_records(
    algorithm: Algorithm[Any, Any],
    defense: Defense,
    data: Dataset,
    delta: float,
    *,
    silent: Algorithm[Any, Any] | None = None,
    claimed: float | None = None,
    runs: int = 1000,
    confidence: float = CONFIDENCE,
) -> NoiseAudit:
    """Audit one round of an algorithm under a defence; each row of `data` is a canary.

    Args:
        algorithm: whose unit of privacy is a record.
        defense: it runs under.
        data: the data of the client. Its message tells most if its rows move it in different directions, beyond the
            norm that they are clipped to. A row that is replaced by zeros keeps its response, which must then not
            matter.
        delta: the delta of the epsilon that is claimed.
        silent: the algorithm without noise of its own, from which the shifts follow; by default the algorithm itself,
            which must then add none.
        claimed: epsilon of one round; by default what the defence plans for one exchange.
        runs: number of rounds with the first row, and of as many without; all other rows are zeros.
        confidence: the confidence of each bound.

    Returns:
        The bounds; where algorithm or defence refuses the data, bounds of 0 and the error.

    Raises:
        ConfigError: fewer than 4 runs or 8 rows.
        PlanError: no epsilon is claimed.
    """
    require(runs >= 4 and data.rows >= 8, f"at least 4 runs and 8 rows, not {runs} and {data.rows}")
    game = _CanaryRounds(algorithm, defense, data, silent or algorithm)
    epsilon = dict(game.plan.epsilon).get(1) if claimed is None else claimed
    if epsilon is None:
        raise PlanError(f"{defense.name} plans no epsilon for one exchange, so there is nothing to audit")
    first, none = np.arange(data.rows) == 0, np.zeros(data.rows, bool)
    try:
        with_it = np.array([game.scores(first)[:1] for _ in range(runs)])
        drawn = np.stack([game.release(none) for _ in range(runs)])
        bits = np.random.default_rng(secrets.randbits(128)).integers(0, 2, data.rows).astype(bool)
        # of the one round, guesses on a quarter of the rows: those of the highest and of the lowest scores
        guesses = Guesses.of(game.scores(bits), bits, max(2, data.rows // 4))
    except SecureFedError as error:
        return NoiseAudit(defense.name, epsilon, delta, 0.0, 0.0, 0.0, refused=str(error))
    without = np.stack([game.scored(release)[:1] for release in drawn])
    games = Games(with_it, without, guesses, game.noise(drawn))
    return judged(defense.name, epsilon, delta, games, confidence)


@dataclass(frozen=True)
class _CanaryRounds:
    """Rounds of one client, each from the first broadcast, beside clients that send zeros.

    Attributes:
        algorithm: as in `audit_records`.
        defense: as in `audit_records`.
        data: as in `audit_records`.
        silent: the algorithm without noise.
    """

    algorithm: Algorithm[Any, Any]
    defense: Defense
    data: Dataset
    silent: Algorithm[Any, Any]

    @cached_property
    def public(self) -> Public:
        return Public.of([self.data] * (1 + _OTHERS))

    @cached_property
    def broadcast(self) -> Tensors:
        rng = np.random.default_rng(0)
        return self.algorithm.broadcast(self.algorithm.start(self.public, rng))

    @cached_property
    def plan(self) -> Plan:
        return self.defense.plan(self.algorithm.layout(self.public), 1 + _OTHERS)

    def scores(self, present: Array) -> Array:
        """Score each row in one round; see the module.

        Args:
            present: (rows,) whether a row was there.

        Returns:
            (rows,) scores.
        """
        return self.scored(self.release(present))

    def scored(self, release: Array) -> Array:
        """Score each row by what was released; (rows,)."""
        return np.asarray(self._shifts @ (release - self._message_of_none))

    def noise(self, drawn: Array) -> Noise | None:
        """Return the noise of rounds without any row, (rounds, numbers); `None` where it is the algorithm's own."""
        privacy = self.plan.privacy
        if privacy is None or not is_gaussian(self.defense):
            return None
        planned = planned_noise(self.defense, self.plan, max(privacy.noise_survivors, 1))
        shapes = {spec.name: spec.shape for spec in self.plan.own}
        return Noise.of(drawn, [np.full(shapes[name], planned[name]) for name in sorted(shapes)])

    def release(self, present: Array) -> Array:
        """Return the released sum of one round; all clients but the first send zeros.

        Where clients add shares of the noise, it is the sum of the fewest clients that may be opened, as many as the
        noise is sized for; else the sum of one client.
        """
        privacy, zeros = self.plan.privacy, {spec.name: np.zeros(spec.shape) for spec in self.plan.own}
        others = 0 if privacy is None else max(privacy.noise_survivors, 1) - 1
        messages = [self._sent(self.algorithm, present), *[zeros] * others]
        encoders = [partial(self.defense.encode, message) for message in messages]
        return _flat(released_sum(self.defense, self.plan, encoders))

    def _sent(self, algorithm: Algorithm[Any, Any], present: Array) -> Tensors:
        """Return the client's message, with zeros in place of the rows that are not present."""
        rng = np.random.default_rng(secrets.randbits(128))
        rows = Dataset(self.data.x * present[:, None], self.data.y)
        return algorithm.contribute(algorithm.enroll(rows, self.public, rng), self.broadcast, rng)[1]

    @cached_property
    def _message_of_none(self) -> Array:
        """(numbers,) the message without noise of a client whose rows are all zeros."""
        return _flat(self._sent(self.silent, np.zeros(self.data.rows, bool)))

    @cached_property
    def _shifts(self) -> Array:
        """(rows, numbers): how far each row by itself moves the message."""
        each = [_flat(self._sent(self.silent, own)) for own in np.eye(self.data.rows, dtype=bool)]
        return np.stack(each) - self._message_of_none


def _flat(tensors: Tensors) -> Array:
    return np.concatenate([np.ravel(np.asarray(tensors[name], np.float64)) for name in sorted(tensors)])
