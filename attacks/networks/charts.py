"""How unknown numbers become rows: entries themselves, coordinates in a known span, columns of mixed types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from securefed.public import require
from securefed.tensors import Array


class Chart(Protocol):
    """Unknowns (B, width) <-> rows (B, features)."""

    @property
    def width(self) -> int: ...

    def rows(self, unknowns: Tensor) -> Tensor:
        """(B, features)."""
        ...

    def unknowns(self, rows: Array) -> Array:
        """Unknowns (B, width) of (about) these rows."""
        ...


@dataclass(frozen=True)
class Entries:
    """The rows as they are."""

    features: int

    @property
    def width(self) -> int:
        return self.features

    def rows(self, unknowns: Tensor) -> Tensor:
        return unknowns

    def unknowns(self, rows: Array) -> Array:
        return np.asarray(rows, np.float64)


@dataclass(frozen=True)
class Span:
    """Rows in the span of the orthonormal rows of `basis` (width, features)."""

    basis: Array

    @property
    def width(self) -> int:
        return len(self.basis)

    def rows(self, unknowns: Tensor) -> Tensor:
        return unknowns @ torch.as_tensor(self.basis, dtype=unknowns.dtype)

    def unknowns(self, rows: Array) -> Array:
        return np.asarray(rows @ self.basis.T)


@dataclass(frozen=True)
class Mixed:
    """Tabular rows: each group of columns is a one-hot code, relaxed to a softmax of free scores; the rest continuous.

    Attributes:
        features: width of a row.
        groups: columns of each categorical feature; no column twice.
    """

    features: int
    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        columns = [column for group in self.groups for column in group]
        require(len(set(columns)) == len(columns), "a column belongs to one categorical feature only")
        require(not columns or max(columns) < self.features, f"the rows have {self.features} columns, 0 the first")
        require(all(len(group) >= 2 for group in self.groups), "a categorical feature has at least 2 columns")

    @property
    def width(self) -> int:
        return self.features

    def rows(self, unknowns: Tensor) -> Tensor:
        out = unknowns
        for group in self.groups:
            columns = torch.tensor(group)
            out = out.index_copy(-1, columns, torch.softmax(unknowns[..., columns], dim=-1))
        return out

    def unknowns(self, rows: Array) -> Array:
        out = np.array(rows, np.float64)
        for group in self.groups:
            shares = np.maximum(out[:, list(group)], 1e-3)
            out[:, list(group)] = np.log(shares / shares.sum(axis=1, keepdims=True))
        return out

    def rounded(self, rows: Array) -> Array:
        """Each categorical feature at its likeliest value."""
        out = np.array(rows, np.float64)
        for group in self.groups:
            columns = list(group)
            out[:, columns] = np.eye(len(group))[out[:, columns].argmax(axis=1)]
        return out


@dataclass(frozen=True)
class Continuous:
    """The continuous columns of mixed rows whose categories are known.

    Attributes:
        known: (B, features) rows with the categories in place.      columns: the ones that are searched for.
    """

    known: Array
    columns: Sequence[int]

    @property
    def width(self) -> int:
        return len(self.columns)

    def rows(self, unknowns: Tensor) -> Tensor:
        known = torch.as_tensor(self.known, dtype=unknowns.dtype)
        return known.index_copy(-1, torch.tensor(list(self.columns)), unknowns)

    def unknowns(self, rows: Array) -> Array:
        return np.asarray(rows[:, list(self.columns)])
