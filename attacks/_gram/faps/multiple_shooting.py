"""Find a start for the fit of a simulated FAPS client by multiple shooting: S and inner counts from messages Y_k.

A fit of S alone simulates all rounds one after the other; where the inner iterations converge slowly, a small change of
S turns later subspaces by much, so that few starts succeed. Here S and every X_k are unknown, and the links between
rounds (X_{k-1} after the inner iterations of round k, less X_k) are residuals beside those of the messages, the traces
and lambda_1(S), so that links need not hold before the end of the search. Where the inner counts follow FAPS' stop
rule, the rule is applied again after every step. In the code `probes` are the Z_k and `products` the Y_k; the package's
head has the symbols. Source: Bock and Plitt, A multiple shooting algorithm for direct solution of optimal control
problems (1984).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError

from securefed._tensors import Array
from securefed.algorithms._pca.operators import orth
from securefed.attacks._engine import DualArray
from securefed.attacks._fitting.levenberg_marquardt import GeodesicAcceleration, levenberg_marquardt
from securefed.attacks._gram.faps.client_equations import ClientEquations
from securefed.attacks._gram.faps.simulated_client import inner_operator, iterate, iterate_by_rule, product
from securefed.errors import DivergenceError

GOAL = 1e-8
"""Norm of the residuals at which the search stops; `client_fit` then fits S alone to all rounds, from here."""
_LINK_WEIGHT = 0.1
"""Weight of the links. Larger weights turn the problem into a fit of S alone again (at 1 few starts succeed), smaller
ones leave flat valleys (at .01 the search crawls).
"""
_QUICK, _SLOWNESS = 8.0, 3.0
"""A link of c inner iterations has its weight multiplied by min(1, (_QUICK / c) ** _SLOWNESS): where iterations
converge slowly, their end depends on every digit of S, and the link would dominate the search. Both were chosen by
trial on the digits; links of up to 8 iterations keep their full weight, one of 16 has an eighth of it.
"""
_PATIENCE, _SETTLED, _NOISE = 20, 4, 1e-3
"""The search ends when its residual has not halved within `_PATIENCE` steps, or within `_SETTLED` steps below `_NOISE`,
where the rest may be noise of the messages. A longer patience costs Jacobians of starts that do not succeed, a shorter
one ends searches that crawl along a valley before they reach its end; `client_fit` tries further starts.
"""


@dataclass(frozen=True)
class ShootingResult:
    """The end of a search.

    Attributes:
        x: parameters of S, those of `ClientEquations.parametrisation`.
        counts: inner counts of rounds 1, 2, ..., as floats.
        norm: norm of the residuals; infinite where the start is out of range.
    """

    x: Array
    counts: Array
    norm: float


class MultipleShooting:
    """Residuals of the first rounds with S and every subspace unknown.

    The parameter vector, called `point`, holds the parameters of S, then those of X_1, X_2, ...: the entries of T_k,
    (features - rank, rank), in

        X_k = orth(Z_k + B_k T_k),

    where Z_k is the broadcast basis and B_k an orthonormal basis of its complement. X_0 = Z_0. Every subspace near that
    of Z_k has one T_k, which a basis V of it gives as T_k = B_k^T V (Z_k^T V)^-1. "Features" are here the directions of
    the basis in which `ClientEquations` works.

    Args:
        equations: the simulated client's equations, which give the observed messages and scalars.
    """

    def __init__(self, equations: ClientEquations) -> None:
        self._equations, self._coordinates = equations, equations.parametrisation
        self._received = equations.received
        self._bases = [np.linalg.qr(Z, mode="complete")[0][:, Z.shape[1] :] for Z in self._received.probes]
        self._norms = equations.norms

    def search(self, x: Array, steps: int) -> ShootingResult:
        """Search from S(x) and X_k = Z_k.

        After every step the inner counts are computed again, which may raise the norm; the search goes on from there,
        and returns its last point. Each step is a search of its own with one Jacobian, since a search needs one fixed
        function; `stepper` carries the damping from one to the next.

        Args:
            x: parameters of S at the start.
            steps: largest number of steps, each with one Jacobian.
        """
        point = np.concatenate([x, np.zeros((len(self._received.probes) - 1) * self._subspace_size)])
        counts, norm = self._counts_and_norm(point)
        best = norm
        steps_taken = steps_waited = 0

        def residual(values: Array) -> Array:
            return self.residual(values, counts)

        def linearised(values: Array) -> tuple[Array, Array]:
            return self.linearised(values, counts)

        stepper = GeodesicAcceleration(residual)
        while (
            GOAL < norm < np.inf and steps_taken < steps and steps_waited < (_SETTLED if norm < _NOISE else _PATIENCE)
        ):
            fit = levenberg_marquardt(linearised, point, steps=1, goal=GOAL, residual=residual, stepper=stepper)
            steps_taken += 1
            if not fit.norm < norm:
                break
            counts_there, norm_there = self._counts_and_norm(fit.point)
            if not np.isfinite(norm_there):  # with the new counts the simulation breaks down: keep the last point
                break
            point, counts, norm = fit.point, counts_there, norm_there
            best, steps_waited = (norm, 0) if norm < 0.5 * best else (best, steps_waited + 1)
        return ShootingResult(point[: len(x)], counts.astype(float), norm)

    def _counts_and_norm(self, point: Array) -> tuple[Array, float]:
        """Return the inner counts at a point and the norm of the residuals; infinite where the simulation fails."""
        try:
            counts = self.counts(point)
        except (LinAlgError, DivergenceError):
            return np.ones(len(self._received.probes) - 1), np.inf
        norm = float(np.linalg.norm(self.residual(point, counts)))
        return counts, norm if np.isfinite(norm) else np.inf

    def residual(self, point: Array, counts: Array) -> Array:
        """Return the relative residuals of the messages and of the links, round by round, then those of the scalars.

        Where the parameters are out of range, the result is one NaN.

        Args:
            point: parameters of S and of the subspaces.
            counts: inner counts of rounds 1, 2, ...
        """
        x, blocks = self._split(point)
        try:
            parts = [self._round(k, x, block, counts) for k, block in enumerate(blocks)]
            scalars = self._equations.scalar_residuals(self._coordinates.matrix(x))
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)
        return np.concatenate([*self._linked(parts, blocks, counts), scalars])

    def linearised(self, point: Array, counts: Array) -> tuple[Array, Array]:
        """Return `residual` and its derivative (equations, parameters).

        The equations of a round depend on S and on its own subspace alone, and those of the link to the next also on
        the subspace of the next, linearly.

        Args:
            point: parameters of S and of the subspaces.
            counts: inner counts of rounds 1, 2, ...
        """
        (x, blocks), size = self._split(point), self._coordinates.count
        parts, jacobians = [], []
        for k, block in enumerate(blocks):
            unknowns = DualArray.variables(np.concatenate([x, block]))
            part = self._round(k, unknowns[:size], unknowns[size:], counts)
            jacobian = np.zeros((len(part), len(point)))
            jacobian[:, :size] = part.slopes[:, :size]
            jacobian[:, self._columns(k)] = part.slopes[:, size:]
            if k + 1 < len(blocks):
                link = -_weight(counts[k]) * np.eye(self._subspace_size)
                jacobian[-len(link) :, self._columns(k + 1)] = link
            parts.append(part.value)
            jacobians.append(jacobian)
        scalars = self._equations.scalar_residuals(self._coordinates.matrix(DualArray.variables(x)))
        slopes = np.hstack([scalars.slopes, np.zeros((len(scalars), len(point) - size))])
        return np.concatenate([*self._linked(parts, blocks, counts), scalars.value]), np.vstack([*jacobians, slopes])

    def _round(self, k: int, x: Any, block: Any, counts: Array) -> Any:
        """Return the residual of message k, then the weighted T of the subspace to which round k + 1 moves X_k.

        Args:
            k: the round.
            x: parameters of S.
            block: T_k, flat; empty in round 0.
            counts: inner counts of rounds 1, 2, ...
        """
        received, S, X = self._received, self._coordinates.matrix(x), self._subspace(k, block)
        sent = product(S, X, received.betas[k], received.probes[k])
        out = [((sent - self._equations.products[k]) / self._norms[k]).reshape(-1)]
        if k + 1 < len(received.probes):
            H = inner_operator(S, X, received.betas[k + 1], received.probes[k + 1])
            end = self._coordinates_of(k + 1, iterate(H, int(counts[k])))
            out.append(_weight(counts[k]) * end.reshape(-1))
        return np.concatenate(out)

    def _linked(self, parts: Sequence[Array], blocks: Sequence[Array], counts: Array) -> list[Array]:
        """Return the results of `_round` with each link less the weighted T at which the next round begins."""
        begins = [_weight(count) * block for count, block in zip(counts, blocks[1:], strict=True)] + [np.zeros(0)]
        return [
            part - np.concatenate([np.zeros(len(part) - len(begin)), begin])
            for part, begin in zip(parts, begins, strict=True)
        ]

    @property
    def _subspace_size(self) -> int:
        """Return the number of parameters of one subspace."""
        features, rank = self._received.probes[0].shape
        return int((features - rank) * rank)

    def _columns(self, k: int) -> slice:
        """Return the positions of T_k in the parameter vector: none in round 0."""
        start = self._coordinates.count + (k - 1) * self._subspace_size
        return slice(start, start + self._subspace_size) if k else slice(0)

    def _split(self, point: Array) -> tuple[Array, list[Array]]:
        """Return the parameters of S, and T_k of each round, flat; that of round 0 is empty."""
        x, later = point[: self._coordinates.count], point[self._coordinates.count :]
        return x, [np.zeros(0), *later.reshape(-1, self._subspace_size)]

    def _subspace(self, k: int, block: Any) -> Any:
        """Return X_k from T_k; in round 0 it is the broadcast basis."""
        Z, B = self._received.probes[k], self._bases[k]
        return orth(Z + B @ block.reshape(B.shape[1], -1)) if k else Z

    def _coordinates_of(self, k: int, V: Any) -> Any:
        """Return T_k of the subspace V."""
        return self._bases[k].T @ V @ np.linalg.inv(self._received.probes[k].T @ V)

    def counts(self, point: Array) -> Array:
        """Return the inner counts of rounds 1, 2, ...: FAPS' fixed number where it has one, else by its stop rule.

        Where the parameters give no S, the counts are 1: the residual is NaN then, and the step is refused.

        Raises:
            LinAlgError: the inner iterations break down.
            DivergenceError: an iterate is not finite.
        """
        received, rounds = self._received, range(1, len(self._received.probes))
        x, blocks = self._split(point)
        S = self._coordinates.matrix(x)
        if received.steps is not None or not np.isfinite(S).all():
            return np.full(len(rounds), received.steps or 1)
        begins = [self._subspace(k - 1, blocks[k - 1]) for k in rounds]
        operators = [
            inner_operator(S, X, received.betas[k], received.probes[k]) for k, X in zip(rounds, begins, strict=True)
        ]
        return np.array([iterate_by_rule(H, self._equations.algorithm)[0] for H in operators])


def _weight(count: float) -> float:
    """Return the weight of a link of `count` inner iterations."""
    return float(_LINK_WEIGHT * min(1.0, (_QUICK / count) ** _SLOWNESS))
