"""Solve sum_k w_k sym[(I - P_k) S P_k] + v sum_k <P_k, S> P_k + prior S = R for symmetric S by conjugate gradients.

These are the normal equations of observing (I - P_k) S Z_k and tr(P_k S), P_k = Z_k Z_k^T. Formed, they would hold
(features^2 / 2)^2 numbers; applied, they cost 2 features^2 rank a round. The weights span twelve decades, so a good
preconditioner is needed: in the eigenbasis of sum_k w_k P_k the operator is solved exactly on the few leading
directions, which the heavy rounds observe, approximately (by its diagonal) elsewhere, and the scalars exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from securefed._tensors import Array
from securefed.attacks._gram.elimination import symmetric_basis

_HEAVY, _LEADING = 1e-5, 12
"""Directions of more than this share of the largest weight are leading; at most so many are solved exactly."""
_TOLERANCE, _LIMIT = 1e-11, 1000
"""Relative residual at which the iterations stop, and most iterations."""


@dataclass(frozen=True)
class ProjectedEquations:
    """The operator, in the eigenbasis of sum_k w_k P_k.

    Attributes:
        bases: Z_k in that basis, (rounds, features, rank).
        weights: w_k, (rounds,).
        eigenvalues: of sum_k w_k P_k, descending.
        eigenvectors: of it, as columns.
        scalar_weight: v.
        prior: the ridge, positive.
    """

    bases: Array
    weights: Array
    eigenvalues: Array
    eigenvectors: Array
    scalar_weight: float
    prior: float

    @classmethod
    def of(cls, bases: Array, weights: Array, scalar_weight: float, prior: float) -> ProjectedEquations:
        """Return the operator of Z_k, (rounds, features, rank)."""
        flat = _side_by_side(bases)
        values, vectors = np.linalg.eigh((flat * np.repeat(weights, bases.shape[2])) @ flat.T)
        values, vectors = values[::-1], vectors[:, ::-1]
        return cls(np.ascontiguousarray(vectors.T @ bases), weights, values, vectors, scalar_weight, prior)

    def solve(self, right: Array) -> tuple[Array, int]:
        """Return S for the symmetric `right`, and the number of iterations."""
        condition = _Preconditioner.of(self)
        residual = self.eigenvectors.T @ right @ self.eigenvectors
        S = np.zeros_like(residual)
        direction = condition.solve(residual)
        energy = first = float(np.vdot(residual, direction))
        count = 0
        while energy > _TOLERANCE**2 * first and count < _LIMIT:
            image = self._apply(direction)
            step = energy / float(np.vdot(direction, image))
            S += step * direction
            residual -= step * image
            better = condition.solve(residual)
            energy, before = float(np.vdot(residual, better)), energy
            direction = better + energy / before * direction
            count += 1
        return self.eigenvectors @ S @ self.eigenvectors.T, count

    def _apply(self, S: Array) -> Array:
        rounds, features, rank = self.bases.shape
        seen = (S @ self._flat).reshape(features, rounds, rank).transpose(1, 0, 2)  # S Z_k
        inner = self.bases.mT @ seen
        traces = self.scalar_weight * np.trace(inner, axis1=1, axis2=2)
        pulled = self.weights[:, None, None] * (seen - self.bases @ inner) + traces[:, None, None] * self.bases
        out = _side_by_side(pulled) @ self._flat.T
        return np.asarray(self.prior * S + (out + out.T) / 2)

    @cached_property
    def _flat(self) -> Array:
        return _side_by_side(self.bases)


@dataclass(frozen=True)
class _Preconditioner:
    """The operator with less coupling, and its solution.

    It is exact on S_ab, S_aj and S_ja for leading a, b and a given other j, and diagonal elsewhere; then the scalars, a
    term of low rank, by the Woodbury identity.

    Attributes:
        diagonal: (features, features).
        cross: inverses on S_aj by j, (others, leading, leading).
        inner: inverse on S_ab, in `basis`.
        basis: of the symmetric (leading, leading) matrices.
        scalars: each P_k sqrt(v) solved without the scalars, flat, (rounds, features^2).
        small: factor of the capacitance matrix I + v <P_k, solved P_l>.
    """

    diagonal: Array
    cross: Array
    inner: Array
    basis: Array
    scalars: Array
    small: tuple[Array, bool]

    @classmethod
    def of(cls, system: ProjectedEquations) -> _Preconditioner:
        """Return the preconditioner of an operator."""
        w, m, prior = system.weights, system.eigenvalues, system.prior
        rounds, features, _ = system.bases.shape
        P = system.bases @ system.bases.mT
        on_diagonal = np.ascontiguousarray(np.diagonal(P, axis1=1, axis2=2))
        # <X, sym(M X)> and <X, P X P> for X = (e_i e_j^T + e_j e_i^T) / sqrt(2)
        squares = (w @ (P**2).reshape(rounds, -1)).reshape(features, features)
        diagonal = prior + (m[:, None] + m) / 2 - (on_diagonal.T * w) @ on_diagonal - squares
        leading = min(int(np.sum(m > _HEAVY * m[0])), _LEADING, features)
        basis = symmetric_basis(leading)
        lead, mixed = P[:, :leading, :leading], P[:, :leading, leading:]
        cross = -np.einsum("kj,kab->jab", w[:, None] * on_diagonal[:, leading:], lead, optimize=True)
        cross -= np.einsum("kaj,kbj->jab", w[:, None, None] * mixed, mixed, optimize=True)
        cross += prior * np.eye(leading) + np.diag(m[:leading]) / 2
        cross[:, np.arange(leading), np.arange(leading)] += m[leading:, None] / 2
        seen = basis @ lead[:, None]  # (rounds, basis, leading, leading)
        inner = prior * np.eye(len(basis)) + np.tensordot(basis * m[:leading], basis, ((1, 2), (1, 2)))
        inner -= np.tensordot(w[:, None, None, None] * seen, seen, ((0, 2, 3), (0, 3, 2)))
        bare = cls(
            np.maximum(diagonal, prior), np.linalg.inv(cross), np.linalg.inv(inner), basis, P, (np.zeros(0), True)
        )
        P *= np.sqrt(system.scalar_weight)
        scalars = bare._local(P).reshape(rounds, -1)
        small = np.eye(rounds) + scalars @ P.reshape(rounds, -1).T
        return cls(bare.diagonal, bare.cross, bare.inner, basis, scalars, cho_factor((small + small.T) / 2))

    def solve(self, right: Array) -> Array:
        """Solve for one right-hand side."""
        weights = cho_solve(self.small, self.scalars @ right.reshape(-1))
        return np.asarray(self._local(right) - (weights @ self.scalars).reshape(right.shape))

    def _local(self, right: Array) -> Array:
        """Solve without the scalars, for one matrix or a stack of them."""
        leading = self.basis.shape[1]
        out = right / self.diagonal
        out[..., leading:, :leading] = (self.cross @ right[..., leading:, :leading, None])[..., 0]
        out[..., :leading, leading:] = out[..., leading:, :leading].swapaxes(-1, -2)
        coordinates = np.tensordot(right[..., :leading, :leading], self.basis, ((-2, -1), (1, 2)))
        out[..., :leading, :leading] = np.tensordot(coordinates @ self.inner, self.basis, 1)
        return np.asarray(out)


def _side_by_side(stack: Array) -> Array:
    """Return [M_1 .. M_K] of (K, features, columns)."""
    return np.ascontiguousarray(stack.transpose(1, 0, 2).reshape(stack.shape[1], -1))
