"""Parameters of an unknown Gram matrix: its entries, the entries of a factor where its rank is known to be small, or
either of what a known block leaves open."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from securefed.attacks.gram.tangents import left
from securefed.tensors import Array

_NO_RANK = 1e-9
"""Singular values below this, relative to the largest, are none."""


class Directions(Protocol):
    """The directions dS in which a Gram matrix moves, one for each parameter."""

    @property
    def count(self) -> int:
        """How many."""
        ...

    def times(self, V: Array) -> Array:
        """dS V for every direction: (n, count, columns)."""
        ...

    def slopes(self, M: Array) -> Array:
        """<M, dS> for every direction, M symmetric: (count,)."""
        ...


class Coordinates(Protocol):
    """A parametrisation S(x)."""

    @property
    def size(self) -> int:
        """n."""
        ...

    @property
    def count(self) -> int:
        """Number of parameters."""
        ...

    @property
    def determined(self) -> int:
        """How many of them S itself determines."""
        ...

    def matrix(self, x: Array) -> Array:
        """S(x)."""
        ...

    def coordinates(self, matrix: Array) -> Array:
        """Some x with S(x) = matrix, or near it."""
        ...

    def at(self, x: Array) -> Directions:
        """dS/dx."""
        ...


@dataclass(frozen=True)
class Symmetric:
    """Coordinates of symmetric (n, n) matrices in an orthonormal basis.

    Attributes:
        size: n.      i, j: row and column of each coordinate, i <= j.      weight: 1 on the diagonal, else 1/sqrt(2).
    """

    size: int
    i: Array
    j: Array
    weight: Array

    @classmethod
    def of(cls, size: int) -> Symmetric:
        i, j = np.triu_indices(size)
        return cls(size, i, j, np.where(i == j, 1.0, np.sqrt(0.5)))

    @property
    def count(self) -> int:
        return len(self.i)

    @property
    def determined(self) -> int:
        return len(self.i)

    def matrix(self, x: Array) -> Array:
        out = np.zeros((self.size, self.size))
        out[self.i, self.j] = out[self.j, self.i] = x * self.weight
        return out

    def coordinates(self, matrix: Array) -> Array:
        return np.asarray(matrix[self.i, self.j] / self.weight)

    def at(self, x: Array) -> Symmetric:
        return self

    def times(self, V: Array) -> Array:
        out = np.zeros((self.size, len(self.i), V.shape[1]))
        every = np.arange(len(self.i))
        out[self.i, every] = self.weight[:, None] * V[self.j]
        out[self.j, every] = self.weight[:, None] * V[self.i]
        return out

    def slopes(self, M: Array) -> Array:
        return self.coordinates(M)


@dataclass(frozen=True)
class LowRank:
    """Entries of F, (n, rank), with S = F F^T: positive semidefinite, and far fewer than entries of S where rank << n.

    F is determined up to a rotation of its columns: rank (rank - 1) / 2 directions change nothing.
    """

    size: int
    rank: int

    @property
    def count(self) -> int:
        return self.size * self.rank

    @property
    def determined(self) -> int:
        return self.count - self.rank * (self.rank - 1) // 2

    def factor(self, x: Array) -> Array:
        """F."""
        return x.reshape(self.size, self.rank)

    def matrix(self, x: Array) -> Array:
        F = self.factor(x)
        return np.asarray(F @ F.T)

    def coordinates(self, matrix: Array) -> Array:
        """Of the nearest positive semidefinite matrix of this rank."""
        values, vectors = np.linalg.eigh(matrix)
        return np.asarray((vectors * np.sqrt(np.maximum(values, 0)))[:, -self.rank :].reshape(-1))

    def at(self, x: Array) -> _Factor:
        return _Factor(self.factor(x))


@dataclass(frozen=True)
class _Factor:
    """d(F F^T) = dF F^T + F dF^T."""

    F: Array

    @property
    def count(self) -> int:
        return self.F.size

    def times(self, V: Array) -> Array:
        size, rank = self.F.shape
        out = self.F[:, None, :, None] * V[:, None, :]  # F_a e_j^T V, as (n, j, a, columns)
        every = np.arange(size)
        out[every, every] += self.F.T @ V  # e_j F_a^T V
        return np.asarray(out.reshape(size, size * rank, -1))

    def slopes(self, M: Array) -> Array:
        return np.asarray((2 * M @ self.F).reshape(-1))


@dataclass(frozen=True)
class Anchored:
    """S whose block below the first p rows is known: S = [A, G^T; G, G A^-1 G^T + R] with A = L L^T.

    Attributes:
        block: G, (n - p, p).      rest: parameters of the Schur complement R, (n - p, n - p).

    The parameters are the lower triangle of L, then those of R. S >= 0 exactly where R >= 0.
    """

    block: Array
    rest: Coordinates

    @property
    def size(self) -> int:
        return sum(self.block.shape)

    @property
    def count(self) -> int:
        return self._corner + self.rest.count

    @property
    def determined(self) -> int:
        return self._corner + self.rest.determined

    def matrix(self, x: Array) -> Array:
        L = self._lower(x)
        half = np.linalg.solve(L, self.block.T)  # L^-1 G^T
        rest = self.rest.matrix(x[self._corner :])
        return np.block([[L @ L.T, self.block.T], [self.block, half.T @ half + rest]])

    def coordinates(self, matrix: Array) -> Array:
        p = self.block.shape[1]
        values, vectors = np.linalg.eigh(matrix[:p, :p])
        root = vectors * np.sqrt(np.maximum(values, 1e-9 * max(values[-1], 1e-300)))
        L = np.asarray(np.linalg.qr(root.T, mode="r")).T
        half = np.linalg.solve(L, self.block.T)
        return np.concatenate([L[np.tril_indices(p)], self.rest.coordinates(matrix[p:, p:] - half.T @ half)])

    def at(self, x: Array) -> _Anchored:
        L = self._lower(x)
        columns = np.linalg.solve(L @ L.T, self.block.T).T
        return _Anchored(L, columns, self.rest.at(x[self._corner :]))

    @property
    def _corner(self) -> int:
        p = int(self.block.shape[1])
        return p * (p + 1) // 2

    def _lower(self, x: Array) -> Array:
        p = self.block.shape[1]
        L = np.zeros((p, p))
        L[np.tril_indices(p)] = x[: self._corner]
        return L


@dataclass(frozen=True)
class Cornered:
    """S of rank m <= p whose block G below the first p rows is known and has that rank.

    With G = Q T, Q orthonormal, (n - p, m), S = F F^T with F = [T^T L^-T; Q L]: the m (m + 1) / 2 entries of the lower
    triangle of L are all that is open, at any n.

    Attributes:
        outside: Q.      inside: T, (m, p).
    """

    outside: Array
    inside: Array

    @classmethod
    def of(cls, block: Array, rank: int) -> Cornered:
        """Of G; where it has a smaller rank, S has."""
        U, s, Vt = np.linalg.svd(block, full_matrices=False)
        rank = min(rank, max(1, int(np.sum(s > _NO_RANK * s[0]))))
        return cls(U[:, :rank], s[:rank, None] * Vt[:rank])

    @property
    def size(self) -> int:
        return len(self.outside) + int(self.inside.shape[1])

    @property
    def count(self) -> int:
        rank = len(self.inside)
        return rank * (rank + 1) // 2

    @property
    def determined(self) -> int:
        return self.count

    def matrix(self, x: Array) -> Array:
        F = self._factor(self._lower(x))
        return np.asarray(F @ F.T)

    def coordinates(self, matrix: Array) -> Array:
        p = self.inside.shape[1]
        values, vectors = np.linalg.eigh(self.outside.T @ matrix[p:, p:] @ self.outside)
        root = vectors * np.sqrt(np.maximum(values, 1e-9 * max(values[-1], 1e-300)))
        L = np.asarray(np.linalg.qr(root.T, mode="r")).T
        return np.asarray(L[np.tril_indices(len(L))])

    def at(self, x: Array) -> _Cornered:
        L = self._lower(x)
        inverse, (i, j) = np.linalg.inv(L), np.tril_indices(len(L))
        every = np.arange(len(i))
        lower = np.zeros((len(i), len(L), len(L)))
        lower[every, i, j] = 1.0
        above = -self.inside.T @ inverse.T @ lower.transpose(0, 2, 1) @ inverse.T
        return _Cornered(self._factor(L), np.concatenate([above, self.outside @ lower], axis=1))

    def _factor(self, L: Array) -> Array:
        return np.vstack([np.linalg.solve(L, self.inside).T, self.outside @ L])

    def _lower(self, x: Array) -> Array:
        L = np.zeros((len(self.inside),) * 2)
        L[np.tril_indices(len(L))] = x
        return L


@dataclass(frozen=True)
class _Cornered:
    """d(F F^T) where F moves so, (count, n, m)."""

    F: Array
    moves: Array

    @property
    def count(self) -> int:
        return len(self.moves)

    def times(self, V: Array) -> Array:
        return np.asarray((self.moves @ (self.F.T @ V) + self.F @ (self.moves.mT @ V)).transpose(1, 0, 2))

    def slopes(self, M: Array) -> Array:
        return np.asarray(2 * np.tensordot(self.moves, M @ self.F, 2))


@dataclass(frozen=True)
class _Anchored:
    """dA = dL L^T + L dL^T and d(G A^-1 G^T) = -H dA H^T with H = G A^-1."""

    L: Array
    columns: Array
    rest: Directions

    @property
    def count(self) -> int:
        return len(self._corner) + self.rest.count

    def times(self, V: Array) -> Array:
        p = len(self.L)
        corner = self._corner
        out = np.zeros((len(V), self.count, V.shape[1]))
        out[:p, : len(corner)] = (corner @ V[:p]).transpose(1, 0, 2)
        out[p:, : len(corner)] = left(-self.columns, (corner @ (self.columns.T @ V[p:])).transpose(1, 0, 2))
        out[p:, len(corner) :] = self.rest.times(V[p:])
        return out

    def slopes(self, M: Array) -> Array:
        p = len(self.L)
        corner = M[:p, :p] - self.columns.T @ M[p:, p:] @ self.columns
        return np.concatenate([np.tensordot(self._corner, corner, 2), self.rest.slopes(M[p:, p:])])

    @cached_property
    def _corner(self) -> Array:
        """dA by the entries of L, (p (p + 1) / 2, p, p)."""
        p = len(self.L)
        i, j = np.tril_indices(p)
        out = np.zeros((len(i), p, p))
        every = np.arange(len(i))
        out[every, i] += self.L[:, j].T
        out[every, :, i] += self.L[:, j].T
        return out
