"""Does record-level privacy keep its epsilon? Canary records sent through an algorithm's own code, and the same bounds.

A canary is one row of a client, or a row of zeros in its place. What is attacked is what epsilon covers: the release of
a sum in which nobody else contributes anything, or, where the algorithm itself adds the noise (DP-SGD), the upload.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from securefed._auditing.epsilon import CONFIDENCE, Guesses
from securefed._auditing.epsilon_noise import NoiseAudit, concluded
from securefed._public import Public, require
from securefed._tensors import Array, Tensors
from securefed.algorithms._base import Algorithm
from securefed.datasets._base import Dataset
from securefed.defenses._base import Defense, Plan, Session
from securefed.errors import PlanError, SecureFedError

_OTHERS = 2


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
        data: of the client, whose message tells most where its rows move it in different directions, as far as they
            can: beyond the norm that they are clipped to. Responses stay with rows of zeros, so they must say nothing
            there.
        delta: the plan's.
        silent: the algorithm without noise of its own; by default the algorithm, which then adds none.
        claimed: epsilon of one round; by default what the defence plans for one exchange.
        runs: rounds with, and as many without, the first row; all others are zeros.

    Raises:
        ConfigError: fewer than 4 runs or 8 rows.      PlanError: no epsilon is claimed.
    """
    require(runs >= 4 and data.rows >= 8, f"at least 4 runs and 8 rows, not {runs} and {data.rows}")
    game = _Game(algorithm, defense, data, silent or algorithm)
    epsilon = dict(game.plan.epsilon).get(1) if claimed is None else claimed
    if epsilon is None:
        raise PlanError(f"{defense.name} plans no epsilon for one exchange, so there is nothing to audit")
    first, nobody = np.arange(data.rows) == 0, np.zeros(data.rows, bool)
    try:
        with_it = np.array([game.scores(first)[:1] for _ in range(runs)])
        without = np.array([game.scores(nobody)[:1] for _ in range(runs)])
        bits = np.random.default_rng(secrets.randbits(128)).integers(0, 2, data.rows).astype(bool)
        guesses = Guesses.of(game.scores(bits), bits, max(2, data.rows // 4))
    except SecureFedError as error:
        return NoiseAudit(defense.name, epsilon, delta, 0.0, 0.0, 0.0, str(error))
    return concluded(defense.name, epsilon, delta, (with_it, without), guesses, confidence)


@dataclass(frozen=True)
class _Game:
    """One client's rounds from the first broadcast on, beside silent others."""

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
        """(rows,) of one round with the rows that are `present`: likelihood ratios of each row."""
        return np.asarray(self._shifts @ (self._seen(present) - self._still))

    def _seen(self, present: Array) -> Array:
        plan = Session(secrets.token_hex(16), 0, tuple(range(self.plan.clients)), self.plan).plan
        total = dict(self.defense.encode(self._sent(self.algorithm, present), plan))
        summed = 1 if plan.privacy is None else max(plan.privacy.noise_survivors, 1)  # the fewest that may be opened
        for _ in range(summed - 1):
            nothing = self.defense.encode({spec.name: np.zeros(spec.shape) for spec in plan.own}, plan)
            total = {name: np.asarray(value) + total[name] for name, value in nothing.items()}
        return _flat(self.defense.release(self.defense.decode(total, plan, summed), plan))

    def _sent(self, algorithm: Algorithm[Any, Any], present: Array) -> Tensors:
        rng = np.random.default_rng(secrets.randbits(128))
        rows = Dataset(self.data.x * present[:, None], self.data.y)
        return algorithm.contribute(algorithm.enroll(rows, self.public, rng), self.broadcast, rng)[1]

    @cached_property
    def _still(self) -> Array:
        return _flat(self._sent(self.silent, np.zeros(self.data.rows, bool)))

    @cached_property
    def _shifts(self) -> Array:
        """(rows, numbers): what each row by itself moves the message by."""
        each = [_flat(self._sent(self.silent, own)) for own in np.eye(self.data.rows, dtype=bool)]
        return np.stack(each) - self._still


def _flat(tensors: Tensors) -> Array:
    return np.concatenate([np.ravel(np.asarray(tensors[name], np.float64)) for name in sorted(tensors)])
