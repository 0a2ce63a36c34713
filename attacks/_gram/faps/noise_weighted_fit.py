"""Find the most likely Gram matrix S of one client from its FAPS messages, if these carry rounding errors or noise.

FAPS is federated PCA; a client's message in round k is a matrix Y_k, (features, rank), a known function of its Gram
matrix S, of a penalty beta in proportion to lambda_1(S), the largest eigenvalue, and of its numbers of inner iterations
("inner counts", unknown where a rule ends them). `client_fit` calls `most_likely` where the residual of a fit may be
noise. Inputs are the Y_k, the S at which `client_fit` ended, and the estimate S_0 of `near_consensus`. The result
minimises, over S, its largest eigenvalue and the inner counts,

    sum_e (Y_e(S) - Y_e)^2 / var_e + ||x(S) - x(S_0)||^2 / prior^2,
    var_e = (additive rms_k)^2 + (proportional Y_e)^2 + rounding_e^2,

where e runs over the entries of all messages, rms_k is the root mean square of message k, rounding_e the rounding error
of the number format, and x(S) are the parameters of S. The three standard deviations `additive`, `proportional` and
`prior` (the sizes of the errors) are fitted in turn with S: each becomes the root mean square of what it stands for,
over the degrees of freedom that the fit has left to it.

`client_fit` takes lambda_1(S) from the first message, as if that were exact, and gives all rounds the same weight. Here
every entry has the weight of its own error, and lambda_1(S) is an unknown. The ratio beta / lambda_1(S) is public
(`FAPS.beta_scale`), up to a round from which on it depends on data; later rounds are left out, so that beta follows
from S. Directions of S that the messages do not determine stay at the near-consensus estimate.

The unit of S is lambda_1 of the S that `client_fit` found. A point, as `_NoiseWeightedEquations` fits it, holds in this
order the parameters x of S' = S / lambda_1(S), the inner counts, and lambda_1(S) in that unit, the level (1 at the
start). Its residuals (`ReceivedMessages.residual`) are in this order the entries of all Y_k, tr(Z_k^T S Z_k) of each
round (Z_k the broadcast basis), and lambda_1(S') - 1. After them come the distances of the point from the prior's mean.

Source: MacKay, Bayesian interpolation (1992), for the sizes of the errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.linalg import LinAlgError
from scipy.linalg import solve_triangular
from scipy.optimize import nnls

from securefed._tensors import Array
from securefed.algorithms._pca.faps import FAPS
from securefed.attacks._base import RoundView
from securefed.attacks._fitting.levenberg_marquardt import (
    GeodesicAcceleration,
    LeastSquaresFit,
    gauss_newton,
    levenberg_marquardt,
)
from securefed.attacks._gram.coordinates import GramParametrisation, LowRankFactor
from securefed.attacks._gram.faps.received_messages import SMALLEST, ReceivedMessages, typical_sizes
from securefed.attacks._gram.faps.simulated_client import rule_counts
from securefed.attacks._gram.linear import nearest_psd
from securefed.errors import DivergenceError

_ITERATIONS, _STEPS, _LEAST, _LAST = 12, 40, 1e-4, 4
"""Largest number of iterations that fit S and then the sizes of the errors; most Jacobians of one iteration; relative
decrease of the norm below which a fit ends; number of Gauss-Newton steps at the end.
"""
_SETTLED = 1e-2
"""The sizes have converged once none of them moves by a larger share."""
_STIFF = 1e-3
"""The equation lambda_1(S') = 1 holds exactly. As a residual it needs some standard deviation: this share of the
messages' relative error, so that it weighs far more than they do."""
_PRIOR = 0.1
"""Relative error of the near-consensus estimate with which the fit of the sizes begins."""
_POOR = 1.5
"""Mean square of the residuals, in units of their variances, above which another start is tried."""
_FLAT = 1e3
"""Standard deviation of a prior that says nothing."""


@dataclass(frozen=True)
class NoiseWeightedFit:
    """The most likely S.

    Attributes:
        gram: S, (features, features), positive semidefinite.
        counts: inner counts of rounds 1, 2, ...; empty where they are public.
        error: expected relative error of S (Frobenius norm, root mean square).
        noise: standard deviation of an entry's error over its message's root mean square, as fitted.
        residual: norm of the residuals of all messages, each relative to the norm of its message.
        unevenness: largest deviation of a round's residual from what the noise explains, in standard deviations.
        rank: parameters of S that the messages rather than the estimate determine.
        unknowns: parameters of S.
        condition: of the whitened Jacobian.
    """

    gram: Array
    counts: Array
    error: float
    noise: float
    residual: float
    unevenness: float
    rank: int
    unknowns: int
    condition: float


@dataclass(frozen=True)
class _ErrorSizes:
    """Standard deviations of the errors.

    Attributes:
        additive: of an entry, in units of its message's root mean square.
        proportional: of an entry, in units of the entry itself.
        prior: of the parameters x around those of the near-consensus estimate.
    """

    additive: float
    proportional: float
    prior: float

    def change_from(self, other: _ErrorSizes) -> float:
        """Return the largest change, relative to the larger size."""
        pairs = ((self.additive, other.additive), (self.proportional, other.proportional), (self.prior, other.prior))
        scales = (max(self.additive, self.proportional), max(self.additive, self.proportional), self.prior)
        return max(abs(a - b) / max(scale, 1e-300) for (a, b), scale in zip(pairs, scales, strict=True))


def most_likely(
    rounds: Sequence[RoundView], algorithm: FAPS, rows: int, start: Array, counts: Array, estimate: Array
) -> NoiseWeightedFit | None:
    """Find the most likely S near `start`.

    Args:
        rounds: one client's messages from its first on, as far as beta is known.
        algorithm: the FAPS that the client runs.
        rows: bound on the rank of S; 0 for none.
        start: S as fitted, (features, features).
        counts: inner counts as fitted; empty where they are public.
        estimate: S from `near_consensus`, the mean of the prior.

    Returns:
        The fit; `None` where the search fails.
    """
    scale = float(np.linalg.eigvalsh(start)[-1])
    equations = _NoiseWeightedEquations(
        ReceivedMessages.of(rounds, algorithm, rows, scale), start / scale, counts, estimate / scale
    )
    try:
        return equations.solve(scale, rows)
    except (LinAlgError, DivergenceError):
        return None


def least_error(rounds: Sequence[RoundView], algorithm: FAPS, rows: int, gram: Array) -> float:
    """Return the relative error (root mean square) below which no unbiased attack on messages with such errors gets.

    This is the bound of Cramer and Rao at the true S, which tests and benchmarks know: it serves to judge an attack.

    Args:
        rounds: one client's messages from its first on, as far as beta is known.
        algorithm: the FAPS that the client runs.
        rows: bound on the rank of S; 0 for none.
        gram: the client's S.
    """
    scale = float(np.linalg.eigvalsh(gram)[-1])
    seen = ReceivedMessages.of(rounds, algorithm, rows, scale)
    counts = (
        np.zeros(0)
        if algorithm.inner_steps
        else rule_counts(gram / scale, seen.equations.received(len(rounds)), algorithm)
    )
    return _NoiseWeightedEquations(seen, gram / scale, counts, gram / scale).least_error()


class _NoiseWeightedEquations:
    """Residuals of the messages and of the parameters, each over its standard deviation (whitened).

    Args:
        seen: the observed messages.
        start: S at which the search begins, in units of its lambda_1.
        counts: inner counts at the start; empty where they are public.
        estimate: S of `near_consensus` in the same units, the mean of the prior.
    """

    def __init__(self, seen: ReceivedMessages, start: Array, counts: Array, estimate: Array) -> None:
        self._seen = seen
        x = seen.coordinates.coordinates(start)
        self._start = np.concatenate([x, counts, np.ones(1)])
        self._mean = np.concatenate([_aligned(seen.coordinates, estimate, x), counts, np.ones(1)])
        self._size = len(x)
        # by entry: the root mean square of its message, and its own size
        self._typical = np.repeat(typical_sizes(seen.products), seen.products[0].size)
        self._entries = np.maximum(np.abs(seen.products).reshape(-1), SMALLEST * self._typical)

    def solve(self, scale: float, rows: int) -> NoiseWeightedFit:
        """Alternate between the parameters and the sizes of the errors until these have converged.

        Args:
            scale: the unit of S, lambda_1 of the start.
            rows: bound on the rank of S; 0 for none.
        """
        point = self._start
        residual = self._seen.residual(point)[: len(self._entries)]
        sizes = _ErrorSizes(
            additive=float(np.sqrt(np.mean((residual / self._typical) ** 2))),
            proportional=0.0,
            prior=_PRIOR * float(np.sqrt(np.mean(self._mean[: self._size] ** 2))),
        )
        fit = self._fit_parameters(point, sizes)
        if fit.norm**2 > _POOR * len(residual):  # it ended in another minimum: start again half-way to the prior's mean
            fit = min(fit, self._fit_parameters((point + self._mean) / 2, sizes), key=lambda one: one.norm)
        for _ in range(_ITERATIONS):
            point, before = fit.point, sizes
            sizes = self._fit_sizes(point, self._freedom(fit), sizes)
            if sizes.change_from(before) < _SETTLED:
                break
            fit = self._fit_parameters(point, sizes)
        fit = gauss_newton(lambda values: self._whitened(values, sizes), point, _LAST)
        return self._summary(fit, sizes, scale, rows)

    def least_error(self) -> float:
        """Return the bound at the start, taken as the truth, with nothing known but the messages."""
        count, sizes = len(self._entries), _ErrorSizes(0.0, 0.0, _FLAT)
        nothing = np.ones(count), 0.0  # no parameter was fitted, so that residuals have all of their variance
        for _ in range(_ITERATIONS):
            sizes = replace(self._fit_sizes(self._start, nothing, sizes), prior=_FLAT)
        return self._expected(self._start, self._whitened(self._start, sizes)[1])

    def _fit_parameters(self, point: Array, sizes: _ErrorSizes) -> LeastSquaresFit:
        """Find the most likely parameters with these sizes."""

        def linearised(values: Array) -> tuple[Array, Array]:
            return self._whitened(values, sizes)

        def residual(values: Array) -> Array:
            return self._residual(values, sizes)

        return levenberg_marquardt(
            linearised,
            point,
            steps=_STEPS,
            goal=0.0,
            residual=residual,
            stepper=GeodesicAcceleration(residual),
            least=_LEAST,
        )

    def _deviations(self, sizes: _ErrorSizes) -> tuple[Array, Array]:
        """Return standard deviations of the residuals of the messages, and of the point from the prior's mean."""
        seen = self._seen
        entries = np.sqrt(
            (sizes.additive * self._typical) ** 2
            + (sizes.proportional * self._entries) ** 2
            + seen.rounding.reshape(-1) ** 2
        )
        share = float(np.sqrt(np.mean((entries / self._typical) ** 2)))
        # the traces tr(Z^T S Z) are taken to have the messages' mean relative error
        scalars = np.append(share * np.abs(seen.equations.captured), _STIFF * share)
        prior = np.ones(len(self._mean))  # loose for the counts, and for the level, which is near 1
        prior[: self._size] = sizes.prior
        return np.concatenate([entries, scalars]), prior

    def _whitened(self, point: Array, sizes: _ErrorSizes) -> tuple[Array, Array]:
        """Return the whitened residuals, those of the messages first, and their Jacobian."""
        observed, prior = self._deviations(sizes)
        residual, jacobian = self._seen.linearised(point)
        whole = np.concatenate([residual / observed, (point - self._mean) / prior])
        return whole, np.vstack([jacobian / observed[:, None], np.diag(1 / prior)])

    def _residual(self, point: Array, sizes: _ErrorSizes) -> Array:
        """Return the whitened residuals."""
        observed, prior = self._deviations(sizes)
        return np.concatenate([self._seen.residual(point) / observed, (point - self._mean) / prior])

    def _fit_sizes(self, point: Array, freedom: tuple[Array, float], sizes: _ErrorSizes) -> _ErrorSizes:
        """Fit the sizes to the squared residuals, each of which the fit has reduced to its share `freedom`.

        An entry's squared whitened residual r_e^2 has the expectation free_e (additive^2 typical_e^2 + proportional^2
        entry_e^2 + rounding_e^2) / var_e with the old var_e: a linear equation for the two squared sizes, which are
        solved for by non-negative least squares.
        """
        count = len(self._entries)
        variances = self._deviations(sizes)[0][:count] ** 2
        free, determined = freedom
        kinds = np.stack([self._typical**2, self._entries**2], axis=1) * (free / variances)[:, None]
        rounding = free * self._seen.rounding.reshape(-1) ** 2 / variances
        additive, proportional = np.sqrt(nnls(kinds, self._residual(point, sizes)[:count] ** 2 - rounding)[0])
        shift = float(np.linalg.norm((point - self._mean)[: self._size]))
        return _ErrorSizes(float(additive), float(proportional), shift / math.sqrt(max(determined, 1.0)))

    def _summary(self, fit: LeastSquaresFit, sizes: _ErrorSizes, scale: float, rows: int) -> NoiseWeightedFit:
        """Report a fit; `scale` and `rows` are those of `solve`."""
        seen, size, count = self._seen, self._size, len(self._entries)
        deviations = self._deviations(sizes)[0][:count] / self._typical
        free, determined = self._freedom(fit)
        whitened = self._residual(fit.point, sizes)[:count]
        # by round: the sum of squared whitened residuals, and its expectation
        residuals, left = (np.sum(v.reshape(len(seen.products), -1), axis=1) for v in (whitened**2, free))
        s = np.linalg.svd(np.linalg.qr(fit.jacobian, mode="r"), compute_uv=False)
        return NoiseWeightedFit(
            gram=nearest_psd(scale * fit.point[-1] * seen.coordinates.matrix(fit.point[:size]), rows),
            counts=fit.point[size:-1],
            error=self._expected(fit.point, fit.jacobian),
            noise=float(np.sqrt(np.mean(deviations**2))),
            residual=float(np.linalg.norm(whitened * deviations)) / math.sqrt(seen.products[0].size),
            unevenness=float(np.max(np.abs(residuals - left) / np.sqrt(2 * np.maximum(left, 1.0)))),
            rank=round(determined),
            unknowns=size,
            condition=float(s[0] / s[-1]),
        )

    def _expected(self, point: Array, jacobian: Array) -> float:
        """Return the relative error of S, root mean square, with this whitened Jacobian.

        The parameters have covariance (J^T J)^-1 = R^-1 R^-T with J = Q R, and S changes by `moves` times a change of
        the parameters; so the sum of the variances of the entries of S is ||R^-T moves^T||_F^2.
        """
        size = self._size
        S = self._seen.coordinates.matrix(point[:size])
        # derivatives of the entries of S' by its parameters, (features^2, parameters)
        moves = self._seen.coordinates.at(point[:size]).times(np.eye(len(S))).transpose(0, 2, 1).reshape(S.size, size)
        # those of S = level S' at level 1: by the parameters, by the counts (zero), and by the level
        moves = np.hstack([moves, np.zeros((S.size, len(point) - size - 1)), S.reshape(-1, 1)])
        spread = solve_triangular(np.linalg.qr(jacobian, mode="r"), moves.T, trans="T")
        return float(np.linalg.norm(spread) / np.linalg.norm(S))

    def _freedom(self, fit: LeastSquaresFit) -> tuple[Array, float]:
        """Compute the degrees of freedom of the fit, by the hat matrix Q Q^T of its whitened Jacobian.

        Returns:
            For every entry the share of its variance that the fit leaves as residual, and the number of parameters of S
            that the messages determine.
        """
        Q, _ = np.linalg.qr(fit.jacobian)
        left = np.clip(1 - np.sum(Q**2, axis=1), 0.0, 1.0)  # 1 - (Q Q^T)_ee
        # the last rows are those of the prior; they keep their variance where the messages determine the parameter
        return left[: len(self._entries)], float(np.sum(left[-len(fit.point) :][: self._size]))


def _aligned(coordinates: GramParametrisation, estimate: Array, x: Array) -> Array:
    """Return the estimate's parameters; a factor F of F F^T is rotated to be nearest to that of x (Procrustes)."""
    mean = coordinates.coordinates(estimate)
    if not isinstance(coordinates, LowRankFactor):
        return mean
    F, G = coordinates.factor(x), coordinates.factor(mean)
    U, _, Vt = np.linalg.svd(G.T @ F)
    return np.asarray((G @ U @ Vt).reshape(-1))
