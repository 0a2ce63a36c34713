"""Solve one round of a FAPS client that iterates to the end, for its new subspace.

The span of the new X is then invariant under H = S - R, with R = X_old G_old^T + G_old X_old^T - beta Z Z^T known from
the round before. So G = (I - X X^T) S X = (I - X X^T) R X, in which S does not occur, and the message becomes, with the
projection P = X X^T,

    Y = beta P Z + P R Z + R P Z - 2 P R P Z.

Only X is unknown. It lies in the span of [Y, X_old, G_old, Z], in a basis of which the equations are solved at any
number of features. They have several roots; the search starts from the leading eigenvectors of H with an estimate of S,
then from Z, X_old and Y. Derivatives dX of a matrix by all unknowns are one array (rows, unknowns, columns); left(M,
dX) is M dX, right(dX, R) is dX R, crossed(dX, V) is dX^T V, and horizontal(N, dN) returns orth(N) with its derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.operators import off, orth
from securefed.algorithms._pca.server import BASIS, PRODUCT
from securefed.attacks._base import RoundView
from securefed.attacks._engine.fit import ForwardSimulation
from securefed.attacks._fitting.levenberg_marquardt import GeodesicAcceleration
from securefed.attacks._gram.faps.solved_subspace import SolvedSubspace, find_root


def exact_round(
    solved: Sequence[SolvedSubspace], observation: RoundView, beta: float, estimate: Array
) -> tuple[SolvedSubspace, SolvedSubspace] | None:
    """Solve a round of a client that iterates to the end.

    Args:
        solved: the subspaces so far; the last one is X_old.
        observation: the round, with the basis Z and the message Y.
        beta: penalty of the round.
        estimate: an estimate of S, (features, features).

    Returns:
        The last subspace unchanged, and the next one, X and G; `None` where no start ends at a root.
    """
    last, Z, Y = solved[-1], observation.broadcast[BASIS], observation.message[PRODUCT]
    frame, _ = np.linalg.qr(np.hstack([Y, last.X, last.G, Z]))  # orthonormal basis of the span
    X_in, G_in, Z_in, Y_in = (frame.T @ part for part in (last.X, last.G, Z, Y))
    cross = X_in @ G_in.T
    H = frame.T @ estimate @ frame - cross - cross.T + beta * Z_in @ Z_in.T  # its leading eigenvectors span about X
    leading = np.linalg.eigh(H)[1][:, -Z.shape[1] :]
    for start in (leading, Z_in, X_in, Y_in):
        equations = _StationarityEquations.of(X_in, G_in, Z_in, Y_in, beta, start)
        problem = ForwardSimulation(equations, equations.unknowns)
        stepper = GeodesicAcceleration(problem.sent)
        x = find_root(problem.sent_and_tangents, np.zeros(problem.count), problem.sent, stepper)
        if x is not None:
            X = frame @ equations.subspace(x)
            # R X, and the block G = (I - X X^T) R X
            R_times_X = last.G @ (last.X.T @ X) + last.X @ (last.G.T @ X) - beta * Z @ (Z.T @ X)
            return last, SolvedSubspace(X, off(X, R_times_X))
    return None


@dataclass(frozen=True)
class _StationarityEquations:
    """Equations Y = beta P Z + P R Z + R P Z - 2 P R P Z for the projection P = X X^T on the new subspace.

    All matrices are in coordinates of an orthonormal basis of the span of [Y, X_old, G_old, Z]; its dimension is called
    n. The unknowns x are the entries of T, (n - rank, rank), in X = orth(start + beside T).

    Attributes:
        R: X_old G_old^T + G_old X_old^T - beta Z Z^T, (n, n).
        Z: broadcast basis, (n, rank).
        Y: message, (n, rank).
        beta: penalty of the round.
        start: orthonormal basis of the subspace at which the search starts, (n, rank).
        beside: orthonormal basis of its complement, (n, n - rank).
    """

    R: Array
    Z: Array
    Y: Array
    beta: float
    start: Array
    beside: Array

    @classmethod
    def of(cls, X: Array, G: Array, Z: Array, Y: Array, beta: float, start: Array) -> _StationarityEquations:
        """Return the equations; X and G are X_old and G_old."""
        rank = X.shape[1]
        full, _ = np.linalg.qr(start, mode="complete")
        cross = X @ G.T
        return cls(cross + cross.T - beta * Z @ Z.T, Z, Y, beta, full[:, :rank], full[:, rank:])

    @property
    def unknowns(self) -> int:
        """Return the number of entries of T."""
        return int(self.beside.shape[1] * self.start.shape[1])

    def subspace(self, x: Any) -> Any:
        """Return X = orth(start + beside T), (n, rank)."""
        return orth(self.start + self.beside @ x.reshape(self.beside.shape[1], -1))

    def __call__(self, x: Any) -> Any:
        """Return (right-hand side - Y) / ||Y||, flat."""
        X = self.subspace(x)
        t = X.T @ self.Z
        RXt = self.R @ (X @ t)
        sent = self.beta * (X @ t) + X @ (X.T @ (self.R @ self.Z)) + RXt - 2 * (X @ (X.T @ RXt))
        return (sent - self.Y).reshape(-1) / float(np.linalg.norm(self.Y))
