"""Generate matrices of known singular values, cut over clients: the test problems of the FAPS paper.

A = U Sigma V^T (FAPS, (23)) is an n x m matrix, of n features and m samples. It is cut into A = [A_1 ... A_d] for d
clients. A client's rows are samples, so client i holds A_i^T, (m_i, n). PCA of all rows together then has a known
answer: the columns of U.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from securefed._hyperparameters import check_integer, check_number
from securefed._tensors import Array
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError

TALL = 4
"""Ratio of V's rows to its columns from which V is orthonormalised by Cholesky: the condition number of uniform entries
is then below 4 (its limit is (1 + .5) / (1 - .5) = 3, by Marchenko and Pastur's law with .5 = sqrt(1 / 4)), so
V^T V = I to a few units of round-off. A matrix nearer to square is orthonormalised by QR, which needs a copy of it."""
CHUNK = 1024
"""Rows multiplied at a time, so that the product needs no second copy of a client's rows."""


@dataclass(frozen=True)
class SpectralMatrix:
    """A matrix A of known singular values, cut over clients.

    Attributes:
        clients: client i holds A_i^T, (m_i, n).
        basis: (n, n) orthonormal, the left singular vectors of A in the order of `values`.
        values: (n,) its singular values.
    """

    clients: tuple[Dataset, ...]
    basis: Array
    values: Array

    @property
    def feature_bound(self) -> float:
        """The largest singular value, which bounds every entry of a matrix."""
        return float(np.max(self.values))


def geometric(n: int, ratio: float) -> Array:
    """Return the (n,) singular values ratio^(1 - i), i = 1..n (24); with a ratio near 1 the problem is hard."""
    check_integer("n", n, 1)
    if not (1 < ratio < np.inf):
        raise ConfigError(f"ratio must be a finite number above 1; got {ratio}.")
    return np.asarray(ratio ** -np.arange(n, dtype=np.float64))


def arithmetic(n: int, condition: float) -> Array:
    """Return (n,) singular values 1 - (i - 1)/(n - 1) (1 - 1/condition), i = 1..n (sec. 5.6)."""
    check_integer("n", n, 2)
    check_number("condition", condition, 1)
    return 1 - np.arange(n) / (n - 1) * (1 - 1 / condition)


def spectral(values: Array, sizes: Sequence[int], rng: np.random.Generator) -> SpectralMatrix:
    """Draw a matrix of known singular values, and cut its columns over clients.

    U and V are orthonormalised matrices of entries uniform in [-1, 1]. Up to round-off, the matrix does not depend on
    `sizes`, only on their sum. Beside the rows themselves (8 m n bytes) it needs a few n x n matrices.

    Args:
        values: (n,) singular values.
        sizes: number of columns m_i of each client, m in all: `[m // d] * d` for equal clients, and
            `range(1000, 9000, 1000)` for m_i in proportion to i (Table 4).
        rng: source of all randomness.

    Raises:
        ConfigError: fewer columns than rows (m < n), an empty client, or singular values that are not >= 0.
    """
    n, m = len(values), sum(sizes)
    if m < n or min(sizes, default=0) < 1:
        raise ConfigError(f"clients must hold a column each and at least n = {n} in all, not {m}")
    if not (np.isfinite(values) & (values >= 0)).all() or not np.any(values):
        raise ConfigError("singular values must be finite, >= 0 and not all 0")
    basis = _orthonormal(rng.uniform(-1, 1, (n, n)))
    parts = [rng.uniform(-1, 1, (size, n)) for size in sizes]
    right = values[:, None] * basis.T  # Sigma U^T, with which A^T = V (Sigma U^T)
    if m < TALL * n:
        stacked = _orthonormal(np.concatenate(parts)) @ right
        parts = np.split(stacked, np.cumsum(sizes)[:-1])
    else:
        # G, the parts one below the other, is V R with R^T R = G^T G and a positive diagonal of R (Cholesky), hence
        # A^T = V Sigma U^T = G (R^-1 Sigma U^T): one product with G, in place
        upper = np.linalg.cholesky(sum(part.T @ part for part in parts)).T
        right = solve_triangular(upper, right)
        for part in parts:
            for start in range(0, len(part), CHUNK):
                part[start : start + CHUNK] = part[start : start + CHUNK] @ right
    return SpectralMatrix(tuple(Dataset(part) for part in parts), basis, np.asarray(values, np.float64))


def _orthonormal(matrix: Array) -> Array:
    """Return Q of the QR factorisation whose R has a positive diagonal, which is unique."""
    q, r = np.linalg.qr(matrix)
    return q * np.where(np.diag(r) < 0, -1.0, 1.0)
