"""The Gram operator of a client's rows, and orthonormal bases, as all PCA methods use them.

The papers write A_i (features x rows) for client i's data and S_i = A_i A_i^T; here the rows of `x` are samples, so
A_i = x^T. The last functions bound, from public facts, the entries of the messages that PCA methods send: n_i rows with
entries of at most `feature_bound`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigvalsh
from scipy.sparse.linalg import svds

from securefed._hyperparameters import check_integer
from securefed._public import Public
from securefed._tensors import Array
from securefed.errors import DataError, DivergenceError

SLACK = 1 + 2.0**-40
"""Bounds are met with equality by constant data; this leaves room for the last bits of the arithmetic."""

_ROUNDING = 1e-6
"""Largest difference of Z^T Z from I; it is 1e-14 after QR in double precision, 1e-6 for single-precision bases."""
_DENSE = 64
"""Below this many rows or features a dense singular value decomposition is cheaper than an iterative one."""


@dataclass(frozen=True)
class Gram:
    """The Gram matrix S = x^T x of the rows x, for products with it.

    Attributes:
        x: (rows, features).
        matrix: S itself, formed only where there are more rows than features, so that a product with it
            costs less than two products with `x`; `None` elsewhere.
    """

    x: Array
    matrix: Array | None

    @classmethod
    def of(cls, x: Array) -> Gram:
        """Build the Gram operator of the rows `x`."""
        x = np.asarray(x, np.float64)
        return cls(x, x.T @ x if x.shape[0] > x.shape[1] else None)

    def times(self, basis: Array) -> Array:
        """Compute S V for V of shape (features, columns)."""
        product: Array = self.x.T @ (self.x @ basis) if self.matrix is None else self.matrix @ basis
        return product

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads."""
        return int((self.x if self.matrix is None else self.matrix).nbytes)

    def trace(self) -> float:
        """Trace of S, tr S = ||x||_F^2."""
        return float(np.vdot(self.x, self.x))

    def norm(self) -> float:
        """Largest eigenvalue of S, lambda_1(S) = ||x||_2^2."""
        if self.matrix is not None:
            last = self.matrix.shape[0] - 1
            return float(eigvalsh(self.matrix, subset_by_index=[last, last])[0])
        if min(self.x.shape) <= _DENSE:
            return float(np.linalg.norm(self.x, 2)) ** 2
        start = np.ones(min(self.x.shape))  # a fixed start, so that the result does not vary from call to call
        return float(svds(self.x, k=1, return_singular_vectors=False, v0=start)[0]) ** 2


def orth(matrix: Array) -> Array:
    """Orthonormalise columns: return Q of the QR decomposition whose R has a non-negative diagonal.

    Q is unique for full column rank. Of a stack, (..., features, columns), each matrix is orthonormalised by itself.

    Raises:
        DivergenceError: an entry is NaN or infinite.
    """
    if not np.isfinite(matrix).all():
        raise DivergenceError("a basis to orthonormalise holds NaN or infinity: lower the step size, or the noise")
    q, r = np.linalg.qr(matrix)
    signs = np.where(np.diagonal(r, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
    basis: Array = q * signs[..., None, :]
    return basis


def check_orthonormal(basis: Array) -> None:
    """Raise `DataError` unless the columns of a finite (features, rank) matrix are orthonormal, up to rounding."""
    with np.errstate(over="ignore"):
        worst = float(np.abs(basis.T @ basis - np.eye(basis.shape[1])).max(initial=0.0))
    if not worst <= _ROUNDING:
        raise DataError(f"the basis is not orthonormal: Z^T Z differs from I by {worst:.3g}")


def random_basis(features: int, rank: int, rng: np.random.Generator) -> Array:
    """Draw the orthonormalised columns of a matrix of entries uniform in [-1, 1]  (faps section 5.2)."""
    return orth(rng.uniform(-1, 1, (features, rank)))


def off(basis: Array, matrix: Array) -> Array:
    """Return the part of a matrix outside a subspace, (I - V V^T) M for V = `basis` orthonormal; stacks are allowed."""
    outside: Array = matrix - basis @ (basis.mT @ matrix)
    return outside


def check_rank(rank: int, public: Public) -> None:
    """Raise `ConfigError` unless `rank` components exist."""
    check_integer("rank", rank, 1, public.features, note="(the number of features)")


def energy_bound(public: Public, *, normalised: bool = False) -> float:
    """Bound tr S_i >= lambda_1(S_i), or tr S_i / n_i if `normalised`, by rows x features x feature_bound^2."""
    rows = 1 if normalised else max(public.rows)
    return rows * public.features * public.feature_bound**2 * SLACK


def product_bound(public: Public) -> float:
    """Bound the entries of S_i V for orthonormal V.

    A row of S_i has `features` entries of at most rows x feature_bound^2, so its norm is at most sqrt(features) times
    that; a column of V has norm 1.
    """
    return energy_bound(public) / math.sqrt(public.features)
