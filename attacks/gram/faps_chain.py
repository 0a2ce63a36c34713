"""FAPS' subspaces X_k one after another, from its messages: one small solve a round, at any number of features.

Where every subproblem is solved exactly, S cancels: with G = (I - X X^T) S X known, stationarity of the new X says
(I - X X^T) S X = (I - X X^T) R X, R = X_old G_old^T + G_old X_old^T - beta Z Z^T, and the message
Y = beta P Z + P R Z + R P Z - 2 P R P Z, P = X X^T, has X as its only unknown, in the span of [Y, X_old, G_old, Z].
With one inner step X = orth(X_old M + beta Z Z^T X_old), M = X_old^T S X_old (rank x rank) the only unknown; of
the message's parts inside and outside X one gives G, the other equations.

Either way (I - X_k X_k^T) S X_k are known, and S follows by elimination as from FedPG. Several inner steps have no such
solve: a count of equations says that there is none.

The solves have more roots than one is looking for, and an estimate of S (near consensus) says where to begin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.linalg import LinAlgError

from securefed.algorithms.pca.faps import FAPS, GROWTH, PERIOD, STALL
from securefed.algorithms.pca.operators import off, orth
from securefed.algorithms.pca.server import BASIS, CAPTURED, PRODUCT
from securefed.attacks.base import Observation
from securefed.attacks.gram.elimination import Inner, Products, eliminate, symmetric_basis
from securefed.attacks.gram.linear import solve
from securefed.attacks.gram.tangents import crossed, horizontal, left, right
from securefed.attacks.levenberg import Geodesic, Linearised, Patience, Residual, Stepper, levenberg
from securefed.errors import DivergenceError
from securefed.tensors import Array

LONGEST = 40
"""Rounds that are followed; more say little that is new."""
_SOLVED = 1e-7
"""A round counts as solved at this relative misfit of its message; the chain ends at the first that is not."""
_GOAL, _SOLVED_GOAL, _STEPS, _STARTS, _FIRST_STARTS = 1e-14, 1e-12, 60, 8, 40
_PATIENCE, _LONG_PATIENCE = Patience(1e-5, far=6, close=None), Patience(1e-5, far=12, close=None)
_EXACT_TOLERANCE = 1e-6
_DIFFERENCE = 1e-7


@dataclass(frozen=True)
class Link:
    """One subspace.

    Attributes:
        X: (features, rank), orthonormal.      G: (I - X X^T) S X.      inside: X^T S X, where a round showed it.
        trace: its trace, where that was sent (of the first one).
    """

    X: Array
    G: Array
    inside: Array | None = None
    trace: float | None = None


@dataclass(frozen=True)
class Chained:
    """S from a chain.

    Attributes:
        gram: S.      rounds: that were solved.      rank, unknowns, condition, residual: of the elimination.
    """

    gram: Array
    rounds: int
    rank: int
    unknowns: int
    condition: float
    residual: float


def is_chain(algorithm: FAPS) -> bool:
    """Whether rounds can be solved one by one: one inner step, or as many as a tight tolerance takes."""
    # a large fixed number leaves Z in round 0 by amplified round-off
    return algorithm.inner_steps == 1 or solved_exactly(algorithm)


def solved_exactly(algorithm: FAPS) -> bool:
    """Whether clients iterate until their subproblem is solved: hundreds of times, which nobody can simulate back."""
    follows_rule = algorithm.inner_steps is None and algorithm.inner_rule == "subspace"
    return follows_rule and algorithm.inner_tolerance <= _EXACT_TOLERANCE


def chain_client(rounds: Sequence[Observation], algorithm: FAPS, rows: int, estimate: Array) -> Chained | None:
    """Follow one client from its first message on; `None` where the first small solve already fails.

    Args:
        rows: public bound on the rank of S.      estimate: of S, to start the solves from.
    """
    one_step = algorithm.inner_steps == 1
    links = _follow(rounds[:LONGEST], algorithm, _one_step if one_step else _exact, estimate)
    if len(links) < 2:
        return None
    seen = _eliminated(links)
    gram = solve(seen.probes, seen.products, rows=rows).gram
    return Chained(gram, len(links), seen.rank, seen.unknowns, seen.condition, seen.residual)


Next = Callable[[Sequence[Link], Observation, float, Array], "tuple[Link, Link] | None"]
"""(links so far, the round, beta, an estimate of S) -> the last link again, with what the round showed of it, and the
next one."""


def _follow(rounds: Sequence[Observation], algorithm: FAPS, advance: Next, estimate: Array) -> list[Link]:
    """The links, the first from round 0, where X = Z; each further round gives one more."""
    first = rounds[0]
    Z = first.broadcast[BASIS]
    beta = float(np.vdot(Z, first.message[PRODUCT])) / Z.shape[1]
    links = [Link(Z, off(Z, first.message[PRODUCT]), trace=float(first.message[CAPTURED]))]
    distance = 0.0
    for k, observation in enumerate(rounds[1:], start=1):
        try:
            found = advance(links, observation, beta, estimate)
        except (LinAlgError, DivergenceError):
            found = None
        if found is None:
            break
        if algorithm.adaptive and k % PERIOD == 0:  # rule (25), on the subspace that the round began with
            now = math.sqrt(2) * float(np.linalg.norm(off(links[-1].X, observation.broadcast[BASIS])))
            beta, distance = beta * (GROWTH if distance <= STALL * now else 1.0), now
        links[-1:] = found
    return links


def _eliminated(links: Sequence[Link]) -> Products:
    """S on the subspaces."""
    return eliminate([link.X for link in links], [link.G for link in links], [_inner(link) for link in links])


def _inner(link: Link) -> Inner:
    """What is known of X^T S X: all, its trace, or nothing."""
    basis = symmetric_basis(link.X.shape[1])
    if link.inside is not None:
        return Inner(basis, link.inside)
    if link.trace is not None:
        return Inner(np.trace(basis, axis1=1, axis2=2), np.full(1, link.trace))
    return Inner(basis[:, 0, :0], np.zeros(0))


def _one_step(
    links: Sequence[Link], observation: Observation, beta: float, estimate: Array
) -> tuple[Link, Link] | None:
    """The next link where there was one inner step."""
    equations = _Corner.of(links, observation, beta)
    rng = np.random.default_rng(0)
    for attempt in range(_FIRST_STARTS if len(links) == 1 else _STARTS):
        start = (
            equations.expected()
            if attempt == 0
            else equations.estimated(estimate)
            if attempt == 1
            else equations.guessed(rng)
        )
        x = _least(_by_differences(equations.residual), start, equations.residual)
        if x is not None:
            M = equations.matrix(x)
            return replace(links[-1], inside=M), Link(*equations.next(M))
    return None


@dataclass(frozen=True)
class _Corner:
    """Equations of M = X^T S X of the last link: what the message says inside the next X, and symmetry of S.

    Attributes:
        X, G: of the last link.      Z, Y, beta: of the round.
        probes, products: [X_1 .. ] and S of them, of the links before, (features, columns).
        trace: tr M where it is known (of the first link), else `None`.
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
    def of(cls, links: Sequence[Link], observation: Observation, beta: float) -> _Corner:
        known = [(link.X, link.X @ link.inside + link.G) for link in links if link.inside is not None]
        none = [np.zeros((len(links[0].X), 0))]
        return cls(
            X=links[-1].X,
            G=links[-1].G,
            Z=observation.broadcast[BASIS],
            Y=observation.message[PRODUCT],
            beta=beta,
            probes=np.hstack(none + [X for X, _ in known]),
            products=np.hstack(none + [SX for _, SX in known]),
            trace=links[0].trace if len(links) == 1 else None,
        )

    def matrix(self, x: Array) -> Array:
        """M from its coordinates in units of beta."""
        return self.beta * np.tensordot(x, symmetric_basis(self.X.shape[1]), 1)

    def expected(self) -> Array:
        """Coordinates of what the trace says of M, or the links before by symmetry."""
        basis = symmetric_basis(self.X.shape[1])
        if self.trace is not None:
            return np.asarray(np.trace(basis, axis1=1, axis2=2) * self.trace / (len(self.X.T) * self.beta))
        images, seen = _symmetry(self.probes, self.products, self.X, self.G)
        return np.asarray(np.linalg.lstsq(images, seen, rcond=None)[0] / self.beta)

    def estimated(self, estimate: Array) -> Array:
        """Coordinates of what an estimate of S says of M."""
        M = self.X.T @ estimate @ self.X
        return np.asarray(np.tensordot(symmetric_basis(len(M)), M, 2) / self.beta)

    def guessed(self, rng: np.random.Generator) -> Array:
        """Coordinates of a random positive semidefinite matrix, its eigenvalues spread, of the trace expected."""
        basis = symmetric_basis(self.X.shape[1])
        trace = float(np.trace(self.matrix(self.expected())))
        vectors, values = orth(rng.normal(size=self.X.shape[1:] * 2)), np.exp(rng.uniform(-4, 0, self.X.shape[1]))
        M = (vectors * (values / values.sum() * trace)) @ vectors.T
        return np.asarray(np.tensordot(basis, M, 2) / self.beta)

    def next(self, M: Array) -> tuple[Array, Array]:
        """X+ = orth(X M + beta Z Z^T X), G+ = (I - X+ X+^T) Y (X+^T Z)^-1."""
        X = orth(self.X @ M + self.beta * self.Z @ (self.Z.T @ self.X))
        return X, off(X, self.Y) @ np.linalg.inv(X.T @ self.Z)

    def residual(self, x: Array) -> Array:
        """Relative to the message."""
        M = self.matrix(x)
        try:
            X, G = self.next(M)
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)
        inside = X.T @ self.Y - self.beta * (X.T @ self.Z) - G.T @ self.Z
        probes, products = np.hstack([self.probes, self.X]), np.hstack([self.products, self.X @ M + self.G])
        images, seen = _symmetry(probes, products, X, G)
        left = seen - images @ np.linalg.lstsq(images, seen, rcond=None)[0]  # what no X+^T S X+ removes
        scalar = np.zeros(0) if self.trace is None else np.array([np.trace(M) - self.trace])
        return np.asarray(np.concatenate([inside.reshape(-1), left, scalar]) / float(np.linalg.norm(self.Y)))


def _symmetry(probes: Array, products: Array, X: Array, G: Array) -> tuple[Array, Array]:
    """Equations of the coordinates of X^T S X: probes^T S X is the transpose of X^T (S probes), S X = X Theta + G."""
    basis = symmetric_basis(X.shape[1])
    images = np.tensordot(probes.T @ X, basis, ((1,), (1,))).transpose(0, 2, 1)  # (columns, p, coordinates)
    return images.reshape(-1, len(basis)), (products.T @ X - probes.T @ G).reshape(-1)


def _exact(links: Sequence[Link], observation: Observation, beta: float, estimate: Array) -> tuple[Link, Link] | None:
    """The next link where the subproblem was solved."""
    last, Z, Y = links[-1], observation.broadcast[BASIS], observation.message[PRODUCT]
    frame, _ = np.linalg.qr(np.hstack([Y, last.X, last.G, Z]))
    X_in, G_in, Z_in, Y_in = (frame.T @ part for part in (last.X, last.G, Z, Y))
    cross = X_in @ G_in.T
    H = frame.T @ estimate @ frame - cross - cross.T + beta * Z_in @ Z_in.T  # (12): its leading subspace is X+
    rng = np.random.default_rng(0)
    leading = np.linalg.eigh(H)[1][:, -Z.shape[1] :]
    starts = [leading, Z_in, X_in, Y_in, *(rng.normal(size=X_in.shape) for _ in range(_STARTS - 4))]
    for start in starts:
        equations = _Stationary.of(X_in, G_in, Z_in, Y_in, beta, start)
        x = _least(equations.linearised, np.zeros(equations.unknowns), equations.residual, Geodesic(equations.residual))
        if x is not None:
            X = frame @ equations.subspace(x)
            low = last.G @ (last.X.T @ X) + last.X @ (last.G.T @ X) - beta * Z @ (Z.T @ X)
            return last, Link(X, off(X, low))
    return None


@dataclass(frozen=True)
class _Stationary:
    """Y = beta P Z + P R Z + R P Z - 2 P R P Z in the span of [Y, X, G, Z], P the projection onto the new X.

    Attributes:
        R, Z, Y: in that frame.      beta: of the round.
        start, beside: the new X is orth(start + beside T), orthonormal bases of a subspace and of its complement.
    """

    R: Array
    Z: Array
    Y: Array
    beta: float
    start: Array
    beside: Array

    @classmethod
    def of(cls, X: Array, G: Array, Z: Array, Y: Array, beta: float, start: Array) -> _Stationary:
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
        """Relative to the message."""
        try:
            X = self.subspace(x)
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)
        t = X.T @ self.Z
        RXt = self.R @ (X @ t)
        sent = self.beta * X @ t + X @ (X.T @ (self.R @ self.Z)) + RXt - 2 * X @ (X.T @ RXt)
        return np.asarray((sent - self.Y).reshape(-1) / float(np.linalg.norm(self.Y)))

    def linearised(self, x: Array) -> tuple[Array, Array]:
        """`residual` and its derivative."""
        beside, (others, rank) = self.beside, (self.beside.shape[1], self.start.shape[1])
        moves = np.zeros((len(beside), others, rank, rank))
        moves[:, :, np.arange(rank), np.arange(rank)] = beside[:, :, None]
        X, dX = horizontal(self.start + beside @ x.reshape(others, rank), moves.reshape(len(beside), -1, rank))
        RX, RZ, t, dt = self.R @ X, self.R @ self.Z, X.T @ self.Z, crossed(dX, self.Z)
        a, RXt = X.T @ RZ, RX @ t
        d_inside = crossed(dX, RXt) + left(RX.T, right(dX, t)) + left(X.T @ RX, dt)  # d(X^T) R X t + X^T R d(X t)
        d = right(dX, self.beta * t + a - 2 * X.T @ RXt) + left(self.R, right(dX, t))
        d += left(X, self.beta * dt + crossed(dX, RZ) - 2 * d_inside) + left(RX, dt)
        residual = (self.beta * X @ t + X @ a + RXt - 2 * X @ (X.T @ RXt) - self.Y) / float(np.linalg.norm(self.Y))
        jacobian = d.transpose(0, 2, 1).reshape(-1, self.unknowns) / float(np.linalg.norm(self.Y))
        return residual.reshape(-1), jacobian


def _least(linearised: Linearised, start: Array, residual: Residual, stepper: Stepper | None = None) -> Array | None:
    """The nearest root, if it is one."""
    patience, goal = (_PATIENCE, _GOAL) if stepper is None else (_LONG_PATIENCE, _SOLVED_GOAL)
    found = levenberg(linearised, start, steps=_STEPS, goal=goal, residual=residual, patience=patience, stepper=stepper)
    return found.point if found.norm < _SOLVED else None


def _by_differences(residual: Residual) -> Linearised:
    """The few unknowns are differentiated one by one."""

    def linearised(x: Array) -> tuple[Array, Array]:
        here = residual(x)
        columns = [(residual(x + step) - here) / _DIFFERENCE for step in _DIFFERENCE * np.eye(len(x))]
        return here, np.stack(columns, axis=1)

    return linearised
