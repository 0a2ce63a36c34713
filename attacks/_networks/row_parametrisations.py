"""Map the unknowns of a search to candidate rows, in torch, so that a search may use fewer or freer unknowns.

Gradient inversion (`staged_inversion`) searches for B rows at a time. The unknowns are all entries of the rows,
coordinates in a known subspace, scores of one-hot coded columns, or the continuous columns beside known categories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from securefed._public import require
from securefed._tensors import Array


class RowParametrisation(Protocol):
    """Maps unknowns (B, width) to rows (B, features) and back."""

    def rows(self, unknowns: Tensor) -> Tensor:
        """Return the rows (B, features) of unknowns (B, width)."""
        ...

    def unknowns(self, rows: Array) -> Array:
        """Return the unknowns (B, width) of these rows, or of the nearest rows that have some."""
        ...


@dataclass(frozen=True)
class AllEntries:
    """The entries of the rows are the unknowns."""

    features: int

    def rows(self, unknowns: Tensor) -> Tensor:
        """Return the unknowns."""
        return unknowns

    def unknowns(self, rows: Array) -> Array:
        """Return the rows."""
        return np.asarray(rows, np.float64)


@dataclass(frozen=True)
class RowSpace:
    """Coordinates of rows in the span of the orthonormal rows of `basis` (width, features)."""

    basis: Array

    @property
    def width(self) -> int:
        """Unknowns of each row."""
        return len(self.basis)

    def rows(self, unknowns: Tensor) -> Tensor:
        """Return the rows with these coordinates."""
        return unknowns @ torch.as_tensor(self.basis, dtype=unknowns.dtype)

    def unknowns(self, rows: Array) -> Array:
        """Return the coordinates of the rows' projections."""
        return np.asarray(rows @ self.basis.T)


@dataclass(frozen=True)
class MixedColumns:
    """Tabular rows: each group of columns is a one-hot code, relaxed to a softmax of free scores; the rest are numbers.

    Attributes:
        features: width of a row.
        groups: columns of each categorical feature; no column stands in two groups.
    """

    features: int
    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        """Check the settings."""
        columns = [column for group in self.groups for column in group]
        require(len(set(columns)) == len(columns), "a column belongs to one categorical feature only")
        require(not columns or max(columns) < self.features, f"columns run from 0 to {self.features - 1}")
        require(all(len(group) >= 2 for group in self.groups), "a categorical feature has at least 2 columns")

    @property
    def continuous(self) -> list[int]:
        """The columns that belong to no group."""
        categorical = {column for group in self.groups for column in group}
        return [column for column in range(self.features) if column not in categorical]

    def rows(self, unknowns: Tensor) -> Tensor:
        """Return rows whose groups hold shares that sum to 1."""
        out = unknowns
        for group in self.groups:
            columns = torch.tensor(group)
            out = out.index_copy(-1, columns, torch.softmax(unknowns[..., columns], dim=-1))
        return out

    def unknowns(self, rows: Array) -> Array:
        """Return scores whose softmax is about these rows."""
        out = np.array(rows, np.float64)
        for group in self.groups:
            shares = np.maximum(out[:, list(group)], 1e-3)  # scores stay finite, and a search can raise every share
            out[:, list(group)] = np.log(shares / shares.sum(axis=1, keepdims=True))
        return out

    def rounded(self, rows: Array) -> Array:
        """Return the rows with each categorical feature at its likeliest value."""
        out = np.array(rows, np.float64)
        for group in self.groups:
            columns = list(group)
            out[:, columns] = np.eye(len(group))[out[:, columns].argmax(axis=1)]
        return out


@dataclass(frozen=True)
class ContinuousColumns:
    """The continuous columns of mixed rows whose categories are known.

    Attributes:
        known: (B, features) rows with the categories in place.
        columns: the columns that are searched for.
    """

    known: Array
    columns: Sequence[int]

    def rows(self, unknowns: Tensor) -> Tensor:
        """Return the known rows with these numbers in the continuous columns."""
        known_rows = torch.as_tensor(self.known, dtype=unknowns.dtype)
        return known_rows.index_copy(-1, torch.tensor(list(self.columns)), unknowns)

    def unknowns(self, rows: Array) -> Array:
        """Return the continuous columns."""
        return np.asarray(rows[:, list(self.columns)])
