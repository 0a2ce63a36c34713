"""Encode rows of numbers and categories as vectors, so that an error of a row can be measured.

The number of a category says nothing: 7 is no nearer to 8 than to 1. `training_secrets` scores rows in this form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._auditing.training.lookup_tables import LookupTable
from securefed._tensors import Array


@dataclass(frozen=True)
class RowEncoding:
    """Rows of numbers and categories as vectors whose distances mean something.

    A number counts in standard deviations of its column; a category is 1 at its own place, among those that occur, and
    0 elsewhere, so that one category is as far from another as from any.

    Attributes:
        numbers: columns of numbers.
        scale: (numbers,) their standard deviations.
        categories: by column of categories, those that occur.
    """

    numbers: tuple[int, ...]
    scale: Array
    categories: dict[int, Array]

    @classmethod
    def of(cls, tables: Sequence[LookupTable], flat: Array) -> RowEncoding | None:
        """Return the encoding of rows (rows, features); `None` where no column is one of categories."""
        chosen = sorted({column for table in tables for column, _ in table.columns})
        if not chosen:
            return None
        numbers = tuple(column for column in range(flat.shape[1]) if column not in chosen)
        spread = flat[:, list(numbers)].std(axis=0)
        return cls(
            numbers, np.where(spread > 0, spread, 1.0), {column: np.unique(flat[:, column]) for column in chosen}
        )

    def encode(self, flat: Array) -> Array:
        """Return rows (rows, features) as vectors."""
        parts = [flat[:, list(self.numbers)] / self.scale]
        parts += [(np.rint(flat[:, [column]]) == kinds).astype(np.float64) for column, kinds in self.categories.items()]
        return np.concatenate(parts, axis=1)

    def decode(self, vectors: Array) -> Array:
        """Return vectors as rows (rows, features), each with its likeliest categories."""
        out = np.zeros((len(vectors), len(self.numbers) + len(self.categories)))
        out[:, list(self.numbers)] = vectors[:, : len(self.numbers)] * self.scale
        start = len(self.numbers)
        for column, kinds in self.categories.items():
            out[:, column] = kinds[np.argmax(vectors[:, start : start + len(kinds)], axis=1)]
            start += len(kinds)
        return out

    def named(self, part: str) -> str:
        """Return the name of a part, such as "column 3" of the vectors, as of the rows."""
        kind, _, place = part.partition(" ")
        if kind != "column":
            return part
        columns = [*self.numbers, *(c for c, kinds in self.categories.items() for _ in kinds)]
        return f"column {columns[int(place)]}"
