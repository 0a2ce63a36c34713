"""Simulate a FAPS client's messages Y_k as a function of its Gram matrix S, with their derivatives.

FAPS is a method of federated PCA. A client has rows A^T and S = A A^T, (features, features). Attacks that fit S to the
observed messages (`client_equations`, `multiple_shooting`, `summed_clients`) call this simulation, with S and beta in
units of lambda_1(S).

In round k the client receives an orthonormal Z_k, (features, rank). It keeps a subspace X_k of the same shape, at first
X_0 = Z_0. It starts from X = X_{k-1} and iterates V <- orth(H V), c_k times (the inner count), from V = X:

    H = S + X W^T + W X^T + beta_k Z_k Z_k^T,   W = -(I - X X^T) S X    (12), (15), (16).

The last V is X_k. It sends Y_k = beta_k X_k X_k^T Z_k - X_k W_k^T Z_k - W_k X_k^T Z_k (19), W_k the mask W at X_k.
Numbers in parentheses are equations of the FAPS paper; orth(N) is the Q of the decomposition N = Q R.

The derivatives of a matrix V, (features, rank), by the unknowns are its tangents dV, one array (features, unknowns,
rank) (`_gram/tangents`). Everything sent depends on the span of X alone, so tangents are kept horizontal, without their
part inside the span: d(orth(N)) = (I - V V^T) dN R^-1 with V = orth(N), which horizontal(N, dN) returns. left(M, d) is
M d, right(d, R) is d R and crossed(d, V) is d^T V, for all tangents d at once. off(V, M) is (I - V V^T) M.

The inner count of a round may be a real number c = j + tau, 0 <= tau < 1, so that unknown counts can be fitted by
derivatives. It then stands for orth((1 - tau) V + tau N (V^T N)^-1), with V the iterate j and N = H V, which spans the
iterate j + 1. Counts outside 0 to `LARGEST_COUNT` are simulated as the nearest bound. Their derivative is that to the
right of the bound instead of 0, so that a search still sees in which direction the messages change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.faps import FAPS, GROWTH, PERIOD
from securefed.algorithms._pca.operators import off, orth
from securefed.attacks._gram.coordinates import GramDirections
from securefed.attacks._gram.tangents import crossed, horizontal, left, right

LARGEST_COUNT = 101.0
"""Largest inner count that is simulated, just above FAPS' own default cap of 100; subspaces hardly move there."""


@dataclass(frozen=True)
class ReceivedRounds:
    """Broadcasts that the client received, and its numbers of inner steps.

    Attributes:
        probes: Z_k, (features, rank), of each round.
        betas: beta_k of each round.
        steps: inner steps in every round, or `None` where each round's count is a parameter (from round 1 on; in round
            0 the subspace does not move, whatever the count).
    """

    probes: Sequence[Array]
    betas: Sequence[float]
    steps: int | None

    @property
    def free_counts(self) -> int:
        """Return the number of counts that are parameters."""
        return 0 if self.steps is not None else len(self.probes) - 1


def received_rounds(probes: Sequence[Array], algorithm: FAPS) -> ReceivedRounds:
    """Return the first rounds as the simulation needs them, with beta in units of lambda_1(S).

    Args:
        probes: Z_k of the first rounds, at most of those whose beta is known (`fit_plan.known_rounds`).
        algorithm: the FAPS that the client runs.
    """
    # the adaptive rule always raises beta after round `PERIOD`; its next change comes after these rounds
    grown = [GROWTH if algorithm.adaptive and k > PERIOD else 1.0 for k in range(len(probes))]
    return ReceivedRounds(probes, [algorithm.beta_scale * factor for factor in grown], algorithm.inner_steps)


def messages(S: Array, counts: Array, received: ReceivedRounds) -> list[Array]:
    """Return Y_k, (features, rank), of all rounds, of a client whose Gram matrix is S.

    Args:
        S: Gram matrix, (features, features).
        counts: inner counts of rounds 1, 2, ...; empty where `received.steps` gives them.
        received: the broadcasts.

    Raises:
        LinAlgError: the simulation breaks down, as for an S far from a Gram matrix.
        DivergenceError: an iterate is not finite, as `orth` finds.
    """
    X = received.probes[0]
    W = -off(X, S @ X)
    out = []
    for k, (Z, beta) in enumerate(zip(received.probes, received.betas, strict=True)):
        if k:
            X = iterate(InnerOperator(S, X, W, beta, Z), X, _count(counts, received, k))
            W = -off(X, S @ X)
        out.append(product(X, W, beta, Z))
    return out


def product(X: Array, W: Array, beta: float, Z: Array) -> Array:
    """Return the message Y = beta X X^T Z - X W^T Z - W X^T Z, (19); X, W, Z and Y are (features, rank)."""
    t = X.T @ Z
    return np.asarray(beta * (X @ t) - X @ (W.T @ Z) - W @ t)


def rule_counts(S: Array, received: ReceivedRounds, algorithm: FAPS) -> Array:
    """Return how often a client with Gram matrix S would iterate in rounds 1, 2, ... by FAPS' stop rule, as floats.

    Tests and benchmarks compare the counts that attacks find with these.
    """
    X = received.probes[0]
    W = -off(X, S @ X)
    out = []
    for Z, beta in zip(received.probes[1:], received.betas[1:], strict=True):
        count, X = iterate_by_rule(InnerOperator(S, X, W, beta, Z), algorithm)
        out.append(float(count))
        W = -off(X, S @ X)
    return np.array(out)


def iterate_by_rule(H: InnerOperator, algorithm: FAPS) -> tuple[int, Array]:
    """Iterate from H.X until FAPS' stop rule holds; return the number of iterations, and the last iterate."""
    V, count = H.X, 0
    while count < min(algorithm.inner_cap, int(LARGEST_COUNT) - 1):
        old, V = V, orth(H.times(V))
        count += 1
        if algorithm.settled(H.X, H.Z, old, V).all():
            break
    return count, V


def messages_and_tangents(
    S: Array, counts: Array, received: ReceivedRounds, directions: GramDirections
) -> tuple[list[Array], list[Array]]:
    """Return `messages` and their tangents.

    Args:
        S: Gram matrix, (features, features).
        counts: inner counts of rounds 1, 2, ...; empty where `received.steps` gives them.
        received: the broadcasts.
        directions: derivatives of S by its parameters.

    Returns:
        Y_k of each round, and dY_k, (features, unknowns, rank). The unknowns are the parameters of S, then the counts
        where they are free.
    """
    X = received.probes[0]
    unknowns = directions.count + received.free_counts
    dX = np.zeros((len(X), unknowns, X.shape[1]))
    W, dW = mask(S, X, dX, directions)
    values, tangents = [], []
    for k, (Z, beta) in enumerate(zip(received.probes, received.betas, strict=True)):
        if k:
            H = InnerOperator(S, X, W, beta, Z)
            place = None if received.steps is not None else directions.count + k - 1
            X, dX = iterate_tangents(H, dX, dW, _count(counts, received, k), directions, place)
            W, dW = mask(S, X, dX, directions)
        values.append(product(X, W, beta, Z))
        tangents.append(product_tangents(X, dX, W, dW, beta, Z))
    return values, tangents


def product_tangents(X: Array, dX: Array, W: Array, dW: Array, beta: float, Z: Array) -> Array:
    """Return dY, the tangents of `product`, from those of X and W."""
    # Y = X (beta t - W^T Z) - W t with t = X^T Z, differentiated by the product rule
    t, dt = X.T @ Z, crossed(dX, Z)
    WZ, dWZ = W.T @ Z, crossed(dW, Z)
    return np.asarray(right(dX, beta * t - WZ) + left(X, beta * dt - dWZ) - right(dW, t) - left(W, dt))


@dataclass(frozen=True)
class InnerOperator:
    """H of (12), the operator of the inner iterations.

    Attributes:
        S: the Gram matrix, (features, features).
        X: the subspace that the round began with, (features, rank).
        W: its mask -(I - X X^T) S X, (features, rank).
        beta: beta of the round.
        Z: the broadcast, (features, rank).
    """

    S: Array
    X: Array
    W: Array
    beta: float
    Z: Array

    def times(self, V: Array) -> Array:
        """Return H V, (features, columns)."""
        low = self.X @ (self.W.T @ V) + self.W @ (self.X.T @ V) + self.beta * (self.Z @ (self.Z.T @ V))
        return np.asarray(self.S @ V + low)


def _count(counts: Array, received: ReceivedRounds, k: int) -> float:
    """Return the inner count of round k >= 1: the public one, else the parameter, within its range."""
    return float(received.steps) if received.steps is not None else float(np.clip(counts[k - 1], 0.0, LARGEST_COUNT))


def iterate(H: InnerOperator, V: Array, count: float) -> Array:
    """Iterate V <- orth(H V) `count` times; the head of this file says what a real `count` means."""
    whole = int(count)
    for _ in range(whole):
        V = orth(H.times(V))
    tau = count - whole
    if tau:
        N = H.times(V)
        V = orth((1 - tau) * V + tau * (N @ np.linalg.inv(V.T @ N)))
    return V


def iterate_tangents(
    H: InnerOperator, dX: Array, dW: Array, count: float, directions: GramDirections, place: int | None
) -> tuple[Array, Array]:
    """Return `iterate` from X, and its tangents.

    Args:
        H: the operator.
        dX: tangents of X, (features, unknowns, rank).
        dW: tangents of its mask.
        count: number of inner steps, a real number.
        directions: derivatives of S by its parameters.
        place: position of this round's count among the unknowns; `None` where the counts are not unknown.
    """
    V, dV = H.X, dX
    whole, moved = int(count), InnerOperatorDerivative(H, dX, dW, directions)
    for _ in range(whole):
        V, dV = horizontal(H.times(V), moved.times(V, dV))
    tau = count - whole
    if tau or place is not None:
        N, dN = H.times(V), moved.times(V, dV)
        inverse = np.linalg.inv(V.T @ N)
        graph = N @ inverse  # the basis of span N with V^T graph = I: aligned with V, so that the two can be mixed
        d_inner = crossed(dV, N) + left(V.T, dN)  # d(V^T N)
        mixed = (1 - tau) * V + tau * graph
        d_mixed = (1 - tau) * dV + tau * right(dN - left(graph, d_inner), inverse)
        if place is not None:
            d_mixed[:, place] += graph - V  # the derivative by tau
        V, dV = horizontal(mixed, d_mixed)
    return V, dV


class InnerOperatorDerivative:
    """The derivative of H by the unknowns, through S, X and W.

    Args:
        H: the operator.
        dX: tangents of X, (features, unknowns, rank).
        dW: tangents of W.
        directions: derivatives of S by its parameters, the first of the unknowns.
    """

    def __init__(self, H: InnerOperator, dX: Array, dW: Array, directions: GramDirections) -> None:
        self._H, self._dX, self._dW, self._directions = H, dX, dW, directions
        low = H.X @ H.W.T
        self._dense = H.S + low + low.T + H.beta * (H.Z @ H.Z.T)

    def times(self, V: Array, dV: Array) -> Array:
        """Return d(H V) = H dV + dH V, (features, unknowns, rank), from V and its tangents."""
        H, dX, dW = self._H, self._dX, self._dW
        out = left(self._dense, dV)
        # dH V = dX W^T V + dW X^T V + X dW^T V + W dX^T V + dS V
        out += right(dX, H.W.T @ V) + right(dW, H.X.T @ V) + left(H.X, crossed(dW, V)) + left(H.W, crossed(dX, V))
        out[:, : self._directions.count] += self._directions.times(V)
        return np.asarray(out)


def mask(S: Array, X: Array, dX: Array, directions: GramDirections) -> tuple[Array, Array]:
    """Return the mask W = -(I - X X^T) S X = X X^T S X - S X, and its tangents dW."""
    SX = S @ X
    dSX = left(S, dX)  # d(S X) = S dX + dS X
    dSX[:, : directions.count] += directions.times(X)
    dW = left(X, left(X.T, dSX)) - dSX + right(dX, X.T @ SX) + left(X, crossed(dX, SX))
    return -off(X, SX), np.asarray(dW)
