"""S from Y_k = S Z_k + noise of known size: the positive semidefinite S of least penalty that explains the rounds.

Maximises  -sum_k ||Y_k - S Z_k||^2 / 2 e_k^2 - sum_k (t_k - tr(Z_k^T S Z_k))^2 / 2 f_k^2 - tr(M S)  over S >= 0: a
Gaussian likelihood, and a prior that favours few and small eigenvalues, as data have. Where noise hides everything
that is 0; as the noise vanishes it is the positive semidefinite completion of least trace, Nystrom's, which
`linear.solve` takes of exact messages.

The likelihood is diagonal in the eigenbasis of H = sum_k Z_k Z_k^T / e_k^2 but for the scalars t_k, a term of low rank;
the rest is a cone. So ADMM takes the two in turn, in coordinates in which each direction's own precision is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from securefed.attacks.gram.linear import nearest_psd
from securefed.tensors import Array

_EDGE = 0.5
"""Of the largest eigenvalue that noise alone would have: from there on a direction begins to show in the noise."""
_METRIC = 1e-6
"""Directions seen less precisely than this, relative to the best, are scaled as if they were."""
_FLOORS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
"""The penalty is the same in all directions but for those of precision above this share of the best. Precisions that
span decades excuse less of it in the directions seen badly, and the misfit tells."""
_SCALARS, _ENTRIES = 60, 2**23
"""Rounds whose scalars are used, at most, and numbers that their projectors may hold."""


@dataclass(frozen=True)
class Noisy:
    """What K rounds show.

    Attributes:
        bases: Z_k, (K, features, rank).      products: Y_k ~ S Z_k, likewise.      errors: of their entries, (K,).
        traces: t_k ~ tr(Z_k^T S Z_k), (K,).      trace_errors: of them, (K,).
    Errors are standard deviations, positive.
    """

    bases: Array
    products: Array
    errors: Array
    traces: Array
    trace_errors: Array

    def misfit(self, gram: Array) -> float:
        """Mean square of (Y - S Z) over the error: 1, where S is right."""
        return float(np.mean(((self.products - gram @ self.bases) / self.errors[:, None, None]) ** 2))

    @property
    def excused(self) -> float:
        """A misfit that noise exceeds seldom."""
        return float(1 + 2 * np.sqrt(2 / self.products.size))


@dataclass(frozen=True)
class Shrunk:
    """S, positive semidefinite, and the multiplier of that constraint, from which to go on."""

    gram: Array
    dual: Array


def shrunk(seen: Noisy, rows: int = 0, *, start: Shrunk | None = None, steps: int = 30, relax: bool = True) -> Shrunk:
    """S of rank at most `rows` (0: any).

    Args:
        start: to begin with, of similar rounds.      steps: at each penalty.
        relax: lower the penalty until what is left is no more than the noise; else the first one is taken.
    """
    likelihood = Likelihood.of(seen)
    point = dual = np.zeros_like(likelihood.right)
    if start is not None:
        point, dual = likelihood.scaled(start.gram), likelihood.scaled_dual(start.dual)
    best, least = Shrunk(np.zeros_like(point), np.zeros_like(point)), np.inf
    for penalty in likelihood.penalties():
        for _ in range(steps):
            explained = likelihood.step(point - dual)
            point = nearest_psd(explained + dual - penalty, rows)
            dual = dual + explained - point
        found = Shrunk(likelihood.gram(point), likelihood.dual(dual))
        misfit = seen.misfit(found.gram)
        if misfit < least or not relax:
            best, least = found, misfit
        if misfit <= seen.excused or not relax:
            break
    return best


@dataclass(frozen=True)
class Likelihood:
    """The likelihood's quadratic form, of T^-1 U^T S U T^-1.

    Attributes:
        vectors: U, eigenvectors of H.      precisions: its eigenvalues, ascending.
        scales: the diagonal of T.      right: the linear term.
        bases: T U^T Z_k of the rounds whose scalars are used.      traces, variances: their t_k, and their f_k^2.
    """

    vectors: Array
    precisions: Array
    scales: Array
    right: Array
    bases: Array
    traces: Array
    variances: Array

    @classmethod
    def of(cls, seen: Noisy) -> Likelihood:
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
        """M, from the one that hides pure noise in every direction to one that hides it in each by itself."""
        for floor in _FLOORS:
            level = np.sqrt(2 * len(self.precisions) * np.maximum(self.precisions, floor * self.precisions[-1]))
            yield np.diag(_EDGE * level * self.scales**2)

    def step(self, point: Array) -> Array:
        """The minimiser of the negative likelihood + ||. - point||^2 / 2."""
        out = (self.right + point) / self._diagonal
        flat, solved, capacitance = self._scalars
        return np.asarray(out + (capacitance @ (self.traces - flat @ out.reshape(-1)) @ solved).reshape(out.shape))

    def scaled(self, gram: Array) -> Array:
        """A matrix in these coordinates."""
        return np.asarray((self.vectors.T @ gram @ self.vectors) / np.outer(self.scales, self.scales))

    def gram(self, point: Array) -> Array:
        """Inverse of `scaled`."""
        return np.asarray(self.vectors @ (point * np.outer(self.scales, self.scales)) @ self.vectors.T)

    def scaled_dual(self, dual: Array) -> Array:
        """A multiplier of a matrix in these coordinates."""
        return np.asarray((self.vectors.T @ dual @ self.vectors) * np.outer(self.scales, self.scales))

    def dual(self, scaled: Array) -> Array:
        """Inverse of `scaled_dual`."""
        return np.asarray(self.vectors @ (scaled / np.outer(self.scales, self.scales)) @ self.vectors.T)

    @cached_property
    def _diagonal(self) -> Array:
        both = (self.precisions + self.precisions[:, None]) / 2
        return np.asarray(both * np.outer(self.scales, self.scales) ** 2 + 1)

    @cached_property
    def _scalars(self) -> tuple[Array, Array, Array]:
        """P_k, flat; the same over the diagonal; the inverse of their capacitance matrix."""
        flat = (self.bases @ self.bases.mT).reshape(len(self.bases), self.right.size)
        solved = flat / self._diagonal.reshape(-1)
        return flat, solved, np.linalg.inv(np.diag(self.variances) + solved @ flat.T)
