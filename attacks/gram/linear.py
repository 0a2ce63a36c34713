"""S from Y = S Z + noise for a symmetric, positive semidefinite S: the solve that the Gram attacks share.

The stacked Z_k are numerically dependent (the iteration converges), so each direction of their span is known with
its own precision. The level of the noise (round-off, fixed point, differential privacy) is read off the asymmetry
of what should be symmetric; directions that hold only noise are left out, and the rest is weighted by precision.
Never the normal equations: they square a condition number of 1e13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from securefed.tensors import Array

Estimator = Literal["minimum-norm", "symmetric", "psd"]
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
TAU = 1e-13
_FACTORS = (1.0, 1.25, 1.6, 2.0, 3.0)
_SIGNAL = 4.0
"""A direction is kept where its column of S Q has at least this times the energy that noise alone would have."""


@dataclass(frozen=True)
class Solution:
    """What the observations say about S.

    Attributes:
        gram: (features, features) the estimate.
        rank: directions of the probes' span that were kept.
        condition: ratio of the largest to the smallest singular value kept.
        noise: estimated standard deviation of an entry of Y.
        residual: ||S Z - Y||_F / ||Y||_F.
    """

    gram: Array
    rank: int
    condition: float
    noise: float
    residual: float


@dataclass(frozen=True)
class Span:
    """The probes' span, and S on it.

    Attributes:
        basis: Q, (features, r) orthonormal.      weights: s, (r,) singular values of the probes, descending.
        image: B ~ S Q; the noise of column j has standard deviation `noise` / s_j.
    """

    basis: Array
    weights: Array
    image: Array
    noise: float

    def first(self, count: int) -> Span:
        """The `count` directions seen most precisely."""
        return Span(self.basis[:, :count], self.weights[:count], self.image[:, :count], self.noise)

    @property
    def inner(self) -> Array:
        """Q^T S Q by least squares over symmetric matrices: entry (i, j) is seen with precision s_j^2 and s_i^2."""
        W, precision = self.basis.T @ self.image, self.weights**2
        return np.asarray((W * precision + W.T * precision[:, None]) / (precision + precision[:, None]))

    @property
    def outer(self) -> Array:
        """(I - Q Q^T) S Q."""
        return np.asarray(self.image - self.basis @ (self.basis.T @ self.image))


def span(probes: Array, products: Array, tau: float = TAU) -> Span:
    """The directions of `probes` (features, columns) whose image in `products` is more than noise."""
    U, s, Vt = np.linalg.svd(probes, full_matrices=False)
    kept = s > tau * s[0]
    U, s, Vt = U[:, kept], s[kept], Vt[kept]
    B = (products @ Vt.T) / s
    noise = _noise(U.T @ B, s)
    visible = np.sum(B**2, axis=0) >= _SIGNAL * len(U) * (noise / s) ** 2
    return Span(U[:, visible], s[visible], B[:, visible], noise)


def solve(probes: Array, products: Array, *, estimator: Estimator = "psd", tau: float = TAU, rows: int = 0) -> Solution:
    """Estimate S from `products` ~ S `probes`.

    Args:
        probes, products: (features, columns).
        estimator: `minimum-norm` (the paper's), `symmetric` (least squares over symmetric S, nothing outside what
            was seen), `psd` (also the block that nobody saw, from S >= 0, by Nystrom).
        tau: directions below tau times the largest singular value are never used.
        rows: public bound on the rank of S (rows of the data); 0 for none.

    Guarantee: exact up to round-off where the probes span all features, or (psd) where they span at least the
    rank of S. Elsewhere it is an estimate, and `residual` cannot tell how good.
    """
    whole = span(probes, products, tau)
    counts = _enough(len(whole.weights), rows) if estimator == "psd" else (len(whole.weights),)
    return min(
        (_solution(whole.first(count), probes, products, estimator, rows) for count in counts),
        key=lambda solution: solution.residual,
    )


def _enough(directions: int, rows: int) -> tuple[int, ...]:
    """How many directions to try: all, and where S is known to be of rank `rows`, fewer, down to as many.

    A matrix of that rank follows from `rows` directions. Later ones, seen through ever smaller singular values, add
    next to nothing but their rounding, and Nystrom divides by it; the residual over all observations tells.
    """
    if not 0 < rows < directions:
        return (directions,)
    return tuple(sorted({min(directions, round(rows * factor)) for factor in _FACTORS} | {directions}))


def _solution(seen: Span, probes: Array, products: Array, estimator: Estimator, rows: int) -> Solution:
    gram = _assemble(seen, estimator, rows)
    scale = float(np.linalg.norm(products)) or 1.0
    return Solution(
        gram=gram,
        rank=len(seen.weights),
        condition=float(seen.weights[0] / seen.weights[-1]) if len(seen.weights) else float("nan"),
        noise=seen.noise,
        residual=float(np.linalg.norm(gram @ probes - products)) / scale,
    )


def nearest_psd(matrix: Array, rank: int = 0) -> Array:
    """The nearest positive semidefinite matrix in the Frobenius norm, of at most `rank` where that is not 0."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    values = np.maximum(values, 0)
    if 0 < rank < len(values):
        values[:-rank] = 0
    return np.asarray((vectors * values) @ vectors.T)


def _assemble(seen: Span, estimator: Estimator, rows: int) -> Array:
    Q = seen.basis
    if estimator == "minimum-norm":
        return np.asarray(seen.image @ Q.T)
    cross = seen.outer @ Q.T
    symmetric = Q @ seen.inner @ Q.T + cross + cross.T
    if estimator == "symmetric" or not Q.size:
        return np.asarray(symmetric)
    unseen = _complete(seen, rows)
    return nearest_psd(symmetric + unseen @ unseen.T, rows)


def _complete(seen: Span, rows: int) -> Array:
    """G with (I - Q Q^T) S (I - Q Q^T) ~ G G^T: Nystrom, by ridge regression with known noise.

    S = F F^T, so (I - QQ^T) S Q = G F_Q^T + noise, where F_Q F_Q^T = Q^T S Q; the noise of column j is
    noise / s_j, and a row of G has about the size of the smaller directions seen.
    """
    values, vectors = np.linalg.eigh(seen.inner)
    first = len(values) - (min(rows, len(values)) or len(values))
    good = (np.arange(len(values)) >= first) & (values > 1e-14 * values[-1])
    factor = vectors[:, good] * np.sqrt(values[good])
    if not factor.size:
        return np.zeros((len(seen.basis), 0))
    prior = np.median(values[good]) / len(values)
    noise = seen.noise or np.finfo(float).eps * float(np.linalg.norm(seen.image))
    precision = (seen.weights / noise)[:, None]
    u, d, vt = np.linalg.svd(precision * factor, full_matrices=False)
    gain = d / (d**2 + 1 / prior)
    return np.asarray(((vt.T * gain) @ (u.T @ (precision * seen.outer.T))).T)


def _noise(W: Array, s: Array) -> float:
    """Standard deviation of an entry of Y, from W - W^T, W = Q^T S Q: entry (i, j) has variance 1/s_i^2 + 1/s_j^2."""
    i, j = np.triu_indices(len(s), 1)
    if not len(i):
        return 0.0
    return float(np.sqrt(np.mean((W[i, j] - W[j, i]) ** 2 / (s[i] ** -2 + s[j] ** -2))))
