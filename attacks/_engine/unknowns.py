"""Coordinates of the matrices that an attack fits to a client's messages: a Gram matrix, or distances of columns.

Many steps depend on the rows X, (rows, features), only through X^T X or through the distances between the columns. Rows
that mix by an orthogonal matrix then send the same messages, so that a fit of the rows themselves has many solutions.
`GramFactor` takes one of them: rows in the form of the triangular factor of a QR decomposition, with zero rows below.
The client's step runs on such rows as on any others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from securefed._tensors import Array

Unknown = Literal["rows", "gram", "distances"]
"""The client's rows, their Gram matrix X^T X, or the squared distances between their columns."""


@dataclass(frozen=True)
class RowEntries:
    """Rows X; their entries, in units of `bound`, are the coordinates.

    Attributes:
        size: number of rows of X.
        features: number of columns.
        bound: size of the coordinates' unit.
    """

    size: int
    features: int
    bound: float
    unit: ClassVar[float] = 1.0
    """Size of a coordinate that counts as small."""

    @property
    def count(self) -> int:
        """Return the number of coordinates."""
        return self.size * self.features

    def rows(self, x: Any) -> Any:
        """Return X, (size, features), an array or a `DualArray` as the coordinates are."""
        return self.bound * x.reshape(self.size, self.features)


@dataclass(frozen=True)
class GramFactor:
    """Rows X = F B^T, with F upper triangular in its first rows and zero below; its entries are the coordinates.

    Attributes:
        kind: what is sought.
        size: number of rows of X.
        basis: B, (features, width), with orthonormal columns.
    """

    kind: Unknown
    size: int
    basis: Array
    unit: ClassVar[float] = 1e-300

    @classmethod
    def of(cls, kind: Unknown, size: int, like: Array) -> GramFactor:
        """Return the coordinates in the principal directions of some rows, the largest first.

        A search scales each coordinate by itself, and small directions are far less certain than large ones. For
        distances the directions are those whose entries sum to 0, since what is added to all columns does not show.

        Args:
            kind: what is sought.
            size: number of rows of X.
            like: rows like X, (any number, features).
        """
        features = like.shape[1]
        inside = np.eye(features)
        if kind == "distances":
            inside = np.linalg.qr(inside - 1 / features)[0][:, :-1]
        return cls(kind, size, inside @ np.linalg.eigh(inside.T @ like.T @ like @ inside)[1][:, ::-1])

    @property
    def features(self) -> int:
        """Return the number of columns of X."""
        return len(self.basis)

    @cached_property
    def _entries(self) -> tuple[Array, Array]:
        """Return row and column of each coordinate in F."""
        width = self.basis.shape[1]
        return np.triu_indices(min(self.size, width), m=width)

    @property
    def count(self) -> int:
        """Return the number of coordinates."""
        return len(self._entries[0])

    def rows(self, x: Any) -> Any:
        """Return X, (size, features), an array or a `DualArray` as the coordinates are."""
        place = np.full((self.size, self.basis.shape[1]), self.count)  # of each entry of F: its coordinate, or the 0
        place[self._entries] = np.arange(self.count)
        return np.concatenate([x, np.zeros(1)])[place] @ self.basis.T

    def coordinates(self, rows: Array) -> Array:
        """Return the coordinates of rows with the same Gram matrix or distances; of no more rows than `size` or B has.

        Rows beyond that count add to the Gram matrix, of which the part of highest rank allowed is kept.
        """
        inside = rows @ self.basis
        rank = min(self.size, inside.shape[1])
        if len(inside) > rank:
            _, s, Vt = np.linalg.svd(inside, full_matrices=False)
            inside = (s[:, None] * Vt)[:rank]
        factor = np.zeros((rank, inside.shape[1]))
        triangle = np.linalg.qr(inside, mode="r")
        factor[: len(triangle)] = triangle
        return factor[self._entries]

    def value(self, x: Any) -> Any:
        """Return X^T X, or the squared distances between the columns of X, (features, features)."""
        X = self.rows(x)
        S = X.T @ X
        if self.kind == "gram":
            return S
        squares = np.diagonal(S)
        return squares[:, None] + squares - 2 * S

    def changed(self, rows: Array, rng: np.random.Generator) -> Array:
        """Return other rows with the same Gram matrix or distances, drawn at random."""
        mixed = np.linalg.qr(rng.normal(size=(len(rows), len(rows))))[0] @ rows
        scale = float(np.sqrt(np.mean(rows**2)))
        return np.asarray(mixed if self.kind == "gram" else mixed + scale * rng.normal(size=(len(rows), 1)))
