"""Parametrise an unknown (n, n) Gram matrix S for fits that vary S and simulate a client.

`SymmetricMatrices` takes the n (n + 1) / 2 entries of S as parameters. `LowRankFactor` takes the entries of F in
S = F F^T, which are fewer where the rank of S is known to be small.

Attacks on FAPS, LocalPower, FedPG and FedPE fit these parameters by Levenberg-Marquardt.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from securefed._tensors import Array


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

    def matrix(self, x: Any) -> Any:
        """Return S(x), a `DualArray` where x is one."""
        ...

    def coordinates(self, matrix: Array) -> Array:
        """Return some x with S(x) = matrix, or as near to it as the parametrisation allows."""
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

    def matrix(self, x: Any) -> Any:
        """Return the matrix with these coordinates."""
        return (x * self.weight)[self._place]

    @cached_property
    def _place(self) -> Array:
        """Return the position of each entry's coordinate, (n, n)."""
        place = np.zeros((self.size, self.size), np.int64)
        place[self.i, self.j] = place[self.j, self.i] = np.arange(len(self.i))
        return place

    def coordinates(self, matrix: Array) -> Array:
        """Return the coordinates of a matrix."""
        return np.asarray(matrix[self.i, self.j] / self.weight)


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

    def matrix(self, x: Any) -> Any:
        """Return F F^T."""
        F = x.reshape(self.size, self.rank)
        return F @ F.T

    def coordinates(self, matrix: Array) -> Array:
        """Return a factor of the nearest positive semidefinite matrix of this rank."""
        values, vectors = np.linalg.eigh(matrix)
        return np.asarray((vectors * np.sqrt(np.maximum(values, 0)))[:, -self.rank :].reshape(-1))
