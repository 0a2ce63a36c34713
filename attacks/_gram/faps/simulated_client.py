"""Simulate a FAPS client's messages Y_k as a function of its Gram matrix S.

The simulation runs on arrays, and on a `DualArray`, which carries the derivatives; S and beta are in units of
lambda_1(S). The inner count of a round may be a real number c = j + tau, 0 <= tau < 1, so that unknown counts can be
fitted: it stands for orth((1 - tau) V + tau N (V^T N)^-1), with V the iterate j and N = H V, which spans the iterate
j + 1. Counts outside 0 to `LARGEST_COUNT` are simulated as the nearest bound. Their derivative is that to the right of
the bound instead of 0, so that a search still sees in which direction the messages change. The package's head has the
symbols; numbers in parentheses are equations of the FAPS paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.faps import FAPS, GROWTH, PERIOD, MaskedGram
from securefed.algorithms._pca.operators import Gram, off, orth
from securefed.attacks._engine import DualArray
from securefed.attacks._engine.forward import value_of

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


def messages(S: Any, counts: Any, received: ReceivedRounds) -> list[Any]:
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
    out = []
    for k, (Z, beta) in enumerate(zip(received.probes, received.betas, strict=True)):
        if k:
            X = iterate(inner_operator(S, X, beta, Z), _count(counts, received, k))
        out.append(product(S, X, beta, Z))
    return out


def product(S: Any, X: Any, beta: float, Z: Array) -> Any:
    """Return the message Y = beta X X^T Z - X W^T Z - W X^T Z, (19), of the subspace X."""
    t, W = X.T @ Z, mask(S, X)
    return beta * (X @ t) - X @ (W.T @ Z) - W @ t


def mask(S: Any, X: Any) -> Any:
    """Return W = -(I - X X^T) S X, (16)."""
    return -off(X, S @ X)


def inner_operator(S: Any, X: Any, beta: float, Z: Array) -> MaskedGram:
    """Return H of (12), which the inner iterations apply, for a round that begins with the subspace X."""
    return MaskedGram(Gram(S, S), X, mask(S, X), beta, Z)


def rule_counts(S: Array, received: ReceivedRounds, algorithm: FAPS) -> Array:
    """Return how often a client with Gram matrix S would iterate in rounds 1, 2, ... by FAPS' stop rule, as floats.

    Tests and benchmarks compare the counts that attacks find with these.
    """
    X = received.probes[0]
    out = []
    for Z, beta in zip(received.probes[1:], received.betas[1:], strict=True):
        count, X = iterate_by_rule(inner_operator(S, X, beta, Z), algorithm)
        out.append(float(count))
    return np.array(out)


def iterate_by_rule(H: MaskedGram, algorithm: FAPS) -> tuple[int, Array]:
    """Iterate from H.X until FAPS' stop rule holds; return the number of iterations, and the last iterate."""
    V, count = H.X, 0
    while count < min(algorithm.inner_cap, int(LARGEST_COUNT) - 1):
        old, V = V, orth(H.times(V))
        count += 1
        if algorithm.settled(H.X, H.Z, old, V).all():
            break
    return count, V


def _count(counts: Any, received: ReceivedRounds, k: int) -> Any:
    """Return the inner count of round k >= 1: the public one, else the parameter, within its range."""
    if received.steps is not None:
        return received.steps
    count = counts[k - 1]
    return count + (np.clip(value_of(count), 0.0, LARGEST_COUNT) - value_of(count))


def iterate(H: MaskedGram, count: Any) -> Any:
    """Iterate V <- orth(H V) `count` times from H.X; the head of this file says what a real `count` means."""
    V, whole = H.X, int(value_of(count))
    for _ in range(whole):
        V = orth(H.times(V))
    tau = count - whole
    if isinstance(tau, DualArray) or tau:
        N = H.times(V)
        V = orth((1 - tau) * V + tau * (N @ np.linalg.inv(V.T @ N)))
    return V
