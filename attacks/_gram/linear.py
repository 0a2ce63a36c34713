"""Solve Y = S Z + noise for a Gram matrix S, symmetric and positive semidefinite, (features, features).

In federated PCA by subspace iteration the server broadcasts bases and clients send S times them: the probes Z and the
products Y, (features, columns), are those of all observed rounds side by side. With the singular value decomposition
Z = U diag(s) V^T,

    B = Y V diag(1/s)    estimates    S U,

column i with noise in proportion to 1 / s_i. The stacked bases of a converging iteration are numerically dependent, so
the s_i span many decades. The noise (round-off, fixed point, differential privacy) is estimated from U^T B - (U^T B)^T,
which vanishes without noise, and from the known precision of the messages' numbers. Directions that hold only noise are
left out; Q is the rest of U. S is put together from three blocks:

    K = Q^T S Q                      the average of Q^T B and its transpose, weighted by precision,
    E = (I - Q Q^T) S Q              (I - Q Q^T) B, of B the columns that belong to Q,
    (I - Q Q^T) S (I - Q Q^T)        not observed; completed as E K^-1 E^T (Nystrom's method).

The completion is exact where S has at most the rank of K. The normal equations are never formed: they would square a
condition number of up to 1e13.

Attacks on subspace iteration, clipped products and drop-outs call `solve`; `elimination` calls `span` too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from securefed._tensors import Array

Estimator = Literal["minimum-norm", "symmetric", "psd"]
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
"""Names of the estimators that `solve` offers."""
TAU = 1e-13
"""Singular values of the probes below this share of the largest are round-off of double precision."""
_FACTORS = (1.0, 1.25, 1.6, 2.0, 3.0)
"""Numbers of directions to try for an S of known rank, in units of that rank. The residual chooses among them."""
_SIGNAL = 4.0
"""A direction is kept where its column of S U has at least this times the energy of noise alone. It trades signal left
out against noise let in. Tuned on subspace iteration of images of digits, in float32, float16 and under Gaussian
noise, where the errors are within a fifth of those of the best truncation.
"""
_PRIOR_PAIRS = 4.0
"""Weight of the prior size of the noise, in observed asymmetries: the prior dominates where fewer were observed."""


@dataclass(frozen=True)
class GramSolution:
    """An estimate of S, and how well the observations determine it.

    Attributes:
        gram: the estimate, (features, features).
        rank: number of directions of the probes' span that were used.
        lost: number of directions that hold only noise, and were left out.
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
    """The directions of the probes' span whose image under S is more than noise, and these images.

    Attributes:
        basis: Q, (features, r) with orthonormal columns.
        image: B ~ S Q, (features, r).
        spread: standard deviation of an entry of each column of B, (r,).
        singular: singular values of the probes, columns divided by their products' errors, descending, (r,).
        noise: standard deviation of an entry of the products.
        lost: number of directions left out because they hold only noise.
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
        W, precision = self.basis.T @ self.image, self.spread**-2  # W ~ Q^T S Q, column j with this precision
        return np.asarray((W * precision + W.T * precision[:, None]) / (precision + precision[:, None]))

    @property
    def outer(self) -> Array:
        """Return (I - Q Q^T) S Q."""
        return np.asarray(self.image - self.basis @ (self.basis.T @ self.image))


def span(probes: Array, products: Array, tau: float = TAU, errors: Array | None = None) -> ProbeSpan:
    """Return the directions of the probes' span whose image under S is more than noise, with these images.

    Args:
        probes: Z, (features, columns).
        products: Y ~ S Z, (features, columns).
        tau: smallest singular value that is used, relative to the largest.
        errors: standard deviation of an entry of each column of the products, (columns,), from the precision of their
            numbers; they are used where they make the observed asymmetry likelier than one size for all columns does.
            Without `errors` all columns are taken to have the same, unknown one.
    """
    sizes = np.ones(products.shape[1]) if errors is None else _likelier_errors(probes, products, errors)
    U, s, Vt = np.linalg.svd(probes / sizes, full_matrices=False)
    significant = s > tau * s[0]
    U, s, Vt = U[:, significant], s[significant], Vt[significant]
    B = (products / sizes @ Vt.T) / s
    # unit: noise of an entry of the products, in units of `sizes`, positive; column_noise: the same, by direction
    unit, column_noise = _noise(U.T @ B, s, errors_known=errors is not None)
    # a column of B that is noise alone has energy features (noise / s_i)^2
    visible = np.sum(B**2, axis=0) >= _SIGNAL * len(U) * (column_noise / s) ** 2
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

    The estimate is exact up to round-off where the probes span all features, or (`psd`) where their image under S spans
    the range of S. Elsewhere `residual` does not tell how good the estimate is.

    Args:
        probes: Z, (features, columns).
        products: Y, (features, columns).
        estimator: `minimum-norm` (B Q^T, the FAPS paper's), `symmetric` (least squares over symmetric S, with the
            unobserved block zero) or `psd` (`symmetric`, with the unobserved block completed by Nystrom's method, then
            projected on positive semidefinite matrices of rank at most `rows`).
        tau: smallest singular value of the probes that is used, relative to the largest.
        rows: public bound on the rank of S (rows of the data); 0 for none.
        errors: standard deviation of each column of the products, as for `span`.
    """
    probe_span = span(probes, products, tau, errors)
    counts = _direction_counts(len(probe_span.spread), rows) if estimator == "psd" else (len(probe_span.spread),)
    return min(
        (_solution(probe_span.first(count), probes, products, estimator, rows) for count in counts),
        key=lambda solution: solution.residual,
    )


def _direction_counts(directions: int, rows: int) -> tuple[int, ...]:
    """Return the numbers of leading directions to try: all, and fewer where S is known to have rank at most `rows`.

    A matrix of that rank follows from `rows` directions. Further ones have ever smaller singular values, so that they
    add mostly rounding errors, which Nystrom's method magnifies. The caller takes the number of least residual.
    """
    if not 0 < rows < directions:
        return (directions,)
    return tuple(sorted({min(directions, round(rows * factor)) for factor in _FACTORS} | {directions}))


def _solution(probe_span: ProbeSpan, probes: Array, products: Array, estimator: Estimator, rows: int) -> GramSolution:
    """Assemble S from the span of the probes, with its residual and conditioning; arguments are those of `solve`."""
    gram = _assemble(probe_span, estimator, rows)
    scale = float(np.linalg.norm(products)) or 1.0
    return GramSolution(
        gram=gram,
        rank=len(probe_span.singular),
        lost=probe_span.lost,
        condition=float(probe_span.singular[0] / probe_span.singular[-1]) if len(probe_span.singular) else float("nan"),
        noise=probe_span.noise,
        residual=float(np.linalg.norm(gram @ probes - products)) / scale,
    )


def nearest_psd(matrix: Array, rank: int = 0) -> Array:
    """Return the nearest positive semidefinite matrix in the Frobenius norm, of rank at most `rank` (0: any)."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    values = np.maximum(values, 0)
    if 0 < rank < len(values):
        values[:-rank] = 0
    return np.asarray((vectors * values) @ vectors.T)


def _assemble(probe_span: ProbeSpan, estimator: Estimator, rows: int) -> Array:
    """Put S together from its blocks on the span and beside it, by one of the estimators of `solve`."""
    Q = probe_span.basis
    if estimator == "minimum-norm":
        return np.asarray(probe_span.image @ Q.T)
    cross = probe_span.outer @ Q.T
    symmetric = Q @ probe_span.inner @ Q.T + cross + cross.T
    if estimator == "symmetric" or not Q.size:
        return np.asarray(symmetric)
    unobserved = _unobserved_factor(probe_span, rows)
    return nearest_psd(symmetric + unobserved @ unobserved.T, rows)


def _unobserved_factor(probe_span: ProbeSpan, rows: int) -> Array:
    """Return G with (I - Q Q^T) S (I - Q Q^T) ~ G G^T, by Nystrom's method as a ridge regression with known noise.

    With S = F F^T, F_Q = Q^T F and G = (I - Q Q^T) F, the observed (I - Q Q^T) S Q is G F_Q^T + noise, where
    F_Q F_Q^T = Q^T S Q is known. The noise differs by column. The ridge is a prior: an entry of F is taken to be as
    large beside the span as in it. A column of F_Q has one entry for each direction and an eigenvalue of Q^T S Q as its
    squared norm, so the mean square of an entry of G is the median eigenvalue over the number of directions.
    """
    values, vectors = np.linalg.eigh(probe_span.inner)
    values, vectors = values[-rows:], vectors[:, -rows:]  # all of them where rows is 0
    significant = values > 1e-14 * np.max(values, initial=0.0)
    factor = vectors[:, significant] * np.sqrt(values[significant])
    if not factor.size:
        return np.zeros((len(probe_span.basis), 0))
    prior = np.median(values[significant]) / len(probe_span.spread)
    round_off = np.finfo(float).eps * float(np.linalg.norm(probe_span.image))
    precision = 1 / np.maximum(probe_span.spread, round_off)[:, None]
    # Ridge regression of each row g of G: minimise ||precision (F_Q g - observed)||^2 + ||g||^2 / prior. With u, d, vt
    # the decomposition of precision F_Q, g = vt^T diag(d / (d^2 + 1 / prior)) u^T (precision observed).
    u, d, vt = np.linalg.svd(precision * factor, full_matrices=False)
    gain = d / (d**2 + 1 / prior)
    return np.asarray(((vt.T * gain) @ (u.T @ (precision * probe_span.outer.T))).T)


def _noise(W: Array, s: Array, errors_known: bool) -> tuple[float, Array]:
    """Estimate the noise of the products from the asymmetry W - W^T of W, which estimates U^T S U.

    Where every entry of the products has noise of standard deviation 1, entry (i, j) of the asymmetry has variance
    1 / s_i^2 + 1 / s_j^2. Of i < j, j is the less precise direction, so its noise shows in the entries (i, j).

    Args:
        W: U^T B, (r, r).
        s: singular values, descending, (r,).
        errors_known: whether products were divided by known errors, so that 1 is expected before anything is observed.

    Returns:
        The standard deviation over all entries, and that estimated for each direction by itself, (r,).
    """
    # squared asymmetries over their expectation, above the diagonal
    squares = np.triu((W - W.T) ** 2 / (s**-2 + s[:, None] ** -2), 1)
    pairs, prior = len(s) * (len(s) - 1) / 2, _PRIOR_PAIRS if errors_known else 0.0
    unit = np.sqrt((prior + squares.sum()) / (prior + pairs)) if prior + pairs else 0.0
    # no asymmetry, as of one column or of whole numbers, says that there is no noise beyond round-off
    unit = unit or np.finfo(float).eps * (float(np.linalg.norm(W * s)) or 1.0)
    # direction j stands in the j pairs (i, j), i < j; where they are few, the overall estimate dominates
    own = (_PRIOR_PAIRS * unit**2 + squares.sum(axis=0)) / (_PRIOR_PAIRS + np.arange(len(s)))
    return float(unit), np.sqrt(own)


def _likelier_errors(probes: Array, products: Array, errors: Array) -> Array:
    """Return `errors`, or their root mean square for all columns: whichever makes the asymmetry of Z^T Y more likely.

    For Z of unit columns entry (c, d) of Z^T Y - Y^T Z has variance e_c^2 + e_d^2, up to a common factor that is
    estimated. Computing in double precision adds an error of the same size to all columns, which dominates where the
    messages have that precision too.
    """
    solving = float(np.finfo(float).eps * np.linalg.norm(products, axis=0).max())
    with_solving = np.hypot(errors, solving)
    equal = np.full(len(with_solving), np.sqrt(np.mean(with_solving**2)))
    inner = probes.T @ products
    i, j = np.triu_indices(len(inner), 1)
    squares = (inner[i, j] - inner[j, i]) ** 2
    if not len(i) or not with_solving.all():
        return equal

    def negative_log_likelihood(sizes: Array) -> float:
        """Return twice the negative log-likelihood of the asymmetries, with the common factor `unit` fitted."""
        variances = sizes[i] ** 2 + sizes[j] ** 2
        unit = (_PRIOR_PAIRS + np.sum(squares / variances)) / (_PRIOR_PAIRS + len(i))
        return float(np.sum(np.log(unit * variances) + squares / (unit * variances)))

    return min((with_solving, equal), key=negative_log_likelihood)
