"""Recover each client's Gram matrix S_i from sums of FedPG's or FedPE's messages, by one fit of all clients.

A sum of messages gives no single U_i. But each client's messages are a known function of S_i and of the broadcasts, and
a non-linear one, so that the sums depend on every S_i. All clients are simulated from the first round on, and their S_i
fitted to the sums together by Levenberg-Marquardt (`JointAttack`), which presumes the same clients in every round. The
steps depend on Y_i and Z through Y_i - rho Z. The package's head has the symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._base import RoundOutcome
from securefed.algorithms._pca.consensus import POINT
from securefed.algorithms._pca.fedpe import FedPE
from securefed.algorithms._pca.fedpg import FedPG
from securefed.algorithms._pca.server import BASIS
from securefed.attacks._base import Target, View
from securefed.attacks._duals.dual_attack import CONSTANT_DIAGONAL, z_scored_diagonal
from securefed.attacks._duals.local_steps_fit import NO_DRAWS, blind, client_with
from securefed.attacks._engine.fit import ForwardSimulation
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks._gram.joint_attack import JointAttack, JointFitProblem


@dataclass(frozen=True)
class JointDuals(JointAttack):
    """Fit the Gram matrices of all clients of a sum, for FedPG and FedPE with any number of local steps.

    Where the algorithm normalises, its clients use S_i / n_i, n_i the number of rows, and so does the fit. The sum of
    the S_i is then taken as that of the fitted matrices times the mean n_i, since the fit does not show which matrix is
    which client's. FedPG's messages are the same for S_i and S_i + c I, so that c must be guessed for each fitted
    matrix. A constant diagonal says that the columns are z-scored (mean 0, variance 1): then c sets it to their value,
    1 where the algorithm normalises, else n_i, for which the mean n_i stands. Otherwise c makes the least eigenvalue 0,
    as it is in a Gram matrix of fewer rows than features.
    """

    name: ClassVar[str] = "duals/joint"

    def why_other_algorithm(self, algorithm: object) -> str | None:
        """Return why the algorithm is none that this attack reads, or `None`."""
        return None if isinstance(algorithm, FedPG | FedPE) else "The messages hold no points of FedPG or FedPE."

    def size(self, target: Target, rounds: int) -> tuple[int, int]:
        """Return the numbers of unknowns of one client and of observed entries.

        FedPG does not show c, so it has one unknown less.
        """
        algorithm, features = cast("FedPG | FedPE", target.algorithm), target.public.features
        return features * (features + 1) // 2 - blind(algorithm), rounds * features * algorithm.rank

    def fit_problem(self, observed: View, target: Target) -> JointFitProblem:
        """Return the simulated client, the observed sums, and S = 0, where the fit begins.

        `JointAttack` first fits one matrix for all clients, from S = 0; then it changes each client's at random, and
        fits them all.
        """
        sender = simulated_run(observed, target)
        observed_sums = np.concatenate([o.message[POINT].reshape(-1) for o in observed.rounds])
        return JointFitProblem(sender, observed_sums, np.zeros(sender.count))

    def rescaled(self, grams: Array, target: Target, members: Sequence[int]) -> tuple[Array, float]:
        """Choose FedPG's unknown multiples of I, as the class explains.

        Args:
            grams: the fitted matrices, (clients, features, features).
            target: the algorithm and the public facts, with the clients' numbers of rows.
            members: ids of the clients.

        Returns:
            The matrices, and the factor from their sum to the sum of the S_i: the mean number of rows where the
            algorithm normalises, else 1.
        """
        algorithm = cast("FedPG | FedPE", target.algorithm)
        rows = float(np.mean([target.public.rows[client] for client in members]))
        unit = z_scored_diagonal(algorithm, rows)  # 1 or `rows`
        shifted = np.stack([_shifted(gram, unit) for gram in grams]) if blind(algorithm) else grams
        return shifted, rows if algorithm.normalise else 1.0


def _shifted(gram: Array, unit: float) -> Array:
    """Add a multiple of I, unseen by FedPG: a constant diagonal becomes `unit`, else the least eigenvalue 0."""
    diagonal = np.diag(gram)
    shift = unit - diagonal.mean() if np.ptp(diagonal) <= CONSTANT_DIAGONAL * unit else -np.linalg.eigvalsh(gram)[0]
    return np.asarray(gram + shift * np.eye(len(gram)))


def simulated_run(observed: View, target: Target) -> ForwardSimulation:
    """Return one client from its start on: the messages of all rounds as a function of the coordinates of its S.

    It receives the broadcasts of the view; after the last round that is the run's output.
    """
    algorithm = cast("FedPG | FedPE", target.algorithm)
    coordinates = SymmetricMatrices.of(target.public.features)
    received = [o.broadcast for o in observed.rounds]
    following = [*received[1:], {BASIS: observed.output.get(BASIS, received[-1][BASIS])}]

    def sent(x: Any) -> Any:
        client, points = client_with(coordinates.matrix(x), np.zeros((algorithm.rank, algorithm.rank))), []
        for broadcast, followed in zip(received, following, strict=True):
            client, message = algorithm.contribute(client, broadcast, NO_DRAWS)
            client = algorithm.commit(client, RoundOutcome(True, followed))
            points.append(message[POINT].reshape(-1))
        return np.concatenate(points)

    return ForwardSimulation(sent, coordinates.count, blind(algorithm))
