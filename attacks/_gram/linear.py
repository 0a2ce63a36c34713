"""Solve Y = S Z + noise for a symmetric, positive semidefinite S.

The stacked Z_k are numerically dependent since the iteration converges, so each direction of their span is known with
its own precision. The noise (round-off, fixed point, differential privacy) is estimated from the asymmetry of what
should be symmetric, and from the precision of the messages' numbers. Directions that hold only noise are left out, the
rest are weighted by their precision. The normal equations are never formed: they would square a condition of 1e13.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from securefed._tensors import Array

Estimator = Literal["minimum-norm", "symmetric", "psd"]
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
"""Names of the estimators of `PowerGram`."""
TAU = 1e-13
"""Singular values of the probes below this share of the largest are round-off of double precision."""
_FACTORS = (1.0, 1.25, 1.6, 2.0, 3.0)
"""Numbers of directions to try for an S of known rank, in units of that rank."""
_SIGNAL = 4.0
"""A direction is kept where its column of S Q has at least this times the energy of noise alone. It trades signal left
out against noise let in. Tuned on SSI of digits in float32, float16 and under Gaussian noise, where the errors are
within a fifth of those of the best truncation.
"""
_TOLD = 4.0
"""The precision of the messages' numbers counts as much as this many observed asymmetries."""


@dataclass(frozen=True)
class GramSolution:
    """An estimate of S, and how well the observations determine it.

    Attributes:
        gram: the estimate, (features, features).
        rank: directions of the probes' span that were used.
        lost: directions that hold only noise.
        condition: ratio of the largest to the smallest singular value used.
        noise: estimated standard deviation of an entry of Y.
        residual: ||S Z - Y||_F / ||Y||_F.
    """

    gram: Array
    rank: int
    lost: int
    condition: float
    noise: float
    residual: float


@dataclass(frozen=True)
class ProbeSpan:
    """The span of the probes, and S on it.

    Attributes:
        basis: Q, (features, r) with orthonormal columns.
        image: B ~ S Q, (features, r).
        spread: standard deviation of an entry of each column of B, (r,).
        singular: singular values of the probes over the errors of their products, descending, (r,).
        noise: standard deviation of an entry of the products.
        lost: directions that are left out, as they hold only noise.
    """

    basis: Array
    image: Array
    spread: Array
    singular: Array
    noise: float
    lost: int = 0

    def first(self, count: int) -> ProbeSpan:
        """Return the `count` directions that are known most precisely."""
        basis, image = self.basis[:, :count], self.image[:, :count]
        return replace(self, basis=basis, image=image, spread=self.spread[:count], singular=self.singular[:count])

    @property
    def inner(self) -> Array:
        """Return Q^T S Q by least squares over symmetric matrices: entry (i, j) is observed in columns i and j."""
        W, precision = self.basis.T @ self.image, self.spread**-2
        return np.asarray((W * precision + W.T * precision[:, None]) / (precision + precision[:, None]))

    @property
    def outer(self) -> Array:
        """Return (I - Q Q^T) S Q."""
        return np.asarray(self.image - self.basis @ (self.basis.T @ self.image))


def span(probes: Array, products: Array, tau: float = TAU, errors: Array | None = None) -> ProbeSpan:
    """Return the directions of the probes whose image in the products is more than noise.

    Args:
        probes: Z, (features, columns).
        products: Y ~ S Z, (features, columns).
        tau: smallest singular value that is used, relative to the largest.
        errors: standard deviation of each column of the products, (columns,); without it all are taken as equal and
            their size as unknown. The asymmetry decides between these errors and one size for all.
    """
    sizes = np.ones(products.shape[1]) if errors is None else _likelier(probes, products, errors)
    U, s, Vt = np.linalg.svd(probes / sizes, full_matrices=False)
    kept = s > tau * s[0]
    U, s, Vt = U[:, kept], s[kept], Vt[kept]
    B = (products / sizes @ Vt.T) / s
    unit, own = _noise(U.T @ B, s, told=errors is not None)
    visible = np.sum(B**2, axis=0) >= _SIGNAL * len(U) * (own / s) ** 2
    noise = unit * float(np.sqrt(np.mean(sizes**2)))
    return ProbeSpan(U[:, visible], B[:, visible], unit / s[visible], s[visible], noise, int(np.sum(~visible)))


def solve(
    probes: Array,
    products: Array,
    *,
    estimator: Estimator = "psd",
    tau: float = TAU,
    rows: int = 0,
    errors: Array | None = None,
) -> GramSolution:
    """Estimate S from `products` ~ S `probes`.

    The estimate is exact up to round-off where the probes span all features, or (`psd`) at least the range of S.
    Elsewhere `residual` does not tell how good it is.

    Args:
        probes: Z, (features, columns).
        products: Y, (features, columns).
        estimator: `minimum-norm` (the paper's), `symmetric` (least squares over symmetric S, zero on what was not
            observed) or `psd` (`symmetric`, and the unobserved block completed from S >= 0 by Nystrom's method).
        tau: smallest singular value of the probes that is used, relative to the largest.
        rows: public bound on the rank of S (rows of the data); 0 for none.
        errors: standard deviation of each column of the products, as for `span`.
    """
    whole = span(probes, products, tau, errors)
    counts = _enough(len(whole.spread), rows) if estimator == "psd" else (len(whole.spread),)
    return min(
        (_solution(whole.first(count), probes, products, estimator, rows) for count in counts),
        key=lambda solution: solution.residual,
    )


def _enough(directions: int, rows: int) -> tuple[int, ...]:
    """Return how many directions to try: all, and where S is known to be of rank `rows`, fewer.

    A matrix of that rank follows from `rows` directions. Later ones have ever smaller singular values and add next to
    nothing but rounding, by which Nystrom's method divides. The residual over all observations decides.
    """
    if not 0 < rows < directions:
        return (directions,)
    return tuple(sorted({min(directions, round(rows * factor)) for factor in _FACTORS} | {directions}))


def _solution(seen: ProbeSpan, probes: Array, products: Array, estimator: Estimator, rows: int) -> GramSolution:
    gram = _assemble(seen, estimator, rows)
    scale = float(np.linalg.norm(products)) or 1.0
    return GramSolution(
        gram=gram,
        rank=len(seen.singular),
        lost=seen.lost,
        condition=float(seen.singular[0] / seen.singular[-1]) if len(seen.singular) else float("nan"),
        noise=seen.noise,
        residual=float(np.linalg.norm(gram @ probes - products)) / scale,
    )


def nearest_psd(matrix: Array, rank: int = 0) -> Array:
    """Return the nearest positive semidefinite matrix in the Frobenius norm, of rank at most `rank` (0: any)."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    values = np.maximum(values, 0)
    if 0 < rank < len(values):
        values[:-rank] = 0
    return np.asarray((vectors * values) @ vectors.T)


def _assemble(seen: ProbeSpan, estimator: Estimator, rows: int) -> Array:
    Q = seen.basis
    if estimator == "minimum-norm":
        return np.asarray(seen.image @ Q.T)
    cross = seen.outer @ Q.T
    symmetric = Q @ seen.inner @ Q.T + cross + cross.T
    if estimator == "symmetric" or not Q.size:
        return np.asarray(symmetric)
    unseen = _complete(seen, rows)
    return nearest_psd(symmetric + unseen @ unseen.T, rows)


def _complete(seen: ProbeSpan, rows: int) -> Array:
    """Return G with (I - Q Q^T) S (I - Q Q^T) ~ G G^T, by Nystrom's method as a ridge regression with known noise.

    S = F F^T, so (I - Q Q^T) S Q = G F_Q^T + noise, where F_Q F_Q^T = Q^T S Q. The noise differs by column, and a row
    of G has about the size of the smaller observed directions.
    """
    values, vectors = np.linalg.eigh(seen.inner)
    values, vectors = values[-rows:], vectors[:, -rows:]  # all of them where rows is 0
    good = values > 1e-14 * np.max(values, initial=0.0)
    factor = vectors[:, good] * np.sqrt(values[good])
    if not factor.size:
        return np.zeros((len(seen.basis), 0))
    prior = np.median(values[good]) / len(seen.spread)
    precision = 1 / np.maximum(seen.spread, np.finfo(float).eps * float(np.linalg.norm(seen.image)))[:, None]
    u, d, vt = np.linalg.svd(precision * factor, full_matrices=False)
    gain = d / (d**2 + 1 / prior)
    return np.asarray(((vt.T * gain) @ (u.T @ (precision * seen.outer.T))).T)


def _noise(W: Array, s: Array, told: bool) -> tuple[float, Array]:
    """Estimate the noise of a product, and of each column of S Q, from W - W^T with W = Q^T S Q.

    Entry (i, j) of the asymmetry has variance 1 / s_i^2 + 1 / s_j^2 in units of the noise, and with i < j column j is
    the less precise one. So the noise of a column is measured in that column, whatever the noise of the others.

    Args:
        W: Q^T S Q, (r, r).
        s: singular values, (r,).
        told: whether the unit is that of known errors, so that 1 is expected before anything is observed.
    """
    squares = np.triu((W - W.T) ** 2 / (s**-2 + s[:, None] ** -2), 1)
    pairs, prior = len(s) * (len(s) - 1) / 2, _TOLD if told else 0.0
    unit = np.sqrt((prior + squares.sum()) / (prior + pairs)) if prior + pairs else 0.0
    return float(unit), np.sqrt((_TOLD * unit**2 + squares.sum(axis=0)) / (_TOLD + np.arange(len(s))))


def _likelier(probes: Array, products: Array, errors: Array) -> Array:
    """Return `errors`, or their root mean square for all columns: whichever makes the asymmetry of Z^T Y more likely.

    Entry (c, d) of the asymmetry has variance e_c^2 + e_d^2, in a free unit, for Z of unit columns. Solving in double
    precision adds errors of one size, which are all that counts in messages of that precision.
    """
    solving = float(np.finfo(float).eps * np.linalg.norm(products, axis=0).max())
    own = np.hypot(errors, solving)
    even = np.full(len(own), np.sqrt(np.mean(own**2)))
    inner = probes.T @ products
    i, j = np.triu_indices(len(inner), 1)
    squares = (inner[i, j] - inner[j, i]) ** 2
    if not len(i) or not own.all():
        return even

    def surprise(sizes: Array) -> float:
        variances = sizes[i] ** 2 + sizes[j] ** 2
        unit = (_TOLD + np.sum(squares / variances)) / (_TOLD + len(i))
        return float(np.sum(np.log(unit * variances) + squares / (unit * variances)))

    return min((own, even), key=surprise)
