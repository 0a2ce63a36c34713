"""Solve for a FAPS client's subspaces X_k, and then for its Gram matrix S, round by round, at any number of features.

FAPS is a method of federated PCA. In each round the server broadcasts a basis Z, orthonormal (features, rank). A client
keeps a subspace of the same shape, and moves it from X_old to X by inner steps V <- orth(H V) from V = X_old:

    H = S - R,    R = X_old G_old^T + G_old X_old^T - beta Z Z^T,    G = (I - X X^T) S X, and G_old the same at X_old.

It sends Y = beta X X^T Z + X G^T Z + G X^T Z. In the first round X = Z, so that Y shows G. From then on X_old and G_old
are known from the round before. Two kinds of clients leave few unknowns in a round:

1. The client iterates until H maps the span of X into itself. Then (I - X X^T) H X = 0, so that G = (I - X X^T) R X,
   in which S does not occur. With P = X X^T the message is Y = beta P Z + P R Z + R P Z - 2 P R P Z. Only X is unknown,
   and it lies in the span of [Y, X_old, G_old, Z].
2. The client makes one inner step, X = orth(X_old M + beta Z Z^T X_old). Only M = X_old^T S X_old, (rank, rank), is
   unknown. The part of the message outside the span of X gives G. The part inside it and the symmetry of S give
   equations for M.

In both cases G becomes known in every round, and S follows from all of them (`elimination`). A client that stops after
several inner steps, before case 1, leaves more unknowns than equations in a round; `client_fit` fits S to all of its
rounds instead. A round's equations have several roots, so the search starts from an estimate of S (`near_consensus`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.linalg import LinAlgError

from securefed._tensors import Array
from securefed.algorithms._pca.faps import FAPS, GROWTH, PERIOD, STALL
from securefed.algorithms._pca.operators import off, orth
from securefed.algorithms._pca.server import BASIS, CAPTURED, PRODUCT
from securefed.attacks._base import RoundView
from securefed.attacks._fitting.levenberg_marquardt import (
    GeodesicAcceleration,
    ResidualAndJacobian,
    ResidualFunction,
    StallLimit,
    StepRule,
    levenberg_marquardt,
)
from securefed.attacks._gram.elimination import EliminatedProducts, InnerEquations, eliminate, symmetric_basis
from securefed.attacks._gram.faps.solution import FAPSSolution
from securefed.attacks._gram.linear import solve
from securefed.attacks._gram.tangents import crossed, horizontal, left, right
from securefed.errors import DivergenceError

LONGEST = 40
"""Most rounds that are solved; later ones move little and add little."""
_SOLVED = 1e-7
"""Relative residual below which a round counts as solved; the chain ends at the first round above it."""
_GOAL, _STEPS, _STARTS = 1e-14, 60, 40
"""Residual at which a solve stops, its most Jacobians, and number of random starts of a round with one inner step. The
first such round needs up to 30 of them: without, 5 of 10 clients of digits (36 features) are not solved.
"""
_PATIENCE = StallLimit(1e-5, far=12, close=None)
"""Twelve Jacobians that do not halve the residual end a solve that is far from a root."""
_EXACT_TOLERANCE = 1e-6
"""Inner tolerance below which clients are taken to iterate to the end."""
_DIFFERENCE = 1e-7
"""Step of finite differences, in units of beta."""


@dataclass(frozen=True)
class SolvedSubspace:
    """One subspace of the client, and what is known of S on it.

    Attributes:
        X: orthonormal basis, (features, rank).
        G: (I - X X^T) S X.
        inside: X^T S X, which one-step rounds determine; else `None`.
        trace: tr(X^T S X) of the first subspace, where it was sent for the stop rule; else `None`.
    """

    X: Array
    G: Array
    inside: Array | None = None
    trace: float | None = None


def is_solvable_by_rounds(algorithm: FAPS) -> bool:
    """Return whether rounds can be solved one by one: the client makes one inner step, or iterates to the end.

    A large fixed number of inner steps is not enough: in round 0 it moves the subspace away from Z, by round-off that
    it amplifies.
    """
    return algorithm.inner_steps == 1 or solves_subproblems(algorithm)


def solves_subproblems(algorithm: FAPS) -> bool:
    """Return whether clients iterate until H maps their subspace into itself (case 1 of the module).

    That takes hundreds of inner steps, too many for a fit of a simulated client.
    """
    follows_rule = algorithm.inner_steps is None and algorithm.inner_rule == "subspace"
    return follows_rule and algorithm.inner_tolerance <= _EXACT_TOLERANCE


def solve_round_by_round(
    rounds: Sequence[RoundView], algorithm: FAPS, rows: int, estimate: Array
) -> FAPSSolution | None:
    """Solve for one client's S from its first message on.

    Args:
        rounds: the client's messages.
        algorithm: the FAPS that the client runs.
        rows: public bound on the rank of S; 0 for none.
        estimate: an estimate of S, to start the solves from.

    Returns:
        The solution, `residual` that of the elimination; `None` where the first solve already fails.
    """
    one_step = algorithm.inner_steps == 1
    solved = _solve_subspaces(rounds[:LONGEST], algorithm, _one_step if one_step else _exact_step, estimate)
    if len(solved) < 2:
        return None
    eliminated = _eliminated(solved)
    gram = solve(eliminated.probes, eliminated.products, rows=rows).gram
    notes = {"rounds solved": len(solved)}
    return FAPSSolution(
        gram, "round by round", eliminated.residual, eliminated.rank, eliminated.unknowns, eliminated.condition, notes
    )


Next = Callable[[Sequence[SolvedSubspace], RoundView, float, Array], "tuple[SolvedSubspace, SolvedSubspace] | None"]
"""Arguments: the subspaces so far, the round, beta, an estimate of S. Result: the last subspace, with what the round
showed of it, and the next one.
"""


def _solve_subspaces(
    rounds: Sequence[RoundView], algorithm: FAPS, advance: Next, estimate: Array
) -> list[SolvedSubspace]:
    """Return the subspaces: one from round 0, where X = Z, and one from each further round, up to the first failure."""
    first = rounds[0]
    Z = first.broadcast[BASIS]
    beta = float(np.vdot(Z, first.message[PRODUCT])) / Z.shape[1]
    solved = [SolvedSubspace(Z, off(Z, first.message[PRODUCT]), trace=float(first.message[CAPTURED]))]
    distance = 0.0
    for k, observation in enumerate(rounds[1:], start=1):
        try:
            pair = advance(solved, observation, beta, estimate)
        except (LinAlgError, DivergenceError):
            pair = None
        if pair is None:
            break
        if algorithm.adaptive and k % PERIOD == 0:  # rule (25): beta grows unless the subspace has come closer to Z
            new_distance = math.sqrt(2) * float(np.linalg.norm(off(solved[-1].X, observation.broadcast[BASIS])))
            beta, distance = beta * (GROWTH if distance <= STALL * new_distance else 1.0), new_distance
        solved[-1:] = pair
    return solved


def _eliminated(solved: Sequence[SolvedSubspace]) -> EliminatedProducts:
    """Solve for the products of S with the subspaces."""
    return eliminate(
        [subspace.X for subspace in solved],
        [subspace.G for subspace in solved],
        [_inner(subspace) for subspace in solved],
    )


def _inner(subspace: SolvedSubspace) -> InnerEquations:
    """Return equations for what is known of X^T S X: all of it, its trace, or nothing."""
    basis = symmetric_basis(subspace.X.shape[1])
    if subspace.inside is not None:
        return InnerEquations(basis, subspace.inside)
    if subspace.trace is not None:
        return InnerEquations(np.trace(basis, axis1=1, axis2=2), np.full(1, subspace.trace))
    return InnerEquations(basis[:, 0, :0], np.zeros(0))


def _one_step(
    solved: Sequence[SolvedSubspace], observation: RoundView, beta: float, estimate: Array
) -> tuple[SolvedSubspace, SolvedSubspace] | None:
    """Solve a round of one inner step for M; return the last subspace, with M, and the next one; `None` on failure."""
    equations = _OneStepEquations.of(solved, observation, beta)
    rng = np.random.default_rng(0)
    guesses = (equations.guessed(rng) for _ in range(_STARTS))
    for start in chain([equations.expected(), equations.estimated(estimate)], guesses):
        x = _root(_by_differences(equations.residual), start, equations.residual)
        if x is not None:
            M = equations.matrix(x)
            return replace(solved[-1], inside=M), SolvedSubspace(*equations.next(M))
    return None


@dataclass(frozen=True)
class _OneStepEquations:
    """Equations for M = X^T S X of the last subspace X, from one inner step to the next subspace X+.

    With X+ and G+ from M by `next`, they are X+^T Y = beta X+^T Z + G+^T Z, the message inside X+, and the symmetry of
    S: there is a symmetric X+^T S X+ with which X_j^T (S X+) is the transpose of X+^T (S X_j) for all subspaces before.

    Attributes:
        X: the last subspace.
        G: (I - X X^T) S X.
        Z: broadcast basis of the round.
        Y: message of the round.
        beta: penalty of the round.
        probes: the subspaces before X, side by side, (features, columns).
        products: S times them, (features, columns).
        trace: tr M where it is known (of the first subspace), else `None`.
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
        solved_before = [
            (subspace.X, subspace.X @ subspace.inside + subspace.G)
            for subspace in solved
            if subspace.inside is not None
        ]
        empty = [np.zeros((len(solved[0].X), 0))]
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
        """Return M from its coordinates in units of beta."""
        return self.beta * np.tensordot(x, symmetric_basis(self.X.shape[1]), 1)

    def expected(self) -> Array:
        """Return coordinates of M to start from: a multiple of I with its trace, or the M that symmetry suggests."""
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
        basis = symmetric_basis(self.X.shape[1])
        trace = float(np.trace(self.matrix(self.expected())))
        vectors, values = orth(rng.normal(size=self.X.shape[1:] * 2)), np.exp(rng.uniform(-4, 0, self.X.shape[1]))
        M = (vectors * (values / values.sum() * trace)) @ vectors.T
        return np.asarray(np.tensordot(basis, M, 2) / self.beta)

    def next(self, M: Array) -> tuple[Array, Array]:
        """Return X+ = orth(X M + beta Z Z^T X) and G+ = (I - X+ X+^T) Y (X+^T Z)^-1."""
        X = orth(self.X @ M + self.beta * self.Z @ (self.Z.T @ self.X))
        return X, off(X, self.Y) @ np.linalg.inv(X.T @ self.Z)

    def residual(self, x: Array) -> Array:
        """Return the residuals relative to the message."""
        M = self.matrix(x)
        try:
            X, G = self.next(M)
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)
        inner = X.T @ self.Y - self.beta * (X.T @ self.Z) - G.T @ self.Z
        probes, products = np.hstack([self.probes, self.X]), np.hstack([self.products, self.X @ M + self.G])
        images, right = _symmetry(probes, products, X, G)
        asymmetry = right - images @ np.linalg.lstsq(images, right, rcond=None)[0]  # what no X+^T S X+ removes
        scalar = np.zeros(0) if self.trace is None else np.array([np.trace(M) - self.trace])
        return np.asarray(np.concatenate([inner.reshape(-1), asymmetry, scalar]) / float(np.linalg.norm(self.Y)))


def _symmetry(probes: Array, products: Array, X: Array, G: Array) -> tuple[Array, Array]:
    """Return linear equations for the coordinates of Theta = X^T S X, by the symmetry of S.

    With S X = X Theta + G they are probes^T (X Theta + G) = (X^T products)^T.
    """
    basis = symmetric_basis(X.shape[1])
    images = np.tensordot(probes.T @ X, basis, ((1,), (1,))).transpose(0, 2, 1)  # (columns, p, coordinates)
    return images.reshape(-1, len(basis)), (products.T @ X - probes.T @ G).reshape(-1)


def _exact_step(
    solved: Sequence[SolvedSubspace], observation: RoundView, beta: float, estimate: Array
) -> tuple[SolvedSubspace, SolvedSubspace] | None:
    """Solve a round of case 1 of the module; return the last and the next subspace, `None` on failure."""
    last, Z, Y = solved[-1], observation.broadcast[BASIS], observation.message[PRODUCT]
    frame, _ = np.linalg.qr(np.hstack([Y, last.X, last.G, Z]))
    X_in, G_in, Z_in, Y_in = (frame.T @ part for part in (last.X, last.G, Z, Y))
    cross = X_in @ G_in.T
    H = frame.T @ estimate @ frame - cross - cross.T + beta * Z_in @ Z_in.T  # (12): its leading subspace is X+
    leading = np.linalg.eigh(H)[1][:, -Z.shape[1] :]
    for start in (leading, Z_in, X_in, Y_in):
        equations = _StationarityEquations.of(X_in, G_in, Z_in, Y_in, beta, start)
        x = _root(
            equations.linearised,
            np.zeros(equations.unknowns),
            equations.residual,
            GeodesicAcceleration(equations.residual),
        )
        if x is not None:
            X = frame @ equations.subspace(x)
            R_times_X = last.G @ (last.X.T @ X) + last.X @ (last.G.T @ X) - beta * Z @ (Z.T @ X)
            return last, SolvedSubspace(X, off(X, R_times_X))
    return None


@dataclass(frozen=True)
class _StationarityEquations:
    """Equations Y = beta P Z + P R Z + R P Z - 2 P R P Z for the projection P on the new subspace.

    All matrices are in coordinates of an orthonormal basis of the span of [Y, X, G, Z]. The unknowns are the entries of
    T in the new X = orth(start + beside T).

    Attributes:
        R: X G^T + G X^T - beta Z Z^T of the last subspace X.
        Z: broadcast basis.
        Y: message.
        beta: penalty of the round.
        start: orthonormal basis of the subspace at which the search starts.
        beside: orthonormal basis of its complement.
    """

    R: Array
    Z: Array
    Y: Array
    beta: float
    start: Array
    beside: Array

    @classmethod
    def of(cls, X: Array, G: Array, Z: Array, Y: Array, beta: float, start: Array) -> _StationarityEquations:
        rank = X.shape[1]
        full, _ = np.linalg.qr(start, mode="complete")
        cross = X @ G.T
        return cls(cross + cross.T - beta * Z @ Z.T, Z, Y, beta, full[:, :rank], full[:, rank:])

    @property
    def unknowns(self) -> int:
        return int(self.beside.shape[1] * self.start.shape[1])

    def subspace(self, x: Array) -> Array:
        return orth(self.start + self.beside @ x.reshape(self.beside.shape[1], -1))

    def residual(self, x: Array) -> Array:
        """Return the residuals relative to the message."""
        try:
            X = self.subspace(x)
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)
        t = X.T @ self.Z
        RXt = self.R @ (X @ t)
        sent = self.beta * X @ t + X @ (X.T @ (self.R @ self.Z)) + RXt - 2 * X @ (X.T @ RXt)
        return np.asarray((sent - self.Y).reshape(-1) / float(np.linalg.norm(self.Y)))

    def linearised(self, x: Array) -> tuple[Array, Array]:
        """Return `residual` and its derivative (equations, parameters)."""
        complement, (others, rank) = self.beside, (self.beside.shape[1], self.start.shape[1])
        moves = np.zeros((len(complement), others, rank, rank))
        moves[:, :, np.arange(rank), np.arange(rank)] = complement[:, :, None]
        X, dX = horizontal(self.start + complement @ x.reshape(others, rank), moves.reshape(len(complement), -1, rank))
        RX, RZ, t, dt = self.R @ X, self.R @ self.Z, X.T @ self.Z, crossed(dX, self.Z)
        a, RXt = X.T @ RZ, RX @ t
        d_inside = crossed(dX, RXt) + left(RX.T, right(dX, t)) + left(X.T @ RX, dt)  # d(X^T) R X t + X^T R d(X t)
        d = right(dX, self.beta * t + a - 2 * X.T @ RXt) + left(self.R, right(dX, t))
        d += left(X, self.beta * dt + crossed(dX, RZ) - 2 * d_inside) + left(RX, dt)
        residual = (self.beta * X @ t + X @ a + RXt - 2 * X @ (X.T @ RXt) - self.Y) / float(np.linalg.norm(self.Y))
        jacobian = d.transpose(0, 2, 1).reshape(-1, self.unknowns) / float(np.linalg.norm(self.Y))
        return residual.reshape(-1), jacobian


def _root(
    linearised: ResidualAndJacobian, start: Array, residual: ResidualFunction, stepper: StepRule | None = None
) -> Array | None:
    """Return the root that a search from `start` ends at; `None` where it ends elsewhere."""
    fit = levenberg_marquardt(
        linearised, start, steps=_STEPS, goal=_GOAL, residual=residual, patience=_PATIENCE, stepper=stepper
    )
    return fit.point if fit.norm < _SOLVED else None


def _by_differences(residual: ResidualFunction) -> ResidualAndJacobian:
    """Return the residual with its derivative by finite differences, one by one for the few unknowns."""

    def linearised(x: Array) -> tuple[Array, Array]:
        value = residual(x)
        columns = [(residual(x + step) - value) / _DIFFERENCE for step in _DIFFERENCE * np.eye(len(x))]
        return value, np.stack(columns, axis=1)

    return linearised
