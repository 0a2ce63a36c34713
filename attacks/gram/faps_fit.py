"""S from FAPS' first messages by fitting a simulated client to them, from scratch.

Unknown: S, and where the inner iterations stop by a rule, their number in each round, as a real number. The fit
starts near the truth (`near_consensus`), and either takes the rounds one by one or has its start improved by multiple
shooting (`faps_shooting`). Gauss-Newton steps then bring all rounds to round-off. A misfit at round-off is proof where
the Jacobian has full rank and is well enough conditioned for that misfit. A small misfit alone is not: 1e-5 occurs at
errors of .9. Where rounding or noise of the messages may be what is left, `faps_noise` weighs them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.linalg import LinAlgError

from securefed.algorithms.pca.faps import FAPS
from securefed.algorithms.pca.server import BASIS, CAPTURED, PRODUCT
from securefed.attacks.base import Observation
from securefed.attacks.gram.coordinates import Coordinates
from securefed.attacks.gram.faps_client import Course, course_of, messages, messages_and_tangents, rule_counts
from securefed.attacks.gram.faps_estimate import within
from securefed.attacks.gram.faps_noise import most_likely, single
from securefed.attacks.gram.faps_plan import FEWEST, coordinates_of, fitting_frame, is_full, known_rounds, needed_rounds
from securefed.attacks.gram.faps_shooting import Shooting
from securefed.attacks.gram.faps_span import is_exact, noise_shown, sizes
from securefed.attacks.gram.faps_starts import Start, starts
from securefed.attacks.gram.near_consensus import largest_eigenvalue, near_consensus, spread_out
from securefed.attacks.levenberg import Geodesic, Patience, gauss_newton, levenberg, newton_step
from securefed.errors import DivergenceError
from securefed.tensors import Array

GOAL, PROOF, SINGLE_PROOF = 1e-11, 1e-9, 1e-6
"""The search stops at the first misfit, the rest is Gauss-Newton's. A fit counts as found below the second (norm of the
relative misfits of all rounds), or below the third where the messages are float32 numbers."""
_STAGES = (FEWEST, 3, 4, 5, 6, 8, 11)
_SHOTS, _HOLD = 30, 3.0
_POLISHING = 6
_HIDDEN = 1e-2
"""A fit counts only where its misfit, were it noise, would leave a smaller error than this."""
_EARLY, _LATE = 30, 100
_HOPELESS = 1e-2
_PATIENCE, _CLOSE, _NEAR = 6, 25, 1e-2
"""Jacobians within which a misfit above the last must halve, and below, where other starts cost as little."""
_FULL_RANK = 1e-11
_UNEVEN, _FAR, _MORE = 4.0, 0.5, 10.0
"""Misfits pass for errors of the messages where no round's is further from what the others say than this (standard
deviations), S no further from the near-consensus estimate (relative), and their size no larger than this many times
that of the errors that the first message shows: other minima are."""
_EIGENVALUE_WEIGHT = 0.1


@dataclass(frozen=True)
class Found:
    """An accepted fit.

    Attributes:
        gram: S.      counts: fitted inner counts (empty where they are public).
        misfit: norm of the relative misfits.      rank, unknowns, condition: of the Jacobian.
        hidden: the relative error of S that the misfit would leave, were it noise.
        starts: starts that were tried.      noise: relative, that the messages seem to carry; 0 where the fit is exact.
    """

    gram: Array
    counts: Array
    misfit: float
    rank: int
    unknowns: int
    condition: float
    hidden: float
    starts: int
    noise: float = 0.0


def fit_client(rounds: Sequence[Observation], algorithm: FAPS, rows: int, starts: int, limit: int) -> Found | None:
    """Fit a simulated client to the first messages of one client, starting from what is seen near consensus.

    The fit reads as many rounds as determine S. Where S has many parameters the start needs all rounds. Where it has
    few, those rounds alone are asked first, so that longer prefixes of one transcript are one question, answered once;
    then all, which start nearer.

    Args:
        rounds: the client's messages from its first contribution on.      rows: public bound on the rank of S.
        starts: largest number of starts; later ones disturb the first, and where they are cheap there are more.
        limit: largest number of parameters of S.
    """
    rank, exact = algorithm.rank, is_exact(rounds[0])
    count, directions = needed_rounds(algorithm, rounds, rows)
    coordinates = coordinates_of(np.eye(directions - rank, rank), rows, exact)
    if count < FEWEST or coordinates.count > limit:
        return None
    first, known = tuple(rounds[:count]), tuple(rounds)
    if is_full(coordinates):
        return _answer(_Question(known, count, False, algorithm, rows, starts))
    found = _answer(_Question(first, count, True, algorithm, rows, 1 if exact else starts))
    return _answer(_Question(known, count, True, algorithm, rows, starts)) if found is None and exact else found


def estimate_within(rounds: Sequence[Observation], algorithm: FAPS, rows: int, limit: int) -> Array | None:
    """The best guess of S without a simulation, for exact messages of a client of few rows; `None` for others.

    Args:
        limit: largest number of parameters of S.
    """
    count, _ = needed_rounds(algorithm, rounds, rows)
    estimate = near_consensus(spread_out(rounds), algorithm.beta_scale, rows)
    problem = _Problem.of(rounds[:count], algorithm, rows, estimate.scale)
    if not problem.narrow or problem.coordinates.count > limit:
        return None
    return problem.whole(problem.guess(estimate.gram, rounds))


@dataclass(frozen=True, eq=False)
class _Question:
    """All that an answer depends on, compared by its bytes.

    Attributes:
        rounds: that are read.      count: of them to fit, at the end.      few: whether S has few parameters.
    """

    rounds: tuple[Observation, ...]
    count: int
    few: bool
    algorithm: FAPS
    rows: int
    starts: int

    @property
    def fitted(self) -> tuple[Observation, ...]:
        """The rounds that are fitted; others, where there are any, say where to begin."""
        return self.rounds[: self.count] if self.few else self.rounds

    @cached_property
    def _digest(self) -> bytes:
        digest = hashlib.sha256(repr((self.algorithm, self.rows, self.starts, self.count, self.few)).encode())
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
    rounds, algorithm, rows = question.rounds, question.algorithm, question.rows
    estimate = near_consensus(spread_out(rounds), algorithm.beta_scale, rows)
    problem = _Problem.of(question.fitted, algorithm, rows, estimate.scale)
    guess = problem.guess(estimate.gram, rounds)
    noise = noise_shown(rounds[0])
    tries = starts(guess, rows, question.starts, question.count, narrow=problem.narrow)
    for attempt, start in enumerate(tries, start=1):
        x = _attempt(problem, start, question.count)
        if x is None:
            continue
        found = problem.accepted(x, attempt)
        if found is not None and found.misfit < PROOF:
            return found
        if noise is None or not is_exact(rounds[0]):
            found = _weighted(problem, question, x, estimate.gram, attempt) or found
        if found is not None:
            return found
    return None


def _weighted(problem: _Problem, question: _Question, x: Array, estimate: Array, starts: int) -> Found | None:
    """The most likely fit near one that errors in the messages keep from being exact; `None` where they do not look
    like errors, or where it is another minimum."""
    gram, counts = problem.told(x)
    rounds = question.rounds[: len(problem.probes)]
    likely = most_likely(rounds, question.algorithm, question.rows, gram, counts, estimate)
    if likely is None or likely.unevenness > _UNEVEN:
        return None
    shown = noise_shown(rounds[0])
    if shown is not None and likely.noise > _MORE * shown:
        return None
    if np.linalg.norm(likely.gram - estimate) > _FAR * np.linalg.norm(estimate):
        return None
    return Found(
        likely.gram,
        likely.counts,
        likely.misfit,
        likely.rank,
        likely.unknowns,
        likely.condition,
        likely.error,
        starts,
        0.0 if likely.misfit < problem.floor else likely.noise,
    )


def error_allowed(rounds: Sequence[Observation], algorithm: FAPS, rows: int, gram: Array) -> float:
    """The relative error that the messages' own rounding or noise leaves in S, to first order: a property of what was
    sent, whatever the attack; for those who know S.

    Args:
        rounds: one client's messages from its first on.      gram: its S.
    """
    problem = _Problem.of(rounds, algorithm, rows, largest_eigenvalue(rounds[0], algorithm.beta_scale))
    count, size = len(problem.probes), problem.coordinates.count
    S = problem.framed(gram)
    x = problem.with_counts(problem.coordinates.coordinates(S), S)
    step = newton_step(*problem.linearised(x, count))[:size]
    moved = problem.coordinates.matrix(x[:size] + step)
    return float(np.linalg.norm(moved - S) / np.linalg.norm(S))


def _attempt(problem: _Problem, start: Start, count: int) -> Array | None:
    """Each way frees runs that the others leave stuck."""
    if start.way in ("shoot", "hold"):
        return problem.shoot(start.gram, _HOLD if start.way == "hold" else 0.0)
    stages = (*(stage for stage in _STAGES if stage < count), count)
    return problem.climb(start.gram, stages if start.way == "climb" else stages[-1:], start.counts)


def proof(rounds: Sequence[Observation]) -> float:
    """The misfit below which a fit counts as found."""
    return SINGLE_PROOF if all(single(o.message[PRODUCT]) for o in rounds) else PROOF


class _Problem:
    """Residuals of the first K rounds in units of lambda_1(S)."""

    def __init__(
        self,
        rounds: Sequence[Observation],
        algorithm: FAPS,
        scale: float,
        frame: Array,
        coordinates: Coordinates,
        narrow: bool,
    ) -> None:
        self.algorithm, self.coordinates = algorithm, coordinates
        self._scale, self._frame = scale, frame
        self.floor = proof(rounds)
        self.probes = [frame.T @ o.broadcast[BASIS] for o in rounds]
        self.products = [frame.T @ o.message[PRODUCT] / scale for o in rounds]
        self.narrow = narrow
        norms = [np.full((1, 1), float(np.linalg.norm(Y)) or 1.0) for Y in self.products]
        self.norms = sizes(self.products) if narrow else norms
        self.captured = np.array([float(o.message[CAPTURED]) for o in rounds]) / scale

    @classmethod
    def of(cls, rounds: Sequence[Observation], algorithm: FAPS, rows: int, scale: float) -> _Problem:
        """Of all rounds whose beta is known, in a frame that begins with Z_0, of few directions where it can be."""
        known, exact = rounds[: known_rounds(algorithm, len(rounds))], is_exact(rounds[0])
        frame = fitting_frame(known, rows, exact)
        block = (frame.T @ rounds[0].message[PRODUCT])[algorithm.rank :] / scale
        coordinates = coordinates_of(block, rows, exact)
        return cls(known, algorithm, scale, frame, coordinates, exact and not is_full(coordinates))

    def framed(self, gram: Array) -> Array:
        """S in the frame and the units of the problem."""
        return np.asarray(self._frame.T @ gram @ self._frame / self._scale)

    def guess(self, estimate: Array, rounds: Sequence[Observation]) -> Array:
        """S in the frame as near consensus it seems; of few parameters by all that is known of them."""
        framed = self.framed(estimate)
        if not self.narrow:
            return framed
        return within(self.coordinates, framed, rounds, self._frame, self._scale)

    def with_counts(self, x: Array, S: Array) -> Array:
        """Parameters completed by the counts that the rule gives, for rounds that have none yet."""
        if self.algorithm.inner_steps is not None:
            return x
        counts = rule_counts(S, self._course(len(self.probes)), self.algorithm)
        return np.concatenate([x, counts[len(x) - self.coordinates.count :]])

    def shoot(self, start: Array, hold: float) -> Array | None:
        """Multiple shooting over all rounds, then one fit of them; `None` where it gets stuck."""
        rounds = len(self.probes)
        shooting = Shooting(
            self.algorithm, self._course(rounds), self.products, self.norms, self.coordinates, self._of_gram
        )
        landed = shooting.search(self.coordinates.coordinates(start), _SHOTS, hold)
        if not landed.norm < _HOPELESS:
            return None
        counts = landed.counts if self.algorithm.inner_steps is None else np.zeros(0)
        return self._fit(np.concatenate([landed.x, counts]), rounds, _LATE)

    def told(self, x: Array) -> tuple[Array, Array]:
        """S in its own units, and the counts of all rounds."""
        size = self.coordinates.count
        S = self.coordinates.matrix(x[:size])
        return self.whole(S), self.with_counts(x, S)[size:]

    def whole(self, S: Array) -> Array:
        """Out of the frame, in its own units."""
        return np.asarray(self._scale * self._frame @ S @ self._frame.T)

    def accepted(self, x: Array, starts: int) -> Found | None:
        """All rounds brought to round-off; `None` where that proves nothing."""
        size, rounds = self.coordinates.count, len(self.probes)
        x = self.with_counts(x, self.coordinates.matrix(x[:size]))
        fit = gauss_newton(lambda values: self.linearised(values, rounds), x, _POLISHING)
        misfit = self._misfit(fit.point) if self.narrow and np.isfinite(fit.norm) else fit.norm
        if not misfit < self.floor:
            return None
        jacobian = fit.jacobian
        lengths = np.maximum(np.linalg.norm(jacobian, axis=0), 1e-300)
        _, s, Vt = np.linalg.svd(np.linalg.qr(jacobian / lengths, mode="r"))
        unknowns = self.coordinates.determined + len(x) - size
        rank = min(int(np.sum(s > _FULL_RANK * s[0])), unknowns)
        spread = Vt[:rank, :size] / s[:rank, None] / lengths[:size]
        freedom = max(len(jacobian) - unknowns, 1)
        hidden = fit.norm / math.sqrt(freedom) * float(np.linalg.norm(spread) / np.linalg.norm(fit.point[:size]))
        if rank < unknowns or not hidden < _HIDDEN:
            return None
        gram, counts = self.told(fit.point)
        return Found(gram, counts, misfit, rank, unknowns, float(s[0] / s[rank - 1]), hidden, starts)

    def climb(self, start: Array, stages: Sequence[int], first: float) -> Array | None:
        """Fit the rounds stage by stage; `None` where it gets stuck. Unknown counts start at `first` at most."""
        size = self.coordinates.count
        x, last = self.coordinates.coordinates(start), stages[-1]
        free = self.algorithm.inner_steps is None
        counts = np.minimum(rule_counts(start, self._course(last), self.algorithm), first) if free else np.zeros(0)
        for stage in stages:
            own = stage - 1 if free else 0
            point = self._fit(np.concatenate([x, counts[:own]]), stage, _LATE if stage == last else _EARLY)
            if point is None:
                return None
            x, counts = point[:size], np.concatenate([point[size:], counts[own:]])
        return np.concatenate([x, counts])

    def _fit(self, start: Array, count: int, steps: int) -> Array | None:
        """The first `count` rounds; `None` where it gets stuck."""

        def residual(values: Array) -> Array:
            return self.residual(values, count)

        result = levenberg(
            lambda values: self.linearised(values, count),
            start,
            steps=steps,
            goal=GOAL,
            patience=Patience(_NEAR, far=_PATIENCE, close=_CLOSE if self.narrow else None, floor=self.floor),
            residual=residual,
            stepper=Geodesic(residual),
        )
        return result.point if result.norm < _HOPELESS else None

    def residual(self, x: Array, count: int) -> Array:
        size = self.coordinates.count
        S = self.coordinates.matrix(x[:size])
        try:
            sent = messages(S, x[size:], self._course(count))
            scalars = self._scalars(S, float(np.linalg.eigvalsh(S)[-1]), count)
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)
        return np.concatenate([*self._misfits(sent), scalars])

    def linearised(self, x: Array, count: int) -> tuple[Array, Array]:
        size = self.coordinates.count
        S, directions = self.coordinates.matrix(x[:size]), self.coordinates.at(x[:size])
        sent, tangents = messages_and_tangents(S, x[size:], self._course(count), directions)
        pairs = zip(tangents, self.norms, strict=False)
        rows = [(T.transpose(0, 2, 1) / norm[..., None]).reshape(-1, len(x)) for T, norm in pairs]
        scalars, slopes = self._of_gram(x[:size], count)
        wide = np.hstack([slopes, np.zeros((len(slopes), len(x) - size))])
        return np.concatenate([*self._misfits(sent), scalars]), np.vstack([*rows, wide])

    def _misfits(self, sent: Sequence[Array]) -> list[Array]:
        triples = zip(sent, self.products, self.norms, strict=False)
        return [((Y - seen) / norm).reshape(-1) for Y, seen, norm in triples]

    def _misfit(self, x: Array) -> float:
        """Norm of the relative misfits, all entries of a message alike."""
        size = self.coordinates.count
        sent = messages(self.coordinates.matrix(x[:size]), x[size:], self._course(len(self.probes)))
        pairs = zip(sent, self.products, strict=True)
        return float(np.linalg.norm([np.linalg.norm(Y - seen) / (np.linalg.norm(seen) or 1.0) for Y, seen in pairs]))

    def _scalars(self, S: Array, top: float, count: int) -> Array:
        """tr(Z_k^T S Z_k) and lambda_1(S), less what is known of them."""
        pairs = zip(self.probes[:count], self.captured, strict=False)
        return np.array([*(np.vdot(Z, S @ Z) - seen for Z, seen in pairs), _EIGENVALUE_WEIGHT * (top - 1)])

    def _of_gram(self, x: Array, count: int | None = None) -> tuple[Array, Array]:
        """`_scalars` and their derivative by the parameters of S."""
        S, directions = self.coordinates.matrix(x), self.coordinates.at(x)
        count = len(self.probes) if count is None else count
        values, vectors = np.linalg.eigh(S)
        rows = [directions.slopes(Z @ Z.T) for Z in self.probes[:count]]
        rows.append(_EIGENVALUE_WEIGHT * directions.slopes(np.outer(vectors[:, -1], vectors[:, -1])))
        return self._scalars(S, float(values[-1]), count), np.stack(rows)

    def _course(self, count: int) -> Course:
        return course_of(self.probes[:count], self.algorithm)
