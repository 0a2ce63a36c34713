"""Find a start for the fit of a simulated FAPS client by multiple shooting: S and inner counts from messages Y_k.

FAPS is federated PCA whose clients mask what they send by a function W of their own data: nothing about it is random.
In round k the server sends a basis Z_k. A client with Gram matrix S and a factor beta_k, which it derives from the
largest eigenvalue lambda_1(S) (`client_equations`), moves its subspace from X = X_{k-1} to X_k, orthonormal (features,
rank), by c_k iterations V <- orth(H V) (c_k is the inner count),

    H = S + X W^T + W X^T + beta_k Z_k Z_k^T,   W = -(I - X X^T) S X,

and sends Y_k = beta_k X X^T Z_k - X W^T Z_k - W X^T Z_k with X = X_k and W at X_k, and the number tr(Z_k^T S Z_k). The
first message also shows lambda_1(S), since Z_0^T Y_0 = beta_0 I (`client_equations`). In the code `probes` are the Z_k
and `products` the Y_k. A fit of S alone simulates all rounds one after the other.
Where the inner iterations converge slowly, a small change of S turns later subspaces by much, so that few starts
succeed. Here S and every X_k are unknown. The residuals are

    Y(S, X_k) - Y_k for each message, over the norm of Y_k,
    (X_{k-1} after the inner iterations of round k) - X_k for each link between rounds, in the coordinates T_k below,
    tr(Z_k^T S Z_k) and lambda_1(S) less the numbers that the messages show,

so that links (the equations that tie X_k to X_{k-1}) need not hold before the end of the search. Where the inner counts
follow FAPS' stop rule, the rule is applied again after every step, to the S and X_{k-1} of that step.

off(V, M) is (I - V V^T) M, and orth(N) the Q of N = Q R. Derivatives dV of a (features, rank) matrix by all unknowns
are one array (features, unknowns, rank), its tangents; left(M, dV) is M dV, right(dV, R) is dV R, and horizontal(N, dN)
returns orth(N) with its tangents.

Source: Bock and Plitt, A multiple shooting algorithm for direct solution of optimal control problems (1984).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.linalg import LinAlgError

from securefed._tensors import Array
from securefed.algorithms._pca.operators import off, orth
from securefed.attacks._fitting.levenberg_marquardt import GeodesicAcceleration, levenberg_marquardt
from securefed.attacks._gram.faps.client_equations import ClientEquations
from securefed.attacks._gram.faps.simulated_client import (
    InnerOperator,
    InnerOperatorDerivative,
    iterate_by_rule,
    mask,
    product,
    product_tangents,
)
from securefed.attacks._gram.tangents import horizontal, left, right
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
        """Return the relative residuals of the messages, of the scalars that depend on S alone, and of the links.

        Args:
            point: parameters of S and of all subspaces.
            counts: inner counts of rounds 1, 2, ..., whole numbers.

        Returns:
            All residuals, (equations,); one NaN where the point is out of range.
        """
        S, subspaces = self._gram_and_subspaces(point)
        if S is None:
            return np.full(1, np.nan)
        try:
            masks = [-off(X, S @ X) for X in subspaces]  # W = -(I - X X^T) S X
            gaps = []  # weighted residuals of the links
            for k in range(1, len(subspaces)):
                V, H = subspaces[k - 1], self._operator(S, subspaces, masks, k)
                for _ in range(int(counts[k - 1])):
                    V = orth(H.times(V))  # ends where the link says that X_k is
                gaps.append(_weight(counts[k - 1]) * (self._coordinates_of(k, V) - self._block(point, k)))
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)
        scalars, _ = self._equations.scalar_residuals_and_slopes(point[: self._coordinates.count])
        return self._stack(self._relative_residuals(subspaces, masks), scalars, gaps)

    def linearised(self, point: Array, counts: Array) -> tuple[Array, Array]:
        """Return `residual` and its derivative (equations, parameters)."""
        size, rounds = self._coordinates.count, len(self._received.probes)
        S, subspaces = self._gram_and_subspaces(point)
        assert S is not None
        directions = self._coordinates.at(point[:size])
        dXs = [self._subspace_tangents(point, k) for k in range(rounds)]
        pairs = [mask(S, X, dX, directions) for X, dX in zip(subspaces, dXs, strict=True)]
        masks, d_masks = [W for W, _ in pairs], [dW for _, dW in pairs]
        rows, gaps, links = [], [], []
        for k, (X, dX, W, dW) in enumerate(zip(subspaces, dXs, masks, d_masks, strict=True)):
            dY = product_tangents(X, dX, W, dW, self._received.betas[k], self._received.probes[k])
            rows.append(self._jacobian_rows(dY / self._norms[k], k))
            if k:
                H = self._operator(S, subspaces, masks, k)
                operator_derivative = InnerOperatorDerivative(H, dXs[k - 1], d_masks[k - 1], directions)
                V, dV = subspaces[k - 1], dXs[k - 1]
                for _ in range(int(counts[k - 1])):
                    V, dV = horizontal(H.times(V), operator_derivative.times(V, dV))
                weight = _weight(counts[k - 1])
                gaps.append(weight * (self._coordinates_of(k, V) - self._block(point, k)))
                link = self._jacobian_rows(self._coordinate_tangents(k, V, dV), k - 1)
                link[:, self._columns(k)] -= np.eye(self._subspace_size)
                links.append(weight * link)
        scalars, slopes = self._equations.scalar_residuals_and_slopes(point[:size])
        scalar_rows = np.zeros((len(slopes), len(point)))
        scalar_rows[:, :size] = slopes
        return self._stack(self._relative_residuals(subspaces, masks), scalars, gaps), np.vstack(
            [*rows, scalar_rows, *links]
        )

    @property
    def _subspace_size(self) -> int:
        """Return the number of parameters of one subspace."""
        features, rank = self._received.probes[0].shape
        return int((features - rank) * rank)

    def _columns(self, k: int) -> slice:
        """Return the positions of T_k in the parameter vector."""
        start = self._coordinates.count + (k - 1) * self._subspace_size
        return slice(start, start + self._subspace_size)

    def _block(self, point: Array, k: int) -> Array:
        """Return T_k, (features - rank, rank)."""
        return point[self._columns(k)].reshape(self._bases[k].shape[1], -1)

    def _gram_and_subspaces(self, point: Array) -> tuple[Array | None, list[Array]]:
        """Return S and the subspaces; `None` and nothing where the parameters are out of range."""
        probes = self._received.probes
        try:
            S = self._coordinates.matrix(point[: self._coordinates.count])
            later_subspaces = [orth(Z + self._bases[k] @ self._block(point, k)) for k, Z in enumerate(probes) if k]
        except (LinAlgError, DivergenceError):
            return None, []
        return (S if np.isfinite(S).all() else None), [probes[0], *later_subspaces]

    def _subspace_tangents(self, point: Array, k: int) -> Array:
        """Return the derivatives of X_k by the parameters of S, which are zero, and by those of T_k.

        The result is (features, parameters of S and of T_k, rank); X_0 = Z_0 has no T_k.
        """
        Z, size = self._received.probes[k], self._coordinates.count
        if not k:
            return np.zeros((len(Z), size, Z.shape[1]))
        B, rank = self._bases[k], Z.shape[1]
        d = np.zeros((len(Z), size + self._subspace_size, rank))
        # a view of d: entry (a, j) of T_k adds column a of B to column j of Z + B T_k, and changes no other column
        diagonal_view = d[:, size:].reshape(len(Z), B.shape[1], rank, rank)
        diagonal_view[:, :, np.arange(rank), np.arange(rank)] = B[:, :, None]
        return horizontal(Z + B @ self._block(point, k), d)[1]

    def _jacobian_rows(self, tangents: Array, k: int) -> Array:
        """Return tangents (rows, parameters of S and X_k, columns) as rows of the whole Jacobian.

        One row for each entry (row, column), with zeros for the parameters of the other subspaces.
        """
        size = self._coordinates.count
        flat = tangents.transpose(0, 2, 1).reshape(-1, tangents.shape[1])
        out = np.zeros((len(flat), size + (len(self._received.probes) - 1) * self._subspace_size))
        out[:, :size] = flat[:, :size]
        if k:
            out[:, self._columns(k)] = flat[:, size:]
        return out

    def _coordinates_of(self, k: int, V: Array) -> Array:
        """Return T_k of the subspace V."""
        return np.asarray(self._bases[k].T @ V @ np.linalg.inv(self._received.probes[k].T @ V))

    def _coordinate_tangents(self, k: int, V: Array, dV: Array) -> Array:
        """Return the tangents dT_k of the subspace V with tangents dV: (B^T dV - T Z^T dV) (Z^T V)^-1."""
        inverse = np.linalg.inv(self._received.probes[k].T @ V)
        T = self._bases[k].T @ V @ inverse
        return right(left(self._bases[k].T, dV) - left(T, left(self._received.probes[k].T, dV)), inverse)

    def _operator(self, S: Array, subspaces: Sequence[Array], masks: Sequence[Array], k: int) -> InnerOperator:
        """Return H of the inner iterations that lead to X_k."""
        return InnerOperator(S, subspaces[k - 1], masks[k - 1], self._received.betas[k], self._received.probes[k])

    def _relative_residuals(self, subspaces: Sequence[Array], masks: Sequence[Array]) -> list[Array]:
        """Return the simulated less the observed messages, each over the norm of the latter."""
        received = self._received
        each_round = zip(subspaces, masks, received.betas, received.probes, strict=True)
        sent = [product(X, W, beta, Z) for X, W, beta, Z in each_round]
        return [
            (Y - observed) / norm for Y, observed, norm in zip(sent, self._equations.products, self._norms, strict=True)
        ]

    def _stack(self, residuals: Sequence[Array], scalars: Array, gaps: Sequence[Array]) -> Array:
        """Join the residuals of messages, scalars and links into one vector."""
        flat = [part.reshape(-1) for part in residuals] + [scalars] + [gap.reshape(-1) for gap in gaps]
        return np.concatenate(flat)

    def counts(self, point: Array) -> Array:
        """Return the inner counts of rounds 1, 2, ...: FAPS' fixed number where it has one, else by its stop rule.

        Where the parameters give no S, the counts are 1: the residual is NaN then, and the step is refused.

        Raises:
            LinAlgError: the inner iterations break down.
            DivergenceError: an iterate is not finite.
        """
        S, subspaces = self._gram_and_subspaces(point)
        rounds = range(1, len(self._received.probes))
        if self._received.steps is not None or S is None:
            return np.full(len(rounds), self._received.steps or 1)
        masks = [-off(X, S @ X) for X in subspaces]  # W = -(I - X X^T) S X
        return np.array(
            [iterate_by_rule(self._operator(S, subspaces, masks, k), self._equations.algorithm)[0] for k in rounds]
        )


def _weight(count: float) -> float:
    """Return the weight of a link of `count` inner iterations."""
    return float(_LINK_WEIGHT * min(1.0, (_QUICK / count) ** _SLOWNESS))
