"""S from FAPS' first messages by fitting a simulated client to them, from scratch.

Unknown: S, and where the inner iterations stop by a rule, their number in each round, as a real number. The fit
starts near the truth (`near_consensus`) and takes the rounds one by one; a misfit at round-off
with a Jacobian of full rank is proof enough. A small misfit alone is not: 1e-5 occurs at errors of .9.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.linalg import LinAlgError

from securefed.algorithms.pca.faps import FAPS, GROWTH, PERIOD
from securefed.algorithms.pca.server import BASIS, CAPTURED, PRODUCT
from securefed.attacks.base import Observation
from securefed.attacks.gram.coordinates import Anchored, Coordinates, LowRank, Symmetric
from securefed.attacks.gram.faps_client import Course, messages, messages_and_tangents, rule_counts
from securefed.attacks.gram.linear import nearest_psd
from securefed.attacks.gram.near_consensus import near_consensus, spread_out
from securefed.attacks.levenberg import Geodesic, Patience, levenberg
from securefed.errors import DivergenceError
from securefed.tensors import Array

GOAL, PROOF, SINGLE_PROOF = 1e-11, 1e-9, 1e-6
"""The fit stops at the first misfit, and counts as found below the second (norm of the relative misfits of all rounds),
or below the third where the messages are float32 numbers."""
_STAGES = (2, 3, 4, 5, 6, 8, 11)
_EARLY, _LATE = 30, 100
_HOPELESS = 1e-2
_PATIENCE, _NEAR = 6, 1e-2
_FIRST_COUNTS = (20.0, 10.0, 6.0)
"""A poor start would iterate to the cap, where its messages no longer depend on the count; by start, in turn."""
_FULL_RANK = 1e-11
_REDUNDANCY = 2.5
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


def fit_client(rounds: Sequence[Observation], algorithm: FAPS, rows: int, starts: int) -> Found | None:
    """Fit a simulated client to the first messages of one client, starting from what is seen near consensus.

    The fit reads as many rounds as determine S. Where S has many parameters the start needs all rounds; where it has
    few, longer prefixes of one transcript are one question, answered once.

    Args:
        rounds: the client's messages from its first contribution on.      rows: public bound on the rank of S.
        starts: largest number of starts; later ones disturb the first.
    """
    features, rank = rounds[0].broadcast[BASIS].shape
    coordinates = coordinates_of(np.zeros((features - rank, rank)), rows)
    count = needed_rounds(algorithm, len(rounds), coordinates)
    if count < _STAGES[0]:
        return None
    known = rounds if _is_full(coordinates) else rounds[:count]
    return _answer(_Question(tuple(known), count, algorithm, rows, starts))


@dataclass(frozen=True, eq=False)
class _Question:
    """All that an answer depends on, compared by its bytes; the first `count` rounds are fitted."""

    rounds: tuple[Observation, ...]
    count: int
    algorithm: FAPS
    rows: int
    starts: int

    @cached_property
    def _digest(self) -> bytes:
        digest = hashlib.sha256(repr((self.algorithm, self.rows, self.starts, self.count)).encode())
        for observation in self.rounds:
            for value in (observation.broadcast[BASIS], observation.message[PRODUCT], observation.message[CAPTURED]):
                digest.update(f"{np.shape(value)}{np.asarray(value).dtype}".encode() + np.asarray(value).tobytes())
        return digest.digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)


@lru_cache(maxsize=8)
def _answer(question: _Question) -> Found | None:
    rounds, algorithm, rows, starts = question.rounds, question.algorithm, question.rows, question.starts
    count, rng = question.count, np.random.default_rng(0)
    estimate = near_consensus(spread_out(rounds), algorithm.beta_scale, rows)
    scale = estimate.scale
    frame = np.linalg.qr(rounds[0].broadcast[BASIS], mode="complete")[0]
    frame[:, : algorithm.rank] = rounds[0].broadcast[BASIS]
    guess = frame.T @ estimate.gram @ frame / scale
    block = (frame.T @ rounds[0].message[PRODUCT])[algorithm.rank :] / scale
    coordinates = coordinates_of(block, rows)
    stages = (*(stage for stage in _STAGES if stage < count), count)
    problem = _Problem(rounds[:count], algorithm, scale, frame, coordinates)
    for attempt in range(starts):
        start = guess if attempt == 0 else _disturbed(guess, rows, attempt / starts, rng)
        # Alternately round by round, and all rounds at once: each frees runs that the other leaves stuck.
        x = problem.climb(start, stages if attempt % 2 == 0 else stages[-1:], _FIRST_COUNTS[attempt % 3])
        if x is None:
            continue
        residual, jacobian = problem.linearised(x, count)
        misfit = float(np.linalg.norm(residual))
        triangle = np.linalg.qr(jacobian / np.maximum(np.linalg.norm(jacobian, axis=0), 1e-300), mode="r")
        s = np.linalg.svd(triangle, compute_uv=False)
        unknowns = coordinates.determined + len(x) - coordinates.count
        rank = min(int(np.sum(s > _FULL_RANK * s[0])), unknowns)
        if misfit < proof(rounds[:count]) and rank == unknowns:
            size = coordinates.count
            gram = scale * frame @ coordinates.matrix(x[:size]) @ frame.T
            return Found(gram, x[size:], misfit, rank, unknowns, float(s[0] / s[rank - 1]), attempt + 1)
    return None


def coordinates_of(block: Array, rows: int) -> Coordinates:
    """Parameters of S in a frame whose first directions are Z_0; the first message gives the block beside them exactly.

    Args:
        block: (I - Z_0 Z_0^T) S Z_0 in that frame, (features - rank, rank).      rows: bound on the rank of S; 0: none.
    """
    others, rank = block.shape
    if rows == 0 or 2 * (rows - rank) > others:
        return Anchored(block, Symmetric.of(others))
    return Anchored(block, LowRank(others, rows - rank)) if rows > rank else LowRank(others + rank, rows)


def _is_full(coordinates: Coordinates) -> bool:
    return isinstance(coordinates, Anchored) and isinstance(coordinates.rest, Symmetric)


def needed_rounds(algorithm: FAPS, rounds: int, coordinates: Coordinates) -> int:
    """Rounds to fit: of those whose beta is known, as many as say every unknown `_REDUNDANCY` times."""
    return min(known_rounds(algorithm, rounds), _enough(coordinates, algorithm.rank))


def _enough(coordinates: Coordinates, rank: int) -> int:
    return max(_STAGES[0], 1 + math.ceil(_REDUNDANCY * coordinates.determined / (coordinates.size * rank)))


def proof(rounds: Sequence[Observation]) -> float:
    """The misfit below which a fit counts as found."""
    products = [o.message[PRODUCT] for o in rounds]
    single = all(np.array_equal(Y, np.asarray(Y, np.float32)) for Y in products)
    return SINGLE_PROOF if single else PROOF


class _Problem:
    """Residuals of the first K rounds in units of lambda_1(S)."""

    def __init__(
        self, rounds: Sequence[Observation], algorithm: FAPS, scale: float, frame: Array, coordinates: Coordinates
    ) -> None:
        self.algorithm = algorithm
        self.coordinates = coordinates
        self.probes = [frame.T @ o.broadcast[BASIS] for o in rounds]
        self.products = [frame.T @ o.message[PRODUCT] / scale for o in rounds]
        self.norms = [float(np.linalg.norm(Y)) or 1.0 for Y in self.products]
        self.captured = np.array([float(o.message[CAPTURED]) for o in rounds]) / scale

    def climb(self, start: Array, stages: Sequence[int], first: float) -> Array | None:
        """Fit the rounds stage by stage; `None` where it gets stuck. Unknown counts start at `first` at most."""
        size = self.coordinates.count
        x, last = self.coordinates.coordinates(start), stages[-1]
        free = self.algorithm.inner_steps is None
        counts = np.minimum(rule_counts(start, self._course(last), self.algorithm), first) if free else np.zeros(0)
        for stage in stages:
            own = stage - 1 if free else 0

            def residual(values: Array, count: int = stage) -> Array:
                return self.residual(values, count)

            result = levenberg(
                lambda values, k=stage: self.linearised(values, k),  # type: ignore[misc]
                np.concatenate([x, counts[:own]]),
                steps=_LATE if stage == last else _EARLY,
                goal=GOAL,
                patience=Patience(_NEAR, far=_PATIENCE, close=None),
                residual=residual,
                stepper=Geodesic(residual),
            )
            if not result.norm < _HOPELESS:
                return None
            x, counts = result.point[:size], np.concatenate([result.point[size:], counts[own:]])
        return np.concatenate([x, counts])

    def residual(self, x: Array, count: int) -> Array:
        size = self.coordinates.count
        S = self.coordinates.matrix(x[:size])
        try:
            sent = messages(S, x[size:], self._course(count))
            top = float(np.linalg.eigvalsh(S)[-1])
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)
        return self._stack(sent, S, top)

    def linearised(self, x: Array, count: int) -> tuple[Array, Array]:
        size = self.coordinates.count
        S, directions = self.coordinates.matrix(x[:size]), self.coordinates.at(x[:size])
        sent, tangents = messages_and_tangents(S, x[size:], self._course(count), directions)
        values, vectors = np.linalg.eigh(S)
        rows = [T.transpose(0, 2, 1).reshape(-1, len(x)) / norm for T, norm in zip(tangents, self.norms, strict=False)]
        scalars = np.zeros((count + 1, len(x)))
        for k, Z in enumerate(self.probes[:count]):
            scalars[k, :size] = directions.slopes(Z @ Z.T)
        scalars[count, :size] = _EIGENVALUE_WEIGHT * directions.slopes(np.outer(vectors[:, -1], vectors[:, -1]))
        return self._stack(sent, S, float(values[-1])), np.vstack([*rows, scalars])

    def _stack(self, sent: Sequence[Array], S: Array, top: float) -> Array:
        misfits = [
            ((Y - seen) / norm).reshape(-1) for Y, seen, norm in zip(sent, self.products, self.norms, strict=False)
        ]
        scalars = [np.vdot(Z, S @ Z) - seen for Z, seen in zip(self.probes[: len(sent)], self.captured, strict=False)]
        return np.concatenate([*misfits, scalars, [_EIGENVALUE_WEIGHT * (top - 1)]])

    def _course(self, count: int) -> Course:
        beta, adaptive = self.algorithm.beta_scale, self.algorithm.adaptive
        betas = [beta * (GROWTH if adaptive and k > PERIOD else 1.0) for k in range(count)]
        return Course(self.probes[:count], betas, self.algorithm.inner_steps)


def _disturbed(guess: Array, rows: int, share: float, rng: np.random.Generator) -> Array:
    """The guess mixed with a random positive semidefinite matrix of the same size, and of rank `rows` at most."""
    size = len(guess)
    factor = rng.normal(size=(size, min(size, rows or size))) * np.exp(
        -rng.uniform(1, 3) * np.arange(min(size, rows or size)) / size
    )
    random = factor @ factor.T
    random *= np.linalg.norm(guess) / np.linalg.norm(random)
    return nearest_psd((1 - share) * guess + share * random, rows)
