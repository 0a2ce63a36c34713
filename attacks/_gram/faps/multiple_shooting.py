"""Find a start for the fit of FAPS' client by multiple shooting: Gram matrix S and inner counts from messages Y_k.

A simulated client composes all its rounds, and where the inner iterations converge slowly a small change of S turns
the subspaces by much: few starts of a fit of S alone succeed. Here S and every subspace X_k are unknown. Each message
depends on S and one X_k alone; that the inner iterations of round k lead from X_{k-1} to X_k is one more equation,
which need not hold before the end. Where the inner counts follow a rule, it is applied again at every step, with the S
and the X_{k-1} of that step.

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
"""Residual at which the search stops and the fit of all rounds goes on."""
_LINK_WEIGHT = 0.1
"""Weight of the equations that link subspaces. Larger weights make the problem the single-shooting one again (at 1 few
starts succeed), smaller ones leave flat valleys (at .01 the search crawls).
"""
_QUICK, _SLOWNESS = 8.0, 3.0
"""More inner steps than the first converge slowly, and their end depends on every digit of S: such a link weighs less,
by the second as power of the count.
"""
_PATIENCE, _SETTLED, _NOISE = 20, 4, 1e-3
"""Steps within which the norm must halve; fewer below the last residual, which noise of the messages may have left."""


@dataclass(frozen=True)
class ShootingResult:
    """The end of a search.

    Attributes:
        x: parameters of S.
        counts: inner counts of rounds 1, 2, ...
        norm: of the residual.
        steps: that it took.
    """

    x: Array
    counts: Array
    norm: float
    steps: int


class MultipleShooting:
    """The equations of the first rounds with every subspace unknown, in units of lambda_1(S).

    The parameters are those of S, then those of X_1, X_2, ...

    Args:
        equations: of the simulated client, which give the messages and what else is known of S.
    """

    def __init__(self, equations: ClientEquations) -> None:
        self._equations, self._coordinates = equations, equations.parametrisation
        self._received = equations.received(len(equations.probes))
        probes = equations.probes
        self._bases = [np.linalg.qr(Z, mode="complete")[0][:, Z.shape[1] :] for Z in probes]
        self._norms = equations.norms

    def search(self, x: Array, steps: int) -> ShootingResult:
        """Search from S(x) and X_k = Z_k; the rule gives the inner counts anew at every step."""
        point = np.concatenate([x, np.zeros((len(self._received.probes) - 1) * self._moves)])
        counts = self.counts(point)
        norm = best = float(np.linalg.norm(self.residual(point, counts)))
        taken = waited = 0

        def residual(values: Array) -> Array:
            return self.residual(values, counts)

        def linearised(values: Array) -> tuple[Array, Array]:
            return self.linearised(values, counts)

        stepper = GeodesicAcceleration(residual)
        while norm > GOAL and taken < steps and waited < (_SETTLED if norm < _NOISE else _PATIENCE):
            fit = levenberg_marquardt(linearised, point, steps=1, goal=GOAL, residual=residual, stepper=stepper)
            taken += 1
            if not fit.norm < norm:
                break
            point = fit.point
            counts = self.counts(point)
            norm = float(np.linalg.norm(self.residual(point, counts)))
            best, waited = (norm, 0) if norm < 0.5 * best else (best, waited + 1)
        return ShootingResult(point[: len(x)], counts.astype(float), norm, taken)

    def residual(self, point: Array, counts: Array) -> Array:
        """Return the relative residuals of the messages, of what else is known of S, and of the links."""
        S, subspaces = self._gram_and_subspaces(point)
        if S is None:
            return np.full(1, np.nan)
        try:
            masks = [-off(X, S @ X) for X in subspaces]
            gaps = []
            for k in range(1, len(subspaces)):
                V, H = subspaces[k - 1], self._operator(S, subspaces, masks, k)
                for _ in range(int(counts[k - 1])):
                    V = orth(H.times(V))
                gaps.append(_weight(counts[k - 1]) * (self._coordinates_of(k, V) - self._block(point, k)))
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)
        return self._stack(
            self._relative_residuals(subspaces, masks), self._of_gram(point[: self._coordinates.count])[0], gaps
        )

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
                moved = InnerOperatorDerivative(H, dXs[k - 1], d_masks[k - 1], directions)
                V, dV = subspaces[k - 1], dXs[k - 1]
                for _ in range(int(counts[k - 1])):
                    V, dV = horizontal(H.times(V), moved.times(V, dV))
                weight = _weight(counts[k - 1])
                gaps.append(weight * (self._coordinates_of(k, V) - self._block(point, k)))
                link = self._jacobian_rows(self._coordinate_tangents(k, V, dV), k - 1)
                link[:, self._columns(k)] -= np.eye(self._moves)
                links.append(weight * link)
        more, slopes = self._of_gram(point[:size])
        wide = np.zeros((len(slopes), len(point)))
        wide[:, :size] = slopes
        return self._stack(self._relative_residuals(subspaces, masks), more, gaps), np.vstack([*rows, wide, *links])

    def _of_gram(self, x: Array) -> tuple[Array, Array]:
        return self._equations.scalar_residuals_and_slopes(x, len(self._received.probes))

    @property
    def _moves(self) -> int:
        """Return the number of parameters of one subspace."""
        features, rank = self._received.probes[0].shape
        return int((features - rank) * rank)

    def _columns(self, k: int) -> slice:
        start = self._coordinates.count + (k - 1) * self._moves
        return slice(start, start + self._moves)

    def _block(self, point: Array, k: int) -> Array:
        """Return T_k, with X_k = orth(Z_k + B_k T_k), B_k an orthonormal basis of the complement of Z_k."""
        return point[self._columns(k)].reshape(self._bases[k].shape[1], -1)

    def _gram_and_subspaces(self, point: Array) -> tuple[Array | None, list[Array]]:
        """Return S and the subspaces; `None` and nothing where the parameters are out of range."""
        probes = self._received.probes
        try:
            S = self._coordinates.matrix(point[: self._coordinates.count])
            rest = [orth(Z + self._bases[k] @ self._block(point, k)) for k, Z in enumerate(probes) if k]
        except (LinAlgError, DivergenceError):
            return None, []
        return (S if np.isfinite(S).all() else None), [probes[0], *rest]

    def _subspace_tangents(self, point: Array, k: int) -> Array:
        """Return dX_k by the parameters of S, which do not move it, and by its own; X_0 has none."""
        Z, size = self._received.probes[k], self._coordinates.count
        if not k:
            return np.zeros((len(Z), size, Z.shape[1]))
        B, rank = self._bases[k], Z.shape[1]
        d = np.zeros((len(Z), size + self._moves, rank))
        own = d[:, size:].reshape(len(Z), B.shape[1], rank, rank)
        own[:, :, np.arange(rank), np.arange(rank)] = B[:, :, None]
        return horizontal(Z + B @ self._block(point, k), d)[1]

    def _jacobian_rows(self, tangents: Array, k: int) -> Array:
        """Return tangents (rows, parameters of S and X_k, columns) as rows of the whole Jacobian."""
        size = self._coordinates.count
        flat = tangents.transpose(0, 2, 1).reshape(-1, tangents.shape[1])
        out = np.zeros((len(flat), size + (len(self._received.probes) - 1) * self._moves))
        out[:, :size] = flat[:, :size]
        if k:
            out[:, self._columns(k)] = flat[:, size:]
        return out

    def _coordinates_of(self, k: int, V: Array) -> Array:
        """Return T_k of the subspace V."""
        return np.asarray(self._bases[k].T @ V @ np.linalg.inv(self._received.probes[k].T @ V))

    def _coordinate_tangents(self, k: int, V: Array, dV: Array) -> Array:
        """Return dT_k."""
        inverse = np.linalg.inv(self._received.probes[k].T @ V)
        T = self._bases[k].T @ V @ inverse
        return right(left(self._bases[k].T, dV) - left(T, left(self._received.probes[k].T, dV)), inverse)

    def _operator(self, S: Array, subspaces: Sequence[Array], masks: Sequence[Array], k: int) -> InnerOperator:
        """Return H of the inner iterations that lead to X_k."""
        return InnerOperator(S, subspaces[k - 1], masks[k - 1], self._received.betas[k], self._received.probes[k])

    def _relative_residuals(self, subspaces: Sequence[Array], masks: Sequence[Array]) -> list[Array]:
        received = self._received
        sent = [product(*all_) for all_ in zip(subspaces, masks, received.betas, received.probes, strict=True)]
        return [(Y - seen) / norm for Y, seen, norm in zip(sent, self._equations.products, self._norms, strict=True)]

    def _stack(self, residuals: Sequence[Array], more: Array, gaps: Sequence[Array]) -> Array:
        flat = [part.reshape(-1) for part in residuals] + [more] + [gap.reshape(-1) for gap in gaps]
        return np.concatenate(flat)

    def counts(self, point: Array) -> Array:
        """Return the inner counts of rounds 1, 2, ... by the rule, with this S and these subspaces."""
        S, subspaces = self._gram_and_subspaces(point)
        rounds = range(1, len(self._received.probes))
        if self._received.steps is not None or S is None:
            return np.full(len(rounds), self._received.steps or 1)
        masks = [-off(X, S @ X) for X in subspaces]
        return np.array(
            [iterate_by_rule(self._operator(S, subspaces, masks, k), self._equations.algorithm)[0] for k in rounds]
        )


def _weight(count: float) -> float:
    """Return the weight of a link of so many inner steps."""
    return float(_LINK_WEIGHT * min(1.0, (_QUICK / count) ** _SLOWNESS))
