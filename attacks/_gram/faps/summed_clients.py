"""Reconstruct the single clients' Gram matrices S_i from sums of FAPS' masked products.

A masked product is not linear in S_i, so a sum of messages depends on every S_i and not only on their sum. With a fixed
number of inner steps the messages are a known function of S_i: the attack simulates all clients and fits their S_i to
the sums. It runs on views that show sums only, as under secure aggregation, of the same clients in every round from the
first on, which the base class `JointAttack` checks. The package's head has the symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.linalg import LinAlgError

from securefed._tensors import Array
from securefed.algorithms._pca.faps import FAPS
from securefed.algorithms._pca.server import BASIS, CAPTURED, PRODUCT
from securefed.attacks._base import Target, View
from securefed.attacks._engine.fit import ForwardSimulation
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks._gram.faps.fit_plan import known_rounds
from securefed.attacks._gram.faps.near_consensus import evenly_spaced, near_consensus
from securefed.attacks._gram.faps.simulated_client import messages, received_rounds
from securefed.attacks._gram.joint_attack import JointAttack, JointFitProblem
from securefed.attacks._gram.observed_rounds import rows_of

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
        sender = faps_simulation([o.broadcast[BASIS] for o in rounds], algorithm)
        pooled = near_consensus(evenly_spaced(rounds), algorithm.beta_scale, rows_of(members, target.public)).gram
        products = [o.message[PRODUCT].reshape(-1) for o in rounds]
        observed_sums = np.concatenate([*products, [float(o.message[CAPTURED]) for o in rounds]])
        return JointFitProblem(
            sender, observed_sums, SymmetricMatrices.of(len(pooled)).coordinates(pooled / len(members))
        )


def faps_simulation(probes: Sequence[Array], algorithm: FAPS) -> ForwardSimulation:
    """Return the messages of a client of FAPS, then all scalars tr(Z^T S Z), as a function of the coordinates of its S.

    The client's beta is beta_scale lambda_1(S). Its messages are homogeneous: those for S are lambda_1(S) times those
    for S / lambda_1(S). The latter are simulated.

    Args:
        probes: the bases Z that the client receives.
        algorithm: the FAPS that it runs, with a fixed number of inner steps.
    """
    received, coordinates = received_rounds(probes, algorithm), SymmetricMatrices.of(len(probes[0]))

    def sent(x: Any) -> Any:
        S = coordinates.matrix(x)
        top = np.linalg.eigvalsh(S)[-1]
        if not top > 0:
            raise LinAlgError("a Gram matrix has a positive eigenvalue")
        products = messages(S / top, _NO_COUNTS, received)
        captured = np.stack([np.vdot(Z, S @ Z) for Z in probes])
        return np.concatenate([*(top * Y.reshape(-1) for Y in products), captured])

    return ForwardSimulation(sent, coordinates.count)
