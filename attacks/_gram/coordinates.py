"""Parametrise an unknown (n, n) Gram matrix S for fits that vary S and simulate a client.

`SymmetricMatrices` takes the n (n + 1) / 2 entries of S as parameters. `LowRankFactor` takes the entries of F in
S = F F^T, which are fewer where the rank of S is known to be small. Both give the derivatives of S by the parameters as
products dS V, so that a simulation never forms the n x n matrices dS.

Attacks on FAPS, LocalPower, FedPG and FedPE fit these parameters by Levenberg-Marquardt. <M, N> = tr(M^T N).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from securefed._tensors import Array


class GramDirections(Protocol):
    """The derivatives dS of a Gram matrix S(x) by each of its parameters."""

    @property
    def count(self) -> int:
        """Return the number of parameters."""
        ...

    def times(self, V: Array) -> Array:
        """Return dS V for every parameter, (n, count, columns).

        Args:
            V: matrix, (n, columns).
        """
        ...

    def slopes(self, M: Array) -> Array:
        """Return <M, dS> for every parameter, (count,).

        Args:
            M: symmetric matrix, (n, n).
        """
        ...


class GramParametrisation(Protocol):
    """A parametrisation S(x) of symmetric (n, n) matrices by x, (count,)."""

    @property
    def size(self) -> int:
        """Return n."""
        ...

    @property
    def count(self) -> int:
        """Return the number of parameters."""
        ...

    @property
    def determined(self) -> int:
        """Return the number of directions of x in which S changes, the most that a fit to S can determine."""
        ...

    def matrix(self, x: Array) -> Array:
        """Return S(x)."""
        ...

    def coordinates(self, matrix: Array) -> Array:
        """Return some x with S(x) = matrix, or as near to it as the parametrisation allows."""
        ...

    def at(self, x: Array) -> GramDirections:
        """Return the derivatives of S at x."""
        ...


@dataclass(frozen=True)
class SymmetricMatrices:
    """Parametrise symmetric (n, n) matrices by their coordinates in an orthonormal basis.

    Attributes:
        size: n.
        i: row of each coordinate, (n (n + 1) / 2,).
        j: column of each coordinate, i <= j.
        weight: entry of the coordinate's basis matrix at (i, j) and (j, i): 1 on the diagonal, 1/sqrt(2) elsewhere, so
            that basis matrices have norm 1 and ||x|| = ||S||_F.
    """

    size: int
    i: Array
    j: Array
    weight: Array

    @classmethod
    def of(cls, size: int) -> SymmetricMatrices:
        """Return the coordinates of (size, size) matrices."""
        i, j = np.triu_indices(size)
        return cls(size, i, j, np.where(i == j, 1.0, np.sqrt(0.5)))

    @property
    def count(self) -> int:
        """Return n (n + 1) / 2."""
        return len(self.i)

    @property
    def determined(self) -> int:
        """Return n (n + 1) / 2."""
        return len(self.i)

    def matrix(self, x: Array) -> Array:
        """Return the matrix with these coordinates; it is a `DualArray` where they are one."""
        matrix: Array = (x * self.weight)[self._place]
        return matrix

    @cached_property
    def _place(self) -> Array:
        """Return the position of each entry's coordinate, (n, n)."""
        place = np.zeros((self.size, self.size), np.int64)
        place[self.i, self.j] = place[self.j, self.i] = np.arange(len(self.i))
        return place

    def coordinates(self, matrix: Array) -> Array:
        """Return the coordinates of a matrix."""
        return np.asarray(matrix[self.i, self.j] / self.weight)

    def at(self, x: Array) -> SymmetricMatrices:
        """Return the derivatives, which do not depend on x."""
        return self

    def times(self, V: Array) -> Array:
        """Return dS V for every coordinate, (n, count, columns).

        dS is weight (e_i e_j^T + e_j e_i^T), or e_i e_i^T on the diagonal, so that dS V has at most two rows that are
        not zero: row i is weight V_j, and row j is weight V_i.
        """
        out = np.zeros((self.size, len(self.i), V.shape[1]))
        every = np.arange(len(self.i))
        out[self.i, every] = self.weight[:, None] * V[self.j]
        out[self.j, every] = self.weight[:, None] * V[self.i]
        return out

    def slopes(self, M: Array) -> Array:
        """Return <M, dS> for every coordinate, (count,)."""
        return self.coordinates(M)


@dataclass(frozen=True)
class LowRankFactor:
    """Parametrise positive semidefinite S = F F^T of low rank by the entries of the factor F, (n, rank).

    F has far fewer entries than S where rank << n. S determines F only up to a rotation of its columns, so that S does
    not change in rank (rank - 1) / 2 directions of F.

    Attributes:
        size: n.
        rank: number of columns of F, an upper bound on the rank of S.
    """

    size: int
    rank: int

    @property
    def count(self) -> int:
        """Return the number of entries of F."""
        return self.size * self.rank

    @property
    def determined(self) -> int:
        """Return the number of entries of F less the rotations of its columns."""
        return self.count - self.rank * (self.rank - 1) // 2

    def factor(self, x: Array) -> Array:
        """Return F."""
        return x.reshape(self.size, self.rank)

    def matrix(self, x: Array) -> Array:
        """Return F F^T."""
        F = self.factor(x)
        return np.asarray(F @ F.T)

    def coordinates(self, matrix: Array) -> Array:
        """Return a factor of the nearest positive semidefinite matrix of this rank."""
        values, vectors = np.linalg.eigh(matrix)
        return np.asarray((vectors * np.sqrt(np.maximum(values, 0)))[:, -self.rank :].reshape(-1))

    def at(self, x: Array) -> _FactorDirections:
        """Return the derivatives of F F^T by the entries of F."""
        return _FactorDirections(self.factor(x))


@dataclass(frozen=True)
class _FactorDirections:
    """The derivatives dF F^T + F dF^T of F F^T by each entry of F."""

    F: Array

    @property
    def count(self) -> int:
        """Return the number of entries of F."""
        return self.F.size

    def times(self, V: Array) -> Array:
        """Return dS V for every entry of F, (n, count, columns)."""
        size, rank = self.F.shape
        # by F_ja, with F_a column a of F: dS = e_j F_a^T + F_a e_j^T
        out = self.F[:, None, :, None] * V[:, None, :]  # F_a e_j^T V, as (n, j, a, columns)
        every = np.arange(size)
        out[every, every] += self.F.T @ V  # e_j F_a^T V
        return np.asarray(out.reshape(size, size * rank, -1))

    def slopes(self, M: Array) -> Array:
        """Return <M, dS> for every entry of F: those of 2 M F, (count,)."""
        return np.asarray((2 * M @ self.F).reshape(-1))
