"""S from FAPS' first messages by fitting a simulated client to them, from scratch.

Unknown: S, and where the inner iterations stop by a rule, their number in each round, as a real number. The fit
starts near the truth (`near_consensus`, from all rounds) and takes the rounds one by one; a misfit at round-off
with a Jacobian of full rank is proof enough. A small misfit alone is not: 1e-5 occurs at errors of .9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.linalg import LinAlgError

from securefed.algorithms.pca.faps import FAPS, GROWTH, PERIOD
from securefed.algorithms.pca.server import BASIS, CAPTURED, PRODUCT
from securefed.attacks.base import Observation
from securefed.attacks.gram.faps_client import Course, Symmetric, messages, messages_and_tangents, rule_counts
from securefed.attacks.gram.levenberg import fit
from securefed.attacks.gram.linear import nearest_psd
from securefed.errors import DivergenceError
from securefed.tensors import Array

GOAL, PROOF = 1e-11, 1e-9
"""The fit stops at the one misfit, and counts as found below the other (relative misfits summed over rounds)."""
_STAGES = (2, 3, 4, 5, 6, 8, 11)
_EARLY, _LATE = 30, 100
_HOPELESS = 1e-2
_FULL_RANK = 1e-11
_EIGENVALUE_WEIGHT = 0.1


@dataclass(frozen=True)
class Found:
    """An accepted fit.

    Attributes:
        gram: S.      counts: fitted inner counts (empty where they are public).
        misfit: norm of the relative misfits.      rank, unknowns, condition: of the Jacobian.
        starts: starts that were tried.
    """

    gram: Array
    counts: Array
    misfit: float
    rank: int
    unknowns: int
    condition: float
    starts: int


def known_rounds(algorithm: FAPS, rounds: int) -> int:
    """Rounds whose beta is known: rule (25) always grows it at k = 5 (d^0 = 0), and decides anew at k = 10."""
    longest = _STAGES[-1]
    return min(rounds, longest, 2 * PERIOD + 1) if algorithm.adaptive else min(rounds, longest)


def fit_client(
    rounds: Sequence[Observation], algorithm: FAPS, scale: float, guess: Array, starts: int, rng: np.random.Generator
) -> Found | None:
    """Fit a simulated client to the first messages of one client.

    Args:
        rounds: the client's messages from its first contribution on.      scale: lambda_1(S).
        guess: first start; later ones disturb it.      starts: largest number of starts.
    """
    count = known_rounds(algorithm, len(rounds))
    if count < _STAGES[0]:
        return None
    stages = (*(stage for stage in _STAGES if stage < count), count)
    problem = _Problem(rounds[:count], algorithm, scale)
    for attempt in range(starts):
        start = guess / scale if attempt == 0 else _disturbed(guess / scale, attempt / starts, rng)
        # Alternately round by round, and all rounds at once: each frees runs that the other leaves stuck.
        x = problem.climb(start, stages if attempt % 2 == 0 else stages[-1:])
        if x is None:
            continue
        residual, jacobian = problem.linearised(x, count)
        misfit = float(np.linalg.norm(residual))
        s = np.linalg.svd(jacobian / np.maximum(np.linalg.norm(jacobian, axis=0), 1e-300), compute_uv=False)
        rank = int(np.sum(s > _FULL_RANK * s[0]))
        if misfit < PROOF and rank == len(x):
            size = problem.coordinates.count
            gram = scale * problem.coordinates.matrix(x[:size])
            return Found(gram, x[size:], misfit, rank, len(x), float(s[0] / s[-1]), attempt + 1)
    return None


class _Problem:
    """Residuals of the first K rounds in units of lambda_1(S)."""

    def __init__(self, rounds: Sequence[Observation], algorithm: FAPS, scale: float) -> None:
        self.algorithm = algorithm
        self.probes = [o.broadcast[BASIS] for o in rounds]
        self.products = [o.message[PRODUCT] / scale for o in rounds]
        self.norms = [float(np.linalg.norm(Y)) or 1.0 for Y in self.products]
        self.captured = np.array([float(o.message[CAPTURED]) for o in rounds]) / scale
        self.coordinates = Symmetric.of(len(self.probes[0]))
        self.traces = np.stack([self.coordinates.coordinates(Z @ Z.T) for Z in self.probes])

    def climb(self, start: Array, stages: Sequence[int]) -> Array | None:
        """Fit the rounds stage by stage; `None` where it gets stuck."""
        size = self.coordinates.count
        x, last = self.coordinates.coordinates(start), stages[-1]
        free = self.algorithm.inner_steps is None
        counts = rule_counts(start, self._course(last), self.algorithm) if free else np.zeros(0)
        for stage in stages:
            own = stage - 1 if free else 0
            result = fit(
                lambda values, k=stage: self.residual(values, k),  # type: ignore[misc]
                lambda values, k=stage: self.linearised(values, k),  # type: ignore[misc]
                np.concatenate([x, counts[:own]]),
                steps=_LATE if stage == last else _EARLY,
                goal=GOAL,
            )
            if not result.misfit < _HOPELESS:
                return None
            x, counts = result.x[:size], np.concatenate([result.x[size:], counts[own:]])
        return np.concatenate([x, counts])

    def residual(self, x: Array, count: int) -> Array:
        size = self.coordinates.count
        S = self.coordinates.matrix(x[:size])
        try:
            sent = messages(S, x[size:], self._course(count))
            top = float(np.linalg.eigvalsh(S)[-1])
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)
        return self._stack([((Y - seen) / norm) for Y, seen, norm in self._paired(sent)], x[:size], top, count)

    def linearised(self, x: Array, count: int) -> tuple[Array, Array]:
        size = self.coordinates.count
        S = self.coordinates.matrix(x[:size])
        sent, tangents = messages_and_tangents(S, x[size:], self._course(count), self.coordinates)
        values, vectors = np.linalg.eigh(S)
        misfits = [((Y - seen) / norm) for Y, seen, norm in self._paired(sent)]
        rows = [T.reshape(len(T), -1).T / norm for T, norm in zip(tangents, self.norms, strict=False)]
        scalars = np.zeros((count + 1, len(x)))
        scalars[:count, :size] = self.traces[:count]
        scalars[count, :size] = _EIGENVALUE_WEIGHT * self.coordinates.coordinates(
            np.outer(vectors[:, -1], vectors[:, -1])
        )
        return self._stack(misfits, x[:size], float(values[-1]), count), np.vstack([*rows, scalars])

    def _stack(self, misfits: list[Array], x: Array, top: float, count: int) -> Array:
        scalars = self.traces[:count] @ x - self.captured[:count]
        return np.concatenate([*(m.reshape(-1) for m in misfits), scalars, [_EIGENVALUE_WEIGHT * (top - 1)]])

    def _paired(self, sent: list[Array]) -> list[tuple[Array, Array, float]]:
        return list(zip(sent, self.products, self.norms, strict=False))

    def _course(self, count: int) -> Course:
        beta, adaptive = self.algorithm.beta_scale, self.algorithm.adaptive
        betas = [beta * (GROWTH if adaptive and k > PERIOD else 1.0) for k in range(count)]
        return Course(self.probes[:count], betas, self.algorithm.inner_steps)


def _disturbed(guess: Array, share: float, rng: np.random.Generator) -> Array:
    """The guess mixed with a random positive semidefinite matrix of the same size."""
    size = len(guess)
    factor = rng.normal(size=(size, size)) * np.exp(-rng.uniform(1, 3) * np.arange(size) / size)
    random = factor @ factor.T
    random *= np.linalg.norm(guess) / np.linalg.norm(random)
    return nearest_psd((1 - share) * guess + share * random)
