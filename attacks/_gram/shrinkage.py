"""Estimate a Gram matrix S from noisy products Y_k ~ S Z_k and traces t_k ~ tr(Z_k^T S Z_k), noise of known size.

Attacks on federated PCA call this where a defence added noise (`clipped_products`, `faps/clipped_masked_products`).
Z_k, (features, rank), is the orthonormal basis of round k. The estimate maximises, over positive semidefinite S,

    - sum_k ||Y_k - S Z_k||^2 / (2 e_k^2) - sum_k (t_k - tr(Z_k^T S Z_k))^2 / (2 f_k^2) - tr(M S),

with e_k and f_k the standard deviations of the noise: a Gaussian likelihood, and a penalty tr(M S), M positive and
diagonal in the eigenbasis of H below, that favours few and small eigenvalues, as data have. Where noise hides
everything the estimate is 0; as the noise vanishes it tends to the positive semidefinite completion of least trace
(Nystrom's), which `linear.solve` computes from exact messages. The penalty is lowered in the directions of low
precision until the residual is no larger than the noise.

The likelihood is diagonal in the eigenbasis of H = sum_k Z_k Z_k^T / e_k^2, up to a low-rank term of the traces, and
projecting on positive semidefinite matrices is one eigendecomposition. So ADMM (the alternating direction method of
multipliers) alternates between these two, in coordinates scaled such that S is observed with about the same precision
in all directions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from securefed._tensors import Array
from securefed.attacks._gram.linear import nearest_psd

_PENALTY_FACTOR = 0.5
"""Penalty in units of the largest eigenvalue that noise alone would produce, about the size at which an eigenvalue of S
begins to stand out from the noise. Larger values lose more of S, smaller ones let noise in.
"""
_SCALE_FLOOR = 1e-6
"""Directions whose precision (eigenvalue of H) is below this share of the best are scaled as if they had this share. It
keeps the coordinates finite where a direction was not observed.
"""
_PENALTY_FLOORS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
"""Penalties that are tried in turn: M is as for the precision of each direction, but at least this share of the best
precision. With 1 all directions have the same penalty; where precisions span decades, directions of low precision need
less. The residual decides at which one the search ends.
"""
_MOST_TRACES, _MOST_PROJECTOR_ENTRIES = 60, 2**23
"""Most rounds whose traces are used, and most numbers that their matrices Z_k Z_k^T may hold (64 MiB). Both bound the
cost of the low-rank term, which grows with the square of the number of traces.
"""


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
    def noise_limit(self) -> float:
        """Return a `mean_square_residual` that noise alone seldom exceeds: its mean 1 plus two standard deviations."""
        return float(1 + 2 * np.sqrt(2 / self.products.size))


@dataclass(frozen=True)
class ShrinkageEstimate:
    """An estimate of S, and the state of ADMM from which a further search may continue.

    Attributes:
        gram: the positive semidefinite estimate of S, (features, features).
        dual: ADMM's scaled multiplier of the constraint that both of its variables are equal, (features, features).
    """

    gram: Array
    dual: Array


def shrunk(
    observed: NoisyProducts,
    rows: int = 0,
    *,
    start: ShrinkageEstimate | None = None,
    steps: int = 30,
    relax: bool = True,
) -> ShrinkageEstimate:
    """Estimate S of rank at most `rows`.

    Args:
        observed: the observed rounds.
        rows: bound on the rank of S; 0 for none.
        start: an earlier estimate from similar rounds, to continue from; else the search starts from 0.
        steps: number of ADMM iterations at each penalty.
        relax: whether to lower the penalty until the residual is no larger than the noise, and return the estimate of
            least residual; else only the first penalty is used.
    """
    likelihood = ProductLikelihood.of(observed)
    point = dual = np.zeros_like(likelihood.right)
    if start is not None:
        point, dual = likelihood.scaled(start.gram), likelihood.scaled_dual(start.dual)
    best, least_square = ShrinkageEstimate(np.zeros_like(point), np.zeros_like(point)), np.inf
    for penalty in likelihood.penalties():
        for _ in range(steps):
            explained = likelihood.step(point - dual)  # fits the observations, of any sign
            point = nearest_psd(explained + dual - penalty, rows)  # positive semidefinite, with penalty tr(penalty X)
            dual = dual + explained - point
        solution = ShrinkageEstimate(likelihood.gram(point), likelihood.dual(dual))
        square = observed.mean_square_residual(solution.gram)
        if square < least_square or not relax:
            best, least_square = solution, square
        if square <= observed.noise_limit or not relax:
            break
    return best


@dataclass(frozen=True)
class ProductLikelihood:
    """The quadratic form of the likelihood, in the coordinates X = T^-1 U^T S U T^-1, all (features, features).

    The products' part of the negative log-likelihood has X_ij^2 / 2 with the weight d_i^2 d_j^2 (h_i + h_j) / 2, h_i
    being the precisions and d_i the diagonal of T. With d_i = h_i^(-1/4) the weight is 1 where h_i = h_j.

    Attributes:
        vectors: U, eigenvectors of H, as columns.
        precisions: eigenvalues of H, ascending.
        scales: diagonal of T, the precisions to the power -1/4, with small ones floored.
        right: linear term of the products, sym(T U^T [sum_k Y_k Z_k^T / e_k^2] U T).
        bases: T U^T Z_k of the rounds whose traces are used.
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
    def of(cls, observed: NoisyProducts) -> ProductLikelihood:
        """Return the likelihood of these rounds."""
        weighted = observed.bases / observed.errors[:, None, None] ** 2
        precisions, vectors = np.linalg.eigh(np.tensordot(weighted, observed.bases, ((0, 2), (0, 2))))
        scales = np.maximum(precisions, _SCALE_FLOOR * precisions[-1]) ** -0.25
        pulled = vectors.T @ np.tensordot(observed.products, weighted, ((0, 2), (0, 2))) @ vectors
        right = (pulled + pulled.T) / 2 * np.outer(scales, scales)
        count = min(_MOST_TRACES, len(observed.traces), max(1, _MOST_PROJECTOR_ENTRIES // len(vectors) ** 2))
        used = np.unique(np.linspace(0, len(observed.traces) - 1, count).round().astype(int))
        bases = (vectors.T @ observed.bases[used]) * scales[:, None]
        return cls(vectors, precisions, scales, right, bases, observed.traces[used], observed.trace_errors[used] ** 2)

    def penalties(self) -> Iterator[Array]:
        """Yield M in these coordinates, one for each of `_PENALTY_FLOORS`.

        The first suppresses the noise of the most precise direction in all directions; the last suppresses in each
        direction the noise of that direction only.
        """
        for floor in _PENALTY_FLOORS:
            # a symmetric matrix of noise with entries of variance h / 2 has the largest eigenvalue sqrt(2 features h)
            noise_level = np.sqrt(2 * len(self.precisions) * np.maximum(self.precisions, floor * self.precisions[-1]))
            yield np.diag(_PENALTY_FACTOR * noise_level * self.scales**2)

    def step(self, point: Array) -> Array:
        """Return the X that minimises the negative log-likelihood + ||X - point||^2 / 2, the first half of ADMM.

        It is a diagonal solve, corrected for the low-rank term of the traces by Woodbury's identity.
        """
        out = (self.right + point) / self._diagonal
        projectors, scaled_projectors, inverse_capacitance = self._woodbury
        correction = inverse_capacitance @ (self.traces - projectors @ out.reshape(-1)) @ scaled_projectors
        return np.asarray(out + correction.reshape(out.shape))

    def scaled(self, gram: Array) -> Array:
        """Return T^-1 U^T S U T^-1 for a matrix S."""
        return np.asarray((self.vectors.T @ gram @ self.vectors) / np.outer(self.scales, self.scales))

    def gram(self, point: Array) -> Array:
        """Return S = U T X T U^T for a matrix X in these coordinates."""
        return np.asarray(self.vectors @ (point * np.outer(self.scales, self.scales)) @ self.vectors.T)

    def scaled_dual(self, dual: Array) -> Array:
        """Return T U^T D U T for a multiplier D of S; multipliers scale inversely, so that <D, S> stays the same."""
        return np.asarray((self.vectors.T @ dual @ self.vectors) * np.outer(self.scales, self.scales))

    def dual(self, scaled: Array) -> Array:
        """Return the multiplier D of S, given one in these coordinates; the inverse of `scaled_dual`."""
        return np.asarray(self.vectors @ (scaled / np.outer(self.scales, self.scales)) @ self.vectors.T)

    @cached_property
    def _diagonal(self) -> Array:
        """Return the diagonal of the quadratic form without the traces, plus 1, entry by entry of X."""
        both = (self.precisions + self.precisions[:, None]) / 2
        return np.asarray(both * np.outer(self.scales, self.scales) ** 2 + 1)

    @cached_property
    def _woodbury(self) -> tuple[Array, Array, Array]:
        """Return what Woodbury's identity needs of the matrices P_k = T U^T Z_k Z_k^T U T.

        Returns:
            The P_k as rows, with tr(P_k X) = tr(Z_k^T S Z_k); the same divided by the diagonal; the inverse of the
            capacitance matrix diag(f_k^2) + P diagonal^-1 P^T.
        """
        flat = (self.bases @ self.bases.mT).reshape(len(self.bases), self.right.size)
        solved = flat / self._diagonal.reshape(-1)
        return flat, solved, np.linalg.inv(np.diag(self.variances) + solved @ flat.T)
