"""Solve Y_k = S Z_k + noise of known size for the positive semidefinite S of least penalty that explains the rounds.

Maximises  -sum_k ||Y_k - S Z_k||^2 / 2 e_k^2 - sum_k (t_k - tr(Z_k^T S Z_k))^2 / 2 f_k^2 - tr(M S)  over S >= 0: a
Gaussian likelihood, and a prior that favours few and small eigenvalues, as data have. Where noise hides everything
the solution is 0; as the noise vanishes it is the positive semidefinite completion of least trace, Nystrom's, which
`linear.solve` computes from exact messages.

The likelihood is diagonal in the eigenbasis of H = sum_k Z_k Z_k^T / e_k^2 except for the scalars t_k, a term of low
rank; the constraint is a cone. So ADMM takes the two in turn, in coordinates in which each direction's precision is
one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from securefed._tensors import Array
from securefed.attacks._gram.linear import nearest_psd

_EDGE = 0.5
"""Penalty in units of the largest eigenvalue that noise alone would produce; at this size an eigenvalue of S begins to
stand out from the noise. Larger values lose more of S, smaller ones let noise in.
"""
_METRIC = 1e-6
"""Directions of precision below this share of the best are scaled as if they had it."""
_FLOORS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
"""The penalty is the same in all directions except those of precision above this share of the best. Precisions that
span decades need less of it in the directions of low precision; the residual decides.
"""
_SCALARS, _ENTRIES = 60, 2**23
"""Most rounds whose scalars are used, and numbers that their projectors may hold."""


@dataclass(frozen=True)
class NoisyProducts:
    """Observed products and traces of K rounds, with the positive standard deviations of their errors.

    Attributes:
        bases: Z_k, (K, features, rank).
        products: Y_k ~ S Z_k, (K, features, rank).
        errors: standard deviations of the products' entries, (K,).
        traces: t_k ~ tr(Z_k^T S Z_k), (K,).
        trace_errors: standard deviations of the traces, (K,).
    """

    bases: Array
    products: Array
    errors: Array
    traces: Array
    trace_errors: Array

    def mean_square_residual(self, gram: Array) -> float:
        """Return the mean square of the residuals Y - S Z in units of their errors, about 1 for the true S."""
        return float(np.mean(((self.products - gram @ self.bases) / self.errors[:, None, None]) ** 2))

    @property
    def excused(self) -> float:
        """Return a `mean_square_residual` that noise alone seldom exceeds."""
        return float(1 + 2 * np.sqrt(2 / self.products.size))


@dataclass(frozen=True)
class ShrinkageEstimate:
    """S, positive semidefinite, and the multiplier of that constraint, to continue from.

    Attributes:
        gram: S.
        dual: the multiplier.
    """

    gram: Array
    dual: Array


def shrunk(
    seen: NoisyProducts, rows: int = 0, *, start: ShrinkageEstimate | None = None, steps: int = 30, relax: bool = True
) -> ShrinkageEstimate:
    """Solve for S of rank at most `rows` (0: any).

    Args:
        seen: the observed rounds.
        rows: bound on the rank of S.
        start: an earlier solution of similar rounds, to continue from.
        steps: number of ADMM iterations at each penalty.
        relax: lower the penalty until the residual is no more than the noise; else only the first penalty is used.
    """
    likelihood = ProductLikelihood.of(seen)
    point = dual = np.zeros_like(likelihood.right)
    if start is not None:
        point, dual = likelihood.scaled(start.gram), likelihood.scaled_dual(start.dual)
    best, least = ShrinkageEstimate(np.zeros_like(point), np.zeros_like(point)), np.inf
    for penalty in likelihood.penalties():
        for _ in range(steps):
            explained = likelihood.step(point - dual)
            point = nearest_psd(explained + dual - penalty, rows)
            dual = dual + explained - point
        found = ShrinkageEstimate(likelihood.gram(point), likelihood.dual(dual))
        square = seen.mean_square_residual(found.gram)
        if square < least or not relax:
            best, least = found, square
        if square <= seen.excused or not relax:
            break
    return best


@dataclass(frozen=True)
class ProductLikelihood:
    """The quadratic form of the likelihood, in the coordinates T^-1 U^T S U T^-1.

    Attributes:
        vectors: U, eigenvectors of H.
        precisions: eigenvalues of H, ascending.
        scales: the diagonal of T.
        right: the linear term.
        bases: T U^T Z_k of the rounds whose scalars are used.
        traces: t_k of these rounds.
        variances: f_k^2 of these rounds.
    """

    vectors: Array
    precisions: Array
    scales: Array
    right: Array
    bases: Array
    traces: Array
    variances: Array

    @classmethod
    def of(cls, seen: NoisyProducts) -> ProductLikelihood:
        """Return the likelihood of these rounds."""
        weighted = seen.bases / seen.errors[:, None, None] ** 2
        precisions, vectors = np.linalg.eigh(np.tensordot(weighted, seen.bases, ((0, 2), (0, 2))))
        scales = np.maximum(precisions, _METRIC * precisions[-1]) ** -0.25
        pulled = vectors.T @ np.tensordot(seen.products, weighted, ((0, 2), (0, 2))) @ vectors
        right = (pulled + pulled.T) / 2 * np.outer(scales, scales)
        count = min(_SCALARS, len(seen.traces), max(1, _ENTRIES // len(vectors) ** 2))
        used = np.unique(np.linspace(0, len(seen.traces) - 1, count).round().astype(int))
        bases = (vectors.T @ seen.bases[used]) * scales[:, None]
        return cls(vectors, precisions, scales, right, bases, seen.traces[used], seen.trace_errors[used] ** 2)

    def penalties(self) -> Iterator[Array]:
        """Yield M, from one that hides noise in every direction to one that hides it in each by itself."""
        for floor in _FLOORS:
            level = np.sqrt(2 * len(self.precisions) * np.maximum(self.precisions, floor * self.precisions[-1]))
            yield np.diag(_EDGE * level * self.scales**2)

    def step(self, point: Array) -> Array:
        """Return the minimiser of the negative likelihood + ||. - point||^2 / 2."""
        out = (self.right + point) / self._diagonal
        flat, solved, capacitance = self._scalars
        return np.asarray(out + (capacitance @ (self.traces - flat @ out.reshape(-1)) @ solved).reshape(out.shape))

    def scaled(self, gram: Array) -> Array:
        """Return a matrix in these coordinates."""
        return np.asarray((self.vectors.T @ gram @ self.vectors) / np.outer(self.scales, self.scales))

    def gram(self, point: Array) -> Array:
        """Return a matrix from these coordinates."""
        return np.asarray(self.vectors @ (point * np.outer(self.scales, self.scales)) @ self.vectors.T)

    def scaled_dual(self, dual: Array) -> Array:
        """Return a multiplier in these coordinates."""
        return np.asarray((self.vectors.T @ dual @ self.vectors) * np.outer(self.scales, self.scales))

    def dual(self, scaled: Array) -> Array:
        """Return a multiplier from these coordinates."""
        return np.asarray(self.vectors @ (scaled / np.outer(self.scales, self.scales)) @ self.vectors.T)

    @cached_property
    def _diagonal(self) -> Array:
        both = (self.precisions + self.precisions[:, None]) / 2
        return np.asarray(both * np.outer(self.scales, self.scales) ** 2 + 1)

    @cached_property
    def _scalars(self) -> tuple[Array, Array, Array]:
        """Return the P_k, flat; the same over the diagonal; and the inverse of their capacitance matrix."""
        flat = (self.bases @ self.bases.mT).reshape(len(self.bases), self.right.size)
        solved = flat / self._diagonal.reshape(-1)
        return flat, solved, np.linalg.inv(np.diag(self.variances) + solved @ flat.T)
