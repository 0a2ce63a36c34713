"""Reconstruct the single clients' Gram matrices S_i from sums of FAPS' masked products.

FAPS is a method of federated PCA. Client i has rows A_i^T and S_i = A_i A_i^T, (features, features), and keeps a
subspace, the span of X, orthonormal (features, rank). In each round it moves X by a number of subspace iterations
(inner steps V <- orth(H V), from V = X) with

    H = S_i + X W^T + W X^T + beta Z Z^T,    W = -(I - X X^T) S_i X,    Z the broadcast basis, shaped as X.

The client's penalty beta is a public multiple of lambda_1(S_i), the largest eigenvalue, which an adaptive rule raises.
The last V is its new X. It sends the masked product Y = beta X X^T Z - X W^T Z - W X^T Z with the new X and W at the
new X, and tr(Z^T S_i Z). Y is not linear in S_i, so a sum of messages depends on every S_i and not only on their
sum. With a fixed number of inner steps the messages are a known function of S_i. The attack simulates all clients and
fits their S_i to the sums (`joint_fit`). It runs on views that show sums only, as under secure aggregation, of the same
clients in every round from the first on, which the base class `JointAttack` checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.linalg import LinAlgError

from securefed._tensors import Array
from securefed.algorithms._pca.faps import FAPS
from securefed.algorithms._pca.server import BASIS, CAPTURED, PRODUCT
from securefed.attacks._base import Target, View
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks._gram.faps.fit_plan import known_rounds
from securefed.attacks._gram.faps.near_consensus import evenly_spaced, near_consensus
from securefed.attacks._gram.faps.simulated_client import (
    ReceivedRounds,
    messages,
    messages_and_tangents,
    received_rounds,
)
from securefed.attacks._gram.joint_attack import JointAttack, JointFitProblem
from securefed.attacks._gram.observed_rounds import rows_of
from securefed.errors import DivergenceError

_NO_COUNTS = np.zeros(0)
"""The unknown numbers of inner steps: none, since every client makes the same public number."""


@dataclass(frozen=True)
class JointGram(JointAttack):
    """Fit all clients of FAPS' sums at once.

    It needs a fixed number of inner steps: where clients stop by a rule, each client's numbers would be unknown too.
    """

    name: ClassVar[str] = "gram/joint"

    def why_other_algorithm(self, algorithm: object) -> str | None:
        """Return why an algorithm is not FAPS with a fixed number of inner steps, or `None`."""
        if isinstance(algorithm, FAPS) and algorithm.inner_steps is not None:
            return None
        return "The messages are no masked products of FAPS with a fixed number of inner steps."

    def size(self, target: Target, rounds: int) -> tuple[int, int]:
        """Return the number of unknowns of one client, and of observed entries in the rounds whose beta is known.

        A round shows the features x rank entries of the sum of the Y, and one sum of traces.
        """
        algorithm, features = cast(FAPS, target.algorithm), target.public.features
        return features * (features + 1) // 2, known_rounds(algorithm, rounds) * (features * algorithm.rank + 1)

    def fit_problem(self, observed: View, target: Target) -> JointFitProblem:
        """Return the simulation of a client, the sums, and the point at which the fit of every client begins.

        Every S_i begins as an equal share of one estimate of their sum: that of a client near consensus, whose messages
        are linear in S (`near_consensus`), from an even selection of the rounds.
        """
        algorithm = cast(FAPS, target.algorithm)
        rounds = observed.rounds[: known_rounds(algorithm, len(observed.rounds))]
        members = rounds[0].members
        sender = FAPSSimulation.of([o.broadcast[BASIS] for o in rounds], algorithm)
        pooled = near_consensus(evenly_spaced(rounds), algorithm.beta_scale, rows_of(members, target.public)).gram
        products = [o.message[PRODUCT].reshape(-1) for o in rounds]
        observed_sums = np.concatenate([*products, [float(o.message[CAPTURED]) for o in rounds]])
        return JointFitProblem(sender, observed_sums, sender.coordinates.coordinates(pooled / len(members)))


@dataclass(frozen=True)
class FAPSSimulation:
    """Messages of one client of FAPS over all rounds, as a function of the coordinates x of its S, (count,).

    The client's beta is beta_scale lambda_1(S). Its messages are homogeneous: those for S are lambda_1(S) times those
    for S / lambda_1(S). The latter are simulated.

    Attributes:
        received: the broadcasts, the betas for lambda_1(S) = 1, and the number of inner steps.
        coordinates: parametrisation of S.
    """

    received: ReceivedRounds
    coordinates: SymmetricMatrices

    @classmethod
    def of(cls, probes: Sequence[Array], algorithm: FAPS) -> FAPSSimulation:
        """Return the simulation of a client that receives these broadcasts."""
        return cls(received_rounds(probes, algorithm), SymmetricMatrices.of(len(probes[0])))

    @property
    def count(self) -> int:
        """Return the number of coordinates of S."""
        return self.coordinates.count

    @property
    def determined(self) -> int:
        """Return the number of coordinates of S, all of which the messages determine."""
        return self.count

    def gram(self, x: Array) -> Array:
        """Return S."""
        return self.coordinates.matrix(x)

    def sent(self, x: Array) -> Array:
        """Return the entries of all messages, then all scalars tr(Z^T S Z), as one vector, (equations,).

        All entries are NaN where the simulation fails or lambda_1(S) is not positive.
        """
        S = self.gram(x)
        try:
            top = float(np.linalg.eigvalsh(S)[-1])
            if not top > 0:
                raise LinAlgError
            products = messages(S / top, _NO_COUNTS, self.received)
        except (LinAlgError, DivergenceError):
            return np.full(sum(Z.size + 1 for Z in self.received.probes), np.nan)
        return np.concatenate([*(top * Y.reshape(-1) for Y in products), self._captured(S)])

    def sent_and_tangents(self, x: Array) -> tuple[Array, Array]:
        """Return `sent`, and its derivative (equations, count)."""
        values, vectors = np.linalg.eigh(self.gram(x))
        top, unit = float(values[-1]), x / float(values[-1])
        products, parts = messages_and_tangents(self.gram(unit), _NO_COUNTS, self.received, self.coordinates)
        flat = np.concatenate([Y.reshape(-1) for Y in products])
        # derivatives of a Y, (features, count, rank), with one row for each of its flattened entries
        slopes = np.vstack([part.transpose(0, 2, 1).reshape(-1, self.count) for part in parts])
        d_top = self.coordinates.slopes(np.outer(vectors[:, -1], vectors[:, -1]))
        # d[top Y(x / top)] = Y'(x / top) dx - (Y'(x / top) (x / top) - Y) dtop, with top = lambda_1
        slopes = slopes - np.outer(slopes @ unit - flat, d_top)
        scalars = np.stack([self.coordinates.slopes(Z @ Z.T) for Z in self.received.probes])
        return np.concatenate([top * flat, self._captured(self.gram(x))]), np.vstack([slopes, scalars])

    def _captured(self, S: Array) -> Array:
        """Return tr(Z^T S Z) of each round, (rounds,)."""
        return np.array([float(np.vdot(Z, S @ Z)) for Z in self.received.probes])
