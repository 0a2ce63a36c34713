"""The most likely S behind FAPS messages that carry rounding errors or noise.

`faps_fit` takes the first message at its word, beta with it, and counts all rounds alike. Near its solution every
entry counts by its own error here, beta follows S, and what the messages leave open stays at the near-consensus
estimate. How large the errors are, of messages and of that estimate, is fitted along with S.

Source: MacKay, Bayesian interpolation (1992), for the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.linalg import LinAlgError
from scipy.linalg import solve_triangular
from scipy.optimize import nnls

from securefed.algorithms.pca.faps import FAPS
from securefed.algorithms.pca.server import BASIS, CAPTURED, PRODUCT
from securefed.attacks.base import Observation
from securefed.attacks.gram.coordinates import Coordinates, LowRank, Symmetric
from securefed.attacks.gram.faps_client import Course, course_of, messages, messages_and_tangents, rule_counts
from securefed.attacks.gram.linear import nearest_psd
from securefed.attacks.levenberg import Fit, Geodesic, gauss_newton, levenberg
from securefed.errors import DivergenceError
from securefed.tensors import Array

_TURNS, _STEPS, _LEAST, _LAST = 12, 40, 1e-4, 4
"""Turns of fitting S, then the sizes of the errors; steps of a turn; what a step must take off the misfit; the undamped
steps at the end."""
_SETTLED = 1e-2
"""The sizes have settled once none of them moves by more."""
_STIFF = 1e-3
"""lambda_1(S) = beta / beta_scale holds exactly: to this share of the messages' errors."""
_AWAY = 0.1
"""Error of the estimate that the search begins with, relative."""
_POOR = 1.5
"""Mean square of the misfits, in units of their variances, above which another start is tried."""
_OPEN = 1e3
"""Of parameters that are not known from elsewhere."""
_SMALLEST = 1e-3
"""Share of its message's root mean square below which an entry's own error no longer shrinks with it."""


def single(Y: Array) -> bool:
    """Whether the numbers are those of float32."""
    return bool(np.array_equal(Y, np.asarray(Y, np.float32)))


@dataclass(frozen=True)
class Likely:
    """The most likely S.

    Attributes:
        gram: S.      counts: inner counts, where they are unknown.
        error: relative, that is to be expected.      noise: relative, of the messages, as fitted.
        misfit: norm of the relative misfits.
        unevenness: largest deviation of a round's misfit from what the noise explains, in standard deviations.
        rank, unknowns: parameters of S that the messages rather than the estimate determine, of all.
        condition: of the whitened Jacobian.
    """

    gram: Array
    counts: Array
    error: float
    noise: float
    misfit: float
    unevenness: float
    rank: int
    unknowns: int
    condition: float


@dataclass(frozen=True)
class _Seen:
    """What was observed, in units of the largest eigenvalue, and what it would be.

    Parameters: of S / lambda_1(S), the inner counts, and lambda_1(S).
    """

    course: Course
    products: Array
    rounding: Array
    captured: Array
    coordinates: Coordinates

    @classmethod
    def of(cls, rounds: Sequence[Observation], algorithm: FAPS, rows: int, scale: float) -> _Seen:
        products = np.stack([o.message[PRODUCT] for o in rounds])
        kind = np.float32 if single(products) else np.float64
        features = products.shape[1]
        return cls(
            course=course_of([o.broadcast[BASIS] for o in rounds], algorithm),
            products=products.astype(float) / scale,
            rounding=np.spacing(np.maximum(np.abs(products), _SMALLEST * _typical(products)).astype(kind))
            / np.sqrt(12)
            / scale,
            captured=np.array([float(o.message[CAPTURED]) for o in rounds]) / scale,
            coordinates=LowRank(features, rows) if 0 < 2 * rows < features else Symmetric.of(features),
        )

    @property
    def unknowns(self) -> int:
        return self.coordinates.count + self.course.free_counts + 1

    def residual(self, point: Array) -> Array:
        """Misfits of the entries, the scalars and of lambda_1 = 1; NaN out of reach."""
        S = self.coordinates.matrix(point[: self.coordinates.count])
        try:
            sent = messages(S, point[self.coordinates.count : -1], self.course)
            top = np.linalg.eigvalsh(S)[-1:]
        except (LinAlgError, DivergenceError):
            return np.full(self.products.size + len(self.captured) + 1, np.nan)
        return self._misfits(np.stack(sent), S, top, point[-1])

    def linearised(self, point: Array) -> tuple[Array, Array]:
        """`residual` and its derivative."""
        size, level = self.coordinates.count, point[-1]
        S, directions = self.coordinates.matrix(point[:size]), self.coordinates.at(point[:size])
        sent, tangents = messages_and_tangents(S, point[size:-1], self.course, directions)
        values, vectors = np.linalg.eigh(S)
        products, scalars = self.products.size, len(self.captured)
        jacobian = np.zeros((products + scalars + 1, len(point)))
        jacobian[:products, :-1] = level * np.stack(tangents).transpose(0, 1, 3, 2).reshape(products, -1)
        jacobian[:products, -1] = np.stack(sent).reshape(-1)
        jacobian[products:-1, :size] = level * np.stack([directions.slopes(Z @ Z.T) for Z in self.course.probes])
        jacobian[products:-1, -1] = self._scalars(S)
        jacobian[-1, :size] = directions.slopes(np.outer(vectors[:, -1], vectors[:, -1]))
        return self._misfits(np.stack(sent), S, values[-1:], level), jacobian

    def _misfits(self, sent: Array, S: Array, top: Array, level: float) -> Array:
        return np.concatenate(
            [(level * sent - self.products).reshape(-1), level * self._scalars(S) - self.captured, top - 1]
        )

    def _scalars(self, S: Array) -> Array:
        return np.array([np.vdot(Z, S @ Z) for Z in self.course.probes])


@dataclass(frozen=True)
class _Sizes:
    """Standard deviations.

    Attributes:
        even: of an entry, in units of its message's root mean square.      own: in units of the entry itself.
        away: of the parameters of S from the estimate's.
    """

    even: float
    own: float
    away: float

    def moved(self, other: _Sizes) -> float:
        """By how much, relative to the larger."""
        pairs = ((self.even, other.even), (self.own, other.own), (self.away, other.away))
        scales = (max(self.even, self.own), max(self.even, self.own), self.away)
        return max(abs(a - b) / max(scale, 1e-300) for (a, b), scale in zip(pairs, scales, strict=True))


def most_likely(
    rounds: Sequence[Observation], algorithm: FAPS, rows: int, start: Array, counts: Array, estimate: Array
) -> Likely | None:
    """The most likely S near `start`; `None` where there is none.

    Args:
        rounds: one client's messages from its first on, all with known beta.      rows: bound on the rank of S.
        start: S as fitted.      counts: inner counts as fitted; empty where they are public.
        estimate: S as it seems near consensus.
    """
    scale = float(np.linalg.eigvalsh(start)[-1])
    likelihood = _Likelihood(_Seen.of(rounds, algorithm, rows, scale), start / scale, counts, estimate / scale)
    try:
        return likelihood.maximised(scale, rows)
    except (LinAlgError, DivergenceError):
        return None


def least_error(rounds: Sequence[Observation], algorithm: FAPS, rows: int, gram: Array) -> float:
    """The relative error (root mean square) below which no unbiased attack on messages with such errors gets, to first
    order: the bound of Cramer and Rao at the true S, for those who know it.

    Args:
        rounds: one client's messages from its first on, all with known beta.      gram: its S.
    """
    scale = float(np.linalg.eigvalsh(gram)[-1])
    seen = _Seen.of(rounds, algorithm, rows, scale)
    counts = np.zeros(0) if algorithm.inner_steps else rule_counts(gram / scale, seen.course, algorithm)
    return _Likelihood(seen, gram / scale, counts, gram / scale).least_error()


class _Likelihood:
    """Of the parameters and the sizes."""

    def __init__(self, seen: _Seen, start: Array, counts: Array, estimate: Array) -> None:
        self._seen = seen
        x = seen.coordinates.coordinates(start)
        self._start = np.concatenate([x, counts, np.ones(1)])
        self._mean = np.concatenate([_turned(seen.coordinates, estimate, x), counts, np.ones(1)])
        self._size = len(x)
        self._typical = np.repeat(_typical(seen.products), seen.products[0].size)
        self._entries = np.maximum(np.abs(seen.products).reshape(-1), _SMALLEST * self._typical)

    def maximised(self, scale: float, rows: int) -> Likely:
        point = self._start
        residual = self._seen.residual(point)[: len(self._entries)]
        sizes = _Sizes(
            even=float(np.sqrt(np.mean((residual / self._typical) ** 2))),
            own=0.0,
            away=_AWAY * float(np.sqrt(np.mean(self._mean[: self._size] ** 2))),
        )
        fit = self._moved(point, sizes)
        if fit.norm**2 > _POOR * len(residual):  # the fit followed the noise into another valley
            fit = min(fit, self._moved((point + self._mean) / 2, sizes), key=lambda one: one.norm)
        for _ in range(_TURNS):
            point, before = fit.point, sizes
            sizes = self._fitted(point, self._left(fit), sizes)
            if sizes.moved(before) < _SETTLED:
                break
            fit = self._moved(point, sizes)
        fit = gauss_newton(lambda values: self._whitened(values, sizes), point, _LAST)
        return self._told(fit, sizes, scale, rows)

    def least_error(self) -> float:
        """At the start, were it the truth and nothing known but the messages."""
        count, sizes = len(self._entries), _Sizes(0.0, 0.0, _OPEN)
        nothing = np.ones(count), 0.0
        for _ in range(_TURNS):
            sizes = replace(self._fitted(self._start, nothing, sizes), away=_OPEN)
        return self._expected(self._start, self._whitened(self._start, sizes)[1])

    def _moved(self, point: Array, sizes: _Sizes) -> Fit:
        """To the most likely parameters with these sizes."""

        def linearised(values: Array) -> tuple[Array, Array]:
            return self._whitened(values, sizes)

        def residual(values: Array) -> Array:
            return self._residual(values, sizes)

        return levenberg(
            linearised, point, steps=_STEPS, goal=0.0, residual=residual, stepper=Geodesic(residual), least=_LEAST
        )

    def _deviations(self, sizes: _Sizes) -> tuple[Array, Array]:
        """Of what was observed, and of the parameters from the estimate's."""
        seen = self._seen
        entries = np.sqrt(
            (sizes.even * self._typical) ** 2 + (sizes.own * self._entries) ** 2 + seen.rounding.reshape(-1) ** 2
        )
        share = float(np.sqrt(np.mean((entries / self._typical) ** 2)))
        scalars = np.append(share * np.abs(seen.captured), _STIFF * share)
        away = np.ones(len(self._mean))  # of the counts, and loosely of lambda_1
        away[: self._size] = sizes.away
        return np.concatenate([entries, scalars]), away

    def _whitened(self, point: Array, sizes: _Sizes) -> tuple[Array, Array]:
        observed, away = self._deviations(sizes)
        residual, jacobian = self._seen.linearised(point)
        whole = np.concatenate([residual / observed, (point - self._mean) / away])
        return whole, np.vstack([jacobian / observed[:, None], np.diag(1 / away)])

    def _residual(self, point: Array, sizes: _Sizes) -> Array:
        observed, away = self._deviations(sizes)
        return np.concatenate([self._seen.residual(point) / observed, (point - self._mean) / away])

    def _fitted(self, point: Array, left: tuple[Array, float], sizes: _Sizes) -> _Sizes:
        """The sizes that explain the misfits, each counted by what the fit has left of it."""
        count = len(self._entries)
        variances = self._deviations(sizes)[0][:count] ** 2
        free, told = left
        kinds = np.stack([self._typical**2, self._entries**2], axis=1) * (free / variances)[:, None]
        rounding = free * self._seen.rounding.reshape(-1) ** 2 / variances
        even, own = np.sqrt(nnls(kinds, self._residual(point, sizes)[:count] ** 2 - rounding)[0])
        shift = float(np.linalg.norm((point - self._mean)[: self._size]))
        return _Sizes(float(even), float(own), shift / math.sqrt(max(told, 1.0)))

    def _told(self, fit: Fit, sizes: _Sizes, scale: float, rows: int) -> Likely:
        seen, size, count = self._seen, self._size, len(self._entries)
        deviations = self._deviations(sizes)[0][:count] / self._typical
        free, told = self._left(fit)
        whitened = self._residual(fit.point, sizes)[:count]
        misfits, left = (np.sum(v.reshape(len(seen.products), -1), axis=1) for v in (whitened**2, free))
        s = np.linalg.svd(np.linalg.qr(fit.jacobian, mode="r"), compute_uv=False)
        return Likely(
            gram=nearest_psd(scale * fit.point[-1] * seen.coordinates.matrix(fit.point[:size]), rows),
            counts=fit.point[size:-1],
            error=self._expected(fit.point, fit.jacobian),
            noise=float(np.sqrt(np.mean(deviations**2))),
            misfit=float(np.linalg.norm(whitened * deviations)) / math.sqrt(seen.products[0].size),
            unevenness=float(np.max(np.abs(misfits - left) / np.sqrt(2 * np.maximum(left, 1.0)))),
            rank=round(told),
            unknowns=size,
            condition=float(s[0] / s[-1]),
        )

    def _expected(self, point: Array, jacobian: Array) -> float:
        """Relative error of S, root mean square, with this whitened Jacobian."""
        size = self._size
        S = self._seen.coordinates.matrix(point[:size])
        moves = self._seen.coordinates.at(point[:size]).times(np.eye(len(S))).transpose(0, 2, 1).reshape(S.size, size)
        moves = np.hstack([moves, np.zeros((S.size, len(point) - size - 1)), S.reshape(-1, 1)])
        spread = solve_triangular(np.linalg.qr(jacobian, mode="r"), moves.T, trans="T")
        return float(np.linalg.norm(spread) / np.linalg.norm(S))

    def _left(self, fit: Fit) -> tuple[Array, float]:
        """The share that the fit leaves of every entry's variance, and how many parameters of S the messages tell."""
        Q, _ = np.linalg.qr(fit.jacobian)
        left = np.clip(1 - np.sum(Q**2, axis=1), 0.0, 1.0)
        return left[: len(self._entries)], float(np.sum(left[-len(fit.point) :][: self._size]))


def _typical(products: Array) -> Array:
    """Root mean square of the entries of each message, (messages, 1, 1)."""
    return np.asarray(np.sqrt(np.mean(np.asarray(products, float) ** 2, axis=(1, 2), keepdims=True)))


def _turned(coordinates: Coordinates, estimate: Array, x: Array) -> Array:
    """The estimate's parameters; of a factor, those nearest to x."""
    mean = coordinates.coordinates(estimate)
    if not isinstance(coordinates, LowRank):
        return mean
    F, G = coordinates.factor(x), coordinates.factor(mean)
    U, _, Vt = np.linalg.svd(G.T @ F)
    return np.asarray((G @ U @ Vt).reshape(-1))
