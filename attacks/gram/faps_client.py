"""FAPS' client as a function of S, with its derivative: what an attacker simulates.

Everything sent depends on the subspace of X alone, so tangents are kept horizontal: d(orth(N)) = (I - V V^T) dN R^-1.
The inner count of a round may be a real number c = j + tau between two iterates, so that unknown counts can be fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed.algorithms.pca.faps import FAPS, GROWTH, PERIOD
from securefed.algorithms.pca.operators import off, orth
from securefed.attacks.gram.coordinates import Directions
from securefed.attacks.gram.tangents import crossed, horizontal, left, right
from securefed.tensors import Array

LARGEST_COUNT = 101.0
"""Above the cap of FAPS' own inner counts; subspaces hardly move there."""


@dataclass(frozen=True)
class Course:
    """What the client is sent, and how it behaves.

    Attributes:
        probes: Z_k.      betas: beta_k.
        steps: inner steps in every round, or `None` where each round's count is a parameter (from round 1 on; in
            round 0 the subspace does not move, whatever the count).
    """

    probes: Sequence[Array]
    betas: Sequence[float]
    steps: int | None

    @property
    def free_counts(self) -> int:
        return 0 if self.steps is not None else len(self.probes) - 1


def course_of(probes: Sequence[Array], algorithm: FAPS) -> Course:
    """Of the rounds whose beta is known, in units of lambda_1(S)."""
    grown = [GROWTH if algorithm.adaptive and k > PERIOD else 1.0 for k in range(len(probes))]
    return Course(probes, [algorithm.beta_scale * factor for factor in grown], algorithm.inner_steps)


def messages(S: Array, counts: Array, course: Course) -> list[Array]:
    """Y_k of a client whose Gram matrix is S."""
    X = course.probes[0]
    W = -off(X, S @ X)
    out = []
    for k, (Z, beta) in enumerate(zip(course.probes, course.betas, strict=True)):
        if k:
            X = advanced(Operator(S, X, W, beta, Z), X, _count(counts, course, k))
            W = -off(X, S @ X)
        out.append(product(X, W, beta, Z))
    return out


def product(X: Array, W: Array, beta: float, Z: Array) -> Array:
    """Y of (19)."""
    t = X.T @ Z
    return np.asarray(beta * (X @ t) - X @ (W.T @ Z) - W @ t)


def rule_counts(S: Array, course: Course, algorithm: FAPS) -> Array:
    """How often a client with Gram matrix S would iterate in rounds 1, 2, ...: a start for unknown counts."""
    X = course.probes[0]
    W = -off(X, S @ X)
    out = []
    for Z, beta in zip(course.probes[1:], course.betas[1:], strict=True):
        count, X = by_rule(Operator(S, X, W, beta, Z), algorithm)
        out.append(float(count))
        W = -off(X, S @ X)
    return np.array(out)


def by_rule(H: Operator, algorithm: FAPS) -> tuple[int, Array]:
    """How often the client iterates from X, and where it ends."""
    V, count = H.X, 0
    while count < min(algorithm.inner_cap, int(LARGEST_COUNT) - 1):
        old, V = V, orth(H.times(V))
        count += 1
        if algorithm.settled(H.X, H.Z, old, V).all():
            break
    return count, V


def messages_and_tangents(
    S: Array, counts: Array, course: Course, directions: Directions
) -> tuple[list[Array], list[Array]]:
    """`messages`, and for each round dY_k by the parameters of S, then by the counts: (n, unknowns, p)."""
    X = course.probes[0]
    unknowns = directions.count + course.free_counts
    dX = np.zeros((len(X), unknowns, X.shape[1]))
    W, dW = mask(S, X, dX, directions)
    values, tangents = [], []
    for k, (Z, beta) in enumerate(zip(course.probes, course.betas, strict=True)):
        if k:
            H = Operator(S, X, W, beta, Z)
            X, dX = advanced_tangents(H, dX, dW, _count(counts, course, k), directions, k - 1, course.steps is None)
            W, dW = mask(S, X, dX, directions)
        values.append(product(X, W, beta, Z))
        tangents.append(product_tangents(X, dX, W, dW, beta, Z))
    return values, tangents


def product_tangents(X: Array, dX: Array, W: Array, dW: Array, beta: float, Z: Array) -> Array:
    """dY while X and W move."""
    t, dt = X.T @ Z, crossed(dX, Z)
    WZ, dWZ = W.T @ Z, crossed(dW, Z)
    return np.asarray(right(dX, beta * t - WZ) + left(X, beta * dt - dWZ) - right(dW, t) - left(W, dt))


@dataclass(frozen=True)
class Operator:
    """H of (12)."""

    S: Array
    X: Array
    W: Array
    beta: float
    Z: Array

    def times(self, V: Array) -> Array:
        low = self.X @ (self.W.T @ V) + self.W @ (self.X.T @ V) + self.beta * (self.Z @ (self.Z.T @ V))
        return np.asarray(self.S @ V + low)


def _count(counts: Array, course: Course, k: int) -> float:
    return float(course.steps) if course.steps is not None else float(np.clip(counts[k - 1], 0.0, LARGEST_COUNT))


def advanced(H: Operator, V: Array, count: float) -> Array:
    whole = int(count)
    for _ in range(whole):
        V = orth(H.times(V))
    tau = count - whole
    if tau:
        N = H.times(V)
        V = orth((1 - tau) * V + tau * (N @ np.linalg.inv(V.T @ N)))
    return V


def advanced_tangents(
    H: Operator, dX: Array, dW: Array, count: float, directions: Directions, place: int, free: bool
) -> tuple[Array, Array]:
    V, dV = H.X, dX
    whole, moved = int(count), Moved(H, dX, dW, directions)
    for _ in range(whole):
        V, dV = horizontal(H.times(V), moved.times(V, dV))
    tau = count - whole
    if tau or free:
        N, dN = H.times(V), moved.times(V, dV)
        inverse = np.linalg.inv(V.T @ N)
        graph = N @ inverse  # V^T graph = I
        d_inner = crossed(dV, N) + left(V.T, dN)
        mixed = (1 - tau) * V + tau * graph
        d_mixed = (1 - tau) * dV + tau * right(dN - left(graph, d_inner), inverse)
        if free:
            d_mixed[:, directions.count + place] += graph - V
        V, dV = horizontal(mixed, d_mixed)
    return V, dV


class Moved:
    """H while S, X and W move."""

    def __init__(self, H: Operator, dX: Array, dW: Array, directions: Directions) -> None:
        self._H, self._dX, self._dW, self._directions = H, dX, dW, directions
        low = H.X @ H.W.T
        self._dense = H.S + low + low.T + H.beta * (H.Z @ H.Z.T)

    def times(self, V: Array, dV: Array) -> Array:
        """d(H V)."""
        H, dX, dW = self._H, self._dX, self._dW
        out = left(self._dense, dV)
        # dX W^T V + dW X^T V + X dW^T V + W dX^T V
        out += right(dX, H.W.T @ V) + right(dW, H.X.T @ V) + left(H.X, crossed(dW, V)) + left(H.W, crossed(dX, V))
        out[:, : self._directions.count] += self._directions.times(V)
        return np.asarray(out)


def mask(S: Array, X: Array, dX: Array, directions: Directions) -> tuple[Array, Array]:
    """W = -(I - X X^T) S X and dW."""
    SX = S @ X
    dSX = left(S, dX)
    dSX[:, : directions.count] += directions.times(X)
    dW = left(X, left(X.T, dSX)) - dSX + right(dX, X.T @ SX) + left(X, crossed(dX, SX))
    return -off(X, SX), np.asarray(dW)
