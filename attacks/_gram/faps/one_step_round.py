"""Solve one round of a FAPS client that makes one inner step, for its new subspace and the Gram matrix on the old one.

Since X^T G = 0, H X = S X - G + beta Z Z^T X = X M + beta Z Z^T X with M = X^T S X: of all S only M, symmetric
(rank, rank), is unknown. For a guess of M the new subspace is X+ = orth(H X), and the part of the message outside its
span gives G+ = (I - X+ X+^T) Y (X+^T Z)^-1. The guess is right where the rest holds too:

    X+^T Y = beta X+^T Z + G+^T Z                                                  the message inside the span of X+
    X_j^T (X+ Theta + G+) = (X+^T S X_j)^T for all earlier subspaces X_j and X     the symmetry of S
    tr M = the scalar sent                                                         for the first subspace only

with some symmetric Theta = X+^T S X+. `round_by_round` calls this for each round after the first. The equations have
several roots, so Levenberg-Marquardt starts from what symmetry or an estimate of S suggests, then at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.linalg import LinAlgError

from securefed._tensors import Array
from securefed.algorithms._pca.operators import off, orth
from securefed.algorithms._pca.server import BASIS, PRODUCT
from securefed.attacks._base import RoundView
from securefed.attacks._fitting.levenberg_marquardt import ResidualAndJacobian, ResidualFunction
from securefed.attacks._gram.elimination import symmetric_basis
from securefed.attacks._gram.faps.solved_subspace import SolvedSubspace, find_root
from securefed.errors import DivergenceError

_STARTS = 40
"""Number of random starts. The first round needs up to 30 of them: without, 5 of 10 clients of digits (36 features) are
not solved.
"""
_DIFFERENCE = 1e-7
"""Step of finite differences, in units of beta: about the root of the relative precision of a double."""


def one_step_round(
    solved: Sequence[SolvedSubspace], observation: RoundView, beta: float, estimate: Array
) -> tuple[SolvedSubspace, SolvedSubspace] | None:
    """Solve a round of one inner step for M.

    Args:
        solved: the subspaces so far, each with X, G and `inside` = X^T S X; the last one lacks `inside`, which is M.
        observation: the round, with the basis Z and the message Y.
        beta: penalty of the round.
        estimate: an estimate of S, (features, features).

    Returns:
        The last subspace with M as its `inside`, and the next one, X+ and G+; `None` where no start ends at a root.
    """
    equations = _OneStepEquations.of(solved, observation, beta)
    rng = np.random.default_rng(0)
    guesses = (equations.guessed(rng) for _ in range(_STARTS))
    for start in chain([equations.expected(), equations.estimated(estimate)], guesses):
        x = find_root(_by_differences(equations.residual), start, equations.residual)
        if x is not None:
            M = equations.matrix(x)
            return replace(solved[-1], inside=M), SolvedSubspace(*equations.next(M))
    return None


@dataclass(frozen=True)
class _OneStepEquations:
    """The module's equations for M.

    The unknowns x, (rank (rank + 1) / 2,), are the coordinates of M / beta in `symmetric_basis`.

    Attributes:
        X: the last subspace.
        G: (I - X X^T) S X.
        Z: broadcast basis of the round.
        Y: message of the round.
        beta: penalty of the round.
        probes: the subspaces X_j before X, side by side, (features, columns).
        products: the S X_j, which are known, (features, columns).
        trace: tr M, known of the first subspace only: there X is the broadcast basis Z, and clients send tr(Z^T S Z);
            else `None`.
    """

    X: Array
    G: Array
    Z: Array
    Y: Array
    beta: float
    probes: Array
    products: Array
    trace: float | None

    @classmethod
    def of(cls, solved: Sequence[SolvedSubspace], observation: RoundView, beta: float) -> _OneStepEquations:
        """Collect what is known before the round is solved; S X_j = X_j (X_j^T S X_j) + G_j."""
        solved_before = [
            (subspace.X, subspace.X @ subspace.inside + subspace.G)
            for subspace in solved
            if subspace.inside is not None
        ]
        empty = [np.zeros((len(solved[0].X), 0))]  # for the first round, which has no subspace before X
        return cls(
            X=solved[-1].X,
            G=solved[-1].G,
            Z=observation.broadcast[BASIS],
            Y=observation.message[PRODUCT],
            beta=beta,
            probes=np.hstack(empty + [X for X, _ in solved_before]),
            products=np.hstack(empty + [SX for _, SX in solved_before]),
            trace=solved[0].trace if len(solved) == 1 else None,
        )

    def matrix(self, x: Array) -> Array:
        """Return M from its coordinates x."""
        return self.beta * np.tensordot(x, symmetric_basis(self.X.shape[1]), 1)

    def expected(self) -> Array:
        """Return coordinates to start from: of the multiple of I with the known trace, or of the M of least asymmetry.

        The latter solves X_j^T (X M + G) = (X^T S X_j)^T for all X_j before X by least squares.
        """
        basis = symmetric_basis(self.X.shape[1])
        if self.trace is not None:
            return np.asarray(np.trace(basis, axis1=1, axis2=2) * self.trace / (len(self.X.T) * self.beta))
        images, right = _symmetry(self.probes, self.products, self.X, self.G)
        return np.asarray(np.linalg.lstsq(images, right, rcond=None)[0] / self.beta)

    def estimated(self, estimate: Array) -> Array:
        """Return the coordinates of M that an estimate of S suggests."""
        M = self.X.T @ estimate @ self.X
        return np.asarray(np.tensordot(symmetric_basis(len(M)), M, 2) / self.beta)

    def guessed(self, rng: np.random.Generator) -> Array:
        """Return the coordinates of a random positive semidefinite matrix of the expected trace."""
        rank = self.X.shape[1]
        trace = float(np.trace(self.matrix(self.expected())))
        # eigenvalues in proportion to numbers between e^-4 and 1, with random eigenvectors
        vectors, values = orth(rng.normal(size=(rank, rank))), np.exp(rng.uniform(-4, 0, rank))
        M = (vectors * (values / values.sum() * trace)) @ vectors.T
        return np.asarray(np.tensordot(symmetric_basis(rank), M, 2) / self.beta)

    def next(self, M: Array) -> tuple[Array, Array]:
        """Return X+ = orth(X M + beta Z Z^T X) and G+ = (I - X+ X+^T) Y (X+^T Z)^-1."""
        X = orth(self.X @ M + self.beta * self.Z @ (self.Z.T @ self.X))
        return X, off(X, self.Y) @ np.linalg.inv(X.T @ self.Z)

    def residual(self, x: Array) -> Array:
        """Return the residuals of the module's equations, over the norm of the message; NaN where X+ is not defined."""
        M = self.matrix(x)
        try:
            X, G = self.next(M)
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)
        # X and G are from here on those of the new subspace, X+ and G+
        inner = X.T @ self.Y - self.beta * (X.T @ self.Z) - G.T @ self.Z
        probes, products = np.hstack([self.probes, self.X]), np.hstack([self.products, self.X @ M + self.G])
        images, right = _symmetry(probes, products, X, G)
        asymmetry = right - images @ np.linalg.lstsq(images, right, rcond=None)[0]  # what no X+^T S X+ removes
        scalar = np.zeros(0) if self.trace is None else np.array([np.trace(M) - self.trace])
        return np.asarray(np.concatenate([inner.reshape(-1), asymmetry, scalar]) / float(np.linalg.norm(self.Y)))


def _symmetry(probes: Array, products: Array, X: Array, G: Array) -> tuple[Array, Array]:
    """Return linear equations for the coordinates of Theta = X^T S X, by the symmetry of S.

    With S X = X Theta + G they are probes^T (X Theta + G) = (X^T products)^T, one for each column of the probes and of
    X.

    Returns:
        The matrix (equations, coordinates), and the right-hand sides (equations,).
    """
    basis = symmetric_basis(X.shape[1])
    images = np.tensordot(probes.T @ X, basis, ((1,), (1,))).transpose(0, 2, 1)  # (columns, p, coordinates)
    return images.reshape(-1, len(basis)), (products.T @ X - probes.T @ G).reshape(-1)


def _by_differences(residual: ResidualFunction) -> ResidualAndJacobian:
    """Return a function that gives the residual and its Jacobian by forward differences, for few unknowns."""

    def linearised(x: Array) -> tuple[Array, Array]:
        value = residual(x)
        columns = [(residual(x + step) - value) / _DIFFERENCE for step in _DIFFERENCE * np.eye(len(x))]
        return value, np.stack(columns, axis=1)

    return linearised
