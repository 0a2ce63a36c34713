"""Solve a ridge regression for a client's Gram matrix S by preconditioned conjugate gradients.

With P_k = Z_k Z_k^T, weights w_k of the products, v of the traces and a ridge `prior`, the normal equations of
`near_consensus`, and of `_duals/pooled_client` for FedPG's blocks, are, in the eigenbasis of M = sum_k w_k P_k,

    L(S) = (S M + M S) / 2 - sum_k w_k P_k S P_k + v sum_k <P_k, S> P_k + prior S = R,

    R = sum_k w_k sym[B_k Z_k^T] + v sum_k t_k P_k,    sym[A] = (A + A^T) / 2,

with B_k and t_k what the messages show of (I - P_k) S Z_k and tr(P_k S). The matrix of L would have (features^2 / 2)^2
entries, so it is never formed; to apply L costs 2 features^2 rank a round. The weights span twelve decades: the
preconditioner inverts L exactly on the few leading directions, which the rounds of large weight observe, keeps only the
diagonal of L elsewhere, and treats the trace terms exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from securefed._tensors import Array
from securefed.attacks._gram.elimination import symmetric_basis

_HEAVY, _LEADING = 1e-5, 12
"""A direction is leading where its eigenvalue of M exceeds this share of the largest; at most so many directions are
leading. The preconditioner inverts the operator exactly on them.
"""
_TOLERANCE, _LIMIT = 1e-11, 1000
"""Residual, relative to the first and in the norm of the preconditioner, at which the iterations stop, and the largest
number of iterations."""


@dataclass(frozen=True)
class ProjectedEquations:
    """The left-hand side L of the normal equations, in the eigenbasis of M = sum_k w_k P_k.

    Attributes:
        bases: Z_k in that eigenbasis, (rounds, features, rank).
        weights: w_k, (rounds,).
        eigenvalues: m_i, descending, (features,).
        eigenvectors: eigenvectors of M as columns, (features, features).
        scalar_weight: v, the weight of the traces.
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
        """Change to the eigenbasis and return the operator.

        Args:
            bases: Z_k, (rounds, features, rank).
            weights: w_k, (rounds,).
            scalar_weight: v, the weight of the traces.
            prior: the ridge, positive.
        """
        flat = _side_by_side(bases)
        # M = [w_1 Z_1 .. w_K Z_K] [Z_1 .. Z_K]^T
        values, vectors = np.linalg.eigh((flat * np.repeat(weights, bases.shape[2])) @ flat.T)
        values, vectors = values[::-1], vectors[:, ::-1]
        return cls(np.ascontiguousarray(vectors.T @ bases), weights, values, vectors, scalar_weight, prior)

    def solve(self, right: Array) -> tuple[Array, int]:
        """Return the solution S for the symmetric right-hand side R = `right`, and the number of iterations.

        Both matrices are (features, features), in the coordinates of the features.
        """
        preconditioner = _Preconditioner.of(self)
        residual = self.eigenvectors.T @ right @ self.eigenvectors
        S = np.zeros_like(residual)
        direction = preconditioner.solve(residual)
        energy = first = float(np.vdot(residual, direction))  # <r, C^-1 r>, with C the preconditioner
        count = 0
        while energy > _TOLERANCE**2 * first and count < _LIMIT:
            image = self._apply(direction)
            step = energy / float(np.vdot(direction, image))
            S += step * direction
            residual -= step * image
            preconditioned = preconditioner.solve(residual)
            energy, before = float(np.vdot(residual, preconditioned)), energy
            direction = preconditioned + energy / before * direction
            count += 1
        return self.eigenvectors @ S @ self.eigenvectors.T, count

    def _apply(self, S: Array) -> Array:
        """Return L(S), for S in the eigenbasis.

        L(S) is the symmetric part of sum_k [w_k (S Z_k - Z_k Z_k^T S Z_k) + v tr(Z_k^T S Z_k) Z_k] Z_k^T, plus prior S.
        """
        rounds, features, rank = self.bases.shape
        products = (S @ self._flat).reshape(features, rounds, rank).transpose(1, 0, 2)  # S Z_k
        inner = self.bases.mT @ products  # Z_k^T S Z_k
        traces = self.scalar_weight * np.trace(inner, axis1=1, axis2=2)
        weighted = self.weights[:, None, None] * (products - self.bases @ inner) + traces[:, None, None] * self.bases
        out = _side_by_side(weighted) @ self._flat.T
        return np.asarray(self.prior * S + (out + out.T) / 2)

    @cached_property
    def _flat(self) -> Array:
        """Return [Z_1 .. Z_K], (features, K rank)."""
        return _side_by_side(self.bases)


@dataclass(frozen=True)
class _Preconditioner:
    """An approximation of L that is cheap to invert.

    Indices a, b are leading directions, j any other one. It keeps the couplings of L among all entries S_ab, and for
    each j those among all S_aj. Of the rest it keeps the diagonal. The traces add the term v sum_k <P_k, S> P_k of rank
    K, the number of rounds, which the Woodbury identity inverts.

    Attributes:
        diagonal: diagonal of L without the traces, for every entry of S, (features, features).
        cross: for each j the inverse on the S_aj, (others, leading, leading).
        inner: inverse on the S_ab, in coordinates of `basis`.
        basis: orthonormal basis E_q of the symmetric (leading, leading) matrices, (basis, leading, leading).
        scalars: sqrt(v) P_k after inversion without the traces, one row a round, (rounds, features^2).
        small: Cholesky factor of Woodbury's small matrix I + v <P_k, inverted P_l>, (rounds, rounds).
    """

    diagonal: Array
    cross: Array
    inner: Array
    basis: Array
    scalars: Array
    small: tuple[Array, bool]

    @classmethod
    def of(cls, system: ProjectedEquations) -> _Preconditioner:
        """Return the preconditioner of L."""
        w, m, prior = system.weights, system.eigenvalues, system.prior
        rounds, features, _ = system.bases.shape
        P = system.bases @ system.bases.mT  # (rounds, features, features)
        on_diagonal = np.ascontiguousarray(np.diagonal(P, axis1=1, axis2=2))
        # <X, L(X)> for X = (e_i e_j^T + e_j e_i^T) / sqrt(2), i != j:
        # prior + (m_i + m_j) / 2 - sum_k w_k ((P_k)_ii (P_k)_jj + (P_k)_ij^2). For i = j one of the two equal products
        # is too many, and the result may fall below 0, hence the floor at `prior`: a preconditioner may be approximate.
        squares = (w @ (P**2).reshape(rounds, -1)).reshape(features, features)
        diagonal = prior + (m[:, None] + m) / 2 - (on_diagonal.T * w) @ on_diagonal - squares
        leading = min(int(np.sum(m > _HEAVY * m[0])), _LEADING, features)
        basis = symmetric_basis(leading)
        lead, mixed = P[:, :leading, :leading], P[:, :leading, leading:]
        # L(X)_bj for the X whose only entries are X_aj = X_ja = x_a: sum_a x_a times
        # (prior + (m_a + m_j) / 2) delta_ab - sum_k w_k ((P_k)_jj (P_k)_ab + (P_k)_aj (P_k)_bj)
        cross = -np.einsum("kj,kab->jab", w[:, None] * on_diagonal[:, leading:], lead, optimize=True)
        cross -= np.einsum("kaj,kbj->jab", w[:, None, None] * mixed, mixed, optimize=True)
        cross += prior * np.eye(leading) + np.diag(m[:leading]) / 2
        cross[:, np.arange(leading), np.arange(leading)] += m[leading:, None] / 2
        # <E_q, L(E_r)> = prior delta_qr + <E_q M, E_r> - sum_k w_k tr(E_q P_k E_r P_k), all on leading directions
        images = basis @ lead[:, None]  # E_q P_k, (rounds, basis, leading, leading)
        inner = prior * np.eye(len(basis)) + np.tensordot(basis * m[:leading], basis, ((1, 2), (1, 2)))
        inner -= np.tensordot(w[:, None, None, None] * images, images, ((0, 2, 3), (0, 3, 2)))
        # without the traces, to apply the inverse to the P_k that the Woodbury identity needs
        bare = cls(
            np.maximum(diagonal, prior),
            np.linalg.inv(cross),
            np.linalg.inv(inner),
            basis,
            np.zeros((0, features**2)),  # no traces
            (np.zeros((0, 0)), True),
        )
        P *= np.sqrt(system.scalar_weight)  # in place: this is the largest array here
        scalars = bare._local(P).reshape(rounds, -1)
        small = np.eye(rounds) + scalars @ P.reshape(rounds, -1).T
        return cls(bare.diagonal, bare.cross, bare.inner, basis, scalars, cho_factor((small + small.T) / 2))

    def solve(self, right: Array) -> Array:
        """Apply the inverse to one right-hand side, (features, features).

        With B the part without traces and p_k = sqrt(v) P_k as vectors, the columns of p, Woodbury's identity is
        (B + p p^T)^-1 r = B^-1 r - B^-1 p (I + p^T B^-1 p)^-1 p^T B^-1 r.
        """
        weights = cho_solve(self.small, self.scalars @ right.reshape(-1))
        return np.asarray(self._local(right) - (weights @ self.scalars).reshape(right.shape))

    def _local(self, right: Array) -> Array:
        """Apply B^-1, the inverse without the traces, to one matrix or a stack of them, (..., features, features)."""
        leading = self.basis.shape[1]
        out = right / self.diagonal
        # for each j a small system for the entries S_ja, S_aj by symmetry; then the leading block in its coordinates
        out[..., leading:, :leading] = (self.cross @ right[..., leading:, :leading, None])[..., 0]
        out[..., :leading, leading:] = out[..., leading:, :leading].swapaxes(-1, -2)
        coordinates = np.tensordot(right[..., :leading, :leading], self.basis, ((-2, -1), (1, 2)))
        out[..., :leading, :leading] = np.tensordot(coordinates @ self.inner, self.basis, 1)
        return np.asarray(out)


def _side_by_side(stack: Array) -> Array:
    """Join a stack M_k, (K, features, columns), into the matrix [M_1 .. M_K]."""
    return np.ascontiguousarray(stack.transpose(1, 0, 2).reshape(stack.shape[1], -1))
