"""S from Y = S Z + noise for a symmetric, positive semidefinite S: the solve that the Gram attacks share.

The stacked Z_k are numerically dependent (the iteration converges), so each direction of their span is known with
its own precision. The level of the noise (round-off, fixed point, differential privacy) is read off the asymmetry
of what should be symmetric, its distribution over the messages off that and the precision of their numbers; directions
that hold only noise are left out, and the rest is weighted by precision.
Never the normal equations: they square a condition number of 1e13.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from securefed.tensors import Array

Estimator = Literal["minimum-norm", "symmetric", "psd"]
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
TAU = 1e-13
_FACTORS = (1.0, 1.25, 1.6, 2.0, 3.0)
_SIGNAL = 4.0
"""A direction is kept where its column of S Q has at least this times the energy that noise alone would have."""
_TOLD = 4.0
"""What the numbers say of their own precision counts as much as this many observed asymmetries."""


@dataclass(frozen=True)
class Solution:
    """What the observations say about S.

    Attributes:
        gram: (features, features) the estimate.
        rank: directions of the probes' span that were kept.      lost: those that hold only noise.
        condition: ratio of the largest to the smallest singular value kept.
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
class Span:
    """The probes' span, and S on it.

    Attributes:
        basis: Q, (features, r) orthonormal.      image: B ~ S Q.
        spread: (r,) standard deviation of an entry of each column of B.
        singular: (r,) singular values of the probes over the errors of their products, descending.
        noise: standard deviation of an entry of the products.
        lost: directions that are left out, as they hold only noise.
    """

    basis: Array
    image: Array
    spread: Array
    singular: Array
    noise: float
    lost: int = 0

    def first(self, count: int) -> Span:
        """The `count` directions seen most precisely."""
        basis, image = self.basis[:, :count], self.image[:, :count]
        return replace(self, basis=basis, image=image, spread=self.spread[:count], singular=self.singular[:count])

    @property
    def inner(self) -> Array:
        """Q^T S Q by least squares over symmetric matrices: entry (i, j) is seen in columns i and j."""
        W, precision = self.basis.T @ self.image, self.spread**-2
        return np.asarray((W * precision + W.T * precision[:, None]) / (precision + precision[:, None]))

    @property
    def outer(self) -> Array:
        """(I - Q Q^T) S Q."""
        return np.asarray(self.image - self.basis @ (self.basis.T @ self.image))


def span(probes: Array, products: Array, tau: float = TAU, errors: Array | None = None) -> Span:
    """The directions of `probes` (features, columns) whose image in `products` is more than noise.

    Args:
        errors: standard deviation of each column of the products, (columns,), as their numbers tell it; equal and of
            unknown size without. Asymmetry says whether they are the noise, or one size for all is.
    """
    sizes = np.ones(products.shape[1]) if errors is None else _likelier(probes, products, errors)
    U, s, Vt = np.linalg.svd(probes / sizes, full_matrices=False)
    kept = s > tau * s[0]
    U, s, Vt = U[:, kept], s[kept], Vt[kept]
    B = (products / sizes @ Vt.T) / s
    unit, own = _noise(U.T @ B, s, told=errors is not None)
    visible = np.sum(B**2, axis=0) >= _SIGNAL * len(U) * (own / s) ** 2
    noise = unit * float(np.sqrt(np.mean(sizes**2)))
    return Span(U[:, visible], B[:, visible], unit / s[visible], s[visible], noise, int(np.sum(~visible)))


def solve(
    probes: Array,
    products: Array,
    *,
    estimator: Estimator = "psd",
    tau: float = TAU,
    rows: int = 0,
    errors: Array | None = None,
) -> Solution:
    """Estimate S from `products` ~ S `probes`.

    Args:
        probes, products: (features, columns).
        estimator: `minimum-norm` (the paper's), `symmetric` (least squares over symmetric S, nothing outside what
            was seen), `psd` (also the block that nobody saw, from S >= 0, by Nystrom).
        tau: directions below tau times the largest singular value are never used.
        rows: public bound on the rank of S (rows of the data); 0 for none.
        errors: of the products' columns, as for `span`.

    Guarantee: exact up to round-off where the probes span all features, or (psd) where they span at least the
    rank of S. Elsewhere it is an estimate, and `residual` cannot tell how good.
    """
    whole = span(probes, products, tau, errors)
    counts = _enough(len(whole.spread), rows) if estimator == "psd" else (len(whole.spread),)
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
        rank=len(seen.singular),
        lost=seen.lost,
        condition=float(seen.singular[0] / seen.singular[-1]) if len(seen.singular) else float("nan"),
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

    S = F F^T, so (I - QQ^T) S Q = G F_Q^T + noise, where F_Q F_Q^T = Q^T S Q; the noise differs by column, and a row
    of G has about the size of the smaller directions seen.
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
    """The noise of a product, and as it shows in each column of S Q, from W - W^T, W = Q^T S Q.

    Entry (i, j) of the asymmetry has variance 1 / s_i^2 + 1 / s_j^2 in units of the noise, and with i < j column j is
    the one seen less precisely: what hides a column is measured in that column, whatever the noise of the others.

    Args:
        told: whether the unit is that of known errors, so that 1 is what to expect before anything is seen.
    """
    squares = np.triu((W - W.T) ** 2 / (s**-2 + s[:, None] ** -2), 1)
    pairs, prior = len(s) * (len(s) - 1) / 2, _TOLD if told else 0.0
    unit = np.sqrt((prior + squares.sum()) / (prior + pairs)) if prior + pairs else 0.0
    return float(unit), np.sqrt((_TOLD * unit**2 + squares.sum(axis=0)) / (_TOLD + np.arange(len(s))))


def _likelier(probes: Array, products: Array, errors: Array) -> Array:
    """`errors`, or their root mean square for all columns: what makes the asymmetry of Z^T Y the likelier.

    Its entry (c, d) has variance e_c^2 + e_d^2, in a unit that is free, for Z of unit columns. Solving in double
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
