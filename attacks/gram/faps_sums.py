"""FAPS under secure aggregation: the single Gram matrices from sums of masked products alone.

The masks do not cancel in the sum; with a fixed number of inner steps each client is a known function of its S_i, so
all of them are simulated and fitted to the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.linalg import LinAlgError

from securefed.algorithms.pca.faps import FAPS, GROWTH, PERIOD
from securefed.algorithms.pca.guarded import GuardedFAPS
from securefed.algorithms.pca.server import BASIS, CAPTURED, PRODUCT
from securefed.attacks.base import Observed, Target
from securefed.attacks.gram.coordinates import Symmetric
from securefed.attacks.gram.faps_client import Course, messages, messages_and_tangents
from securefed.attacks.gram.joint_attack import JointAttack, Sums
from securefed.attacks.gram.near_consensus import near_consensus, spread_out
from securefed.attacks.gram.rounds import rows_of
from securefed.errors import DivergenceError
from securefed.tensors import Array

_EMPTY = np.zeros(0)


@dataclass(frozen=True)
class JointGram(JointAttack):
    """FAPS with a fixed number of inner steps: a rule would add each client's counts to the unknowns."""

    name: ClassVar[str] = "gram/joint"

    def foreign(self, algorithm: object) -> str | None:
        if isinstance(algorithm, FAPS) and not isinstance(algorithm, GuardedFAPS) and algorithm.inner_steps is not None:
            return None
        return "The messages are no masked products of FAPS with a fixed number of inner steps."

    def size(self, target: Target, rounds: int) -> tuple[int, int]:
        algorithm, features = cast(FAPS, target.algorithm), target.public.features
        return features * (features + 1) // 2, _known(algorithm, rounds) * (features * algorithm.rank + 1)

    def sums(self, observed: Observed, target: Target) -> Sums:
        algorithm = cast(FAPS, target.algorithm)
        rounds = observed.rounds[: _known(algorithm, len(observed.rounds))]
        members = rounds[0].members
        sender = MaskedSender.of([o.broadcast[BASIS] for o in rounds], algorithm)
        pooled = near_consensus(spread_out(rounds), algorithm.beta_scale, rows_of(members, target.public)).gram
        products = [o.message[PRODUCT].reshape(-1) for o in rounds]
        seen = np.concatenate([*products, [float(o.message[CAPTURED]) for o in rounds]])
        return Sums(sender, seen, sender.coordinates.coordinates(pooled / len(members)))


def _known(algorithm: FAPS, rounds: int) -> int:
    """Rounds whose beta is known: rule (25) always grows it at k = 5, and decides by X_i at k = 10."""
    return min(rounds, 2 * PERIOD + 1) if algorithm.adaptive else rounds


@dataclass(frozen=True)
class MaskedSender:
    """One client of FAPS over all rounds, as a function of the coordinates of its S; beta is lambda_1(S) beta_scale.

    A client is homogeneous: S / lambda_1 with beta_scale sends the messages over lambda_1, which is what is simulated.
    """

    course: Course
    coordinates: Symmetric

    @classmethod
    def of(cls, probes: Sequence[Array], algorithm: FAPS) -> MaskedSender:
        growth = [GROWTH if algorithm.adaptive and k > PERIOD else 1.0 for k in range(len(probes))]
        course = Course(probes, [algorithm.beta_scale * factor for factor in growth], algorithm.inner_steps)
        return cls(course, Symmetric.of(len(probes[0])))

    @property
    def count(self) -> int:
        return self.coordinates.count

    @property
    def determined(self) -> int:
        return self.count

    def gram(self, x: Array) -> Array:
        return self.coordinates.matrix(x)

    def sent(self, x: Array) -> Array:
        S = self.gram(x)
        try:
            top = float(np.linalg.eigvalsh(S)[-1])
            if not top > 0:
                raise LinAlgError
            products = messages(S / top, _EMPTY, self.course)
        except (LinAlgError, DivergenceError):
            return np.full(sum(Z.size + 1 for Z in self.course.probes), np.nan)
        return np.concatenate([*(top * Y.reshape(-1) for Y in products), self._captured(S)])

    def sent_and_tangents(self, x: Array) -> tuple[Array, Array]:
        values, vectors = np.linalg.eigh(self.gram(x))
        top, unit = float(values[-1]), x / float(values[-1])
        products, parts = messages_and_tangents(self.gram(unit), _EMPTY, self.course, self.coordinates)
        flat = np.concatenate([Y.reshape(-1) for Y in products])
        slopes = np.vstack([part.transpose(0, 2, 1).reshape(-1, self.count) for part in parts])
        d_top = self.coordinates.slopes(np.outer(vectors[:, -1], vectors[:, -1]))
        slopes = slopes - np.outer(slopes @ unit - flat, d_top)  # d[top Y(x / top)]
        scalars = np.stack([self.coordinates.slopes(Z @ Z.T) for Z in self.course.probes])
        return np.concatenate([top * flat, self._captured(self.gram(x))]), np.vstack([slopes, scalars])

    def _captured(self, S: Array) -> Array:
        return np.array([float(np.vdot(Z, S @ Z)) for Z in self.course.probes])
