"""Compute a statistic of each group of rows: those with the same level of a category.

A row is in one group, so the sums of all groups together are as sensitive to a row as those of one. Groups of few rows
are left out of the value, as cells of a table are, with a second one where the total may be known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._tensors import Array
from securefed.errors import ConfigError, DataError
from securefed.parties._terms_parts import SummedTensor
from securefed.statistics._base import Statistic
from securefed.statistics._bins import LEAST_CELL
from securefed.statistics._columns import Level, Wanted, checked_levels
from securefed.statistics._estimate import Labels, Sums
from securefed.statistics._suppression import small_cells

_RENAMED: Final = {"count": "by.rows", "counts": "by.entries"}
"""Rows of one group may be few at a party; the least number of rows is of all its rows."""


@dataclass(frozen=True)
class GroupBy(Statistic):
    """A statistic of each group; the value has shape (groups, ...), behind the groups that of the statistic.

    `detail` holds the `rows` of each group, which groups were `suppressed`, the value of `all` groups together, and the
    statistic's own details, by group. Left out are groups with fewer rows than `least_cell`, and a second one; where
    entries are counted apart, a column of a group with fewer entries too. A group without rows, or with too few for the
    statistic, is NaN as well.

    Attributes:
        statistic: what is computed of each group; its `outliers` are those of the whole.
        by: name of the column of groups. In arrays it is the last column, and holds codes 0, 1, ...
        levels: the groups, texts or numbers, which all parties agree on.
        least_cell: fewest rows of a group in the value; 1 for any.

    Raises:
        ConfigError: a statistic that cannot be grouped, or levels that are not different.
    """

    statistic: Statistic
    by: str
    levels: tuple[Level, ...]
    least_cell: int = field(default=LEAST_CELL, kw_only=True)

    def __post_init__(self) -> None:
        if (
            not isinstance(self.statistic, Statistic)
            or isinstance(self.statistic, GroupBy)
            or not (self.statistic.one_sum)
        ):
            raise ConfigError(
                f"GroupBy needs one statistic of one sum, that is not grouped; got {type(self.statistic).__name__}"
            )
        if not isinstance(self.by, str):
            raise ConfigError(f"by must be the name of a column; got {self.by!r}")
        object.__setattr__(self, "levels", checked_levels(self.by, self.levels))
        object.__setattr__(self, "outliers", self.statistic.outliers)
        check_integer("least_cell", self.least_cell, 1)

    @property
    def takes_target(self) -> bool:  # type: ignore[override]
        """Whether the statistic uses `y`."""
        return self.statistic.takes_target

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return the count, and each tensor of the statistic for each group."""
        grouped = (
            replace(tensor, name=_name(tensor.name), shape=(len(self.levels), *tensor.shape))
            for tensor in self.statistic.tensors()
        )
        return (self.statistic.tensors()[0], *grouped)

    def _scales(self) -> Mapping[str, float | Array]:
        return {_name(name): scale for name, scale in self.statistic._scales().items()}

    def _wanted(self) -> tuple[Wanted, ...]:
        own = self.statistic._wanted()
        return (*own, Wanted(self.by, self.levels)) if own else ()

    def _target(self) -> str:
        return self.statistic._target()

    def _refusing(self) -> str:
        return self.statistic._refusing()

    def _check(self, x: Array, y: Array | None) -> None:
        self.statistic._check(x[:, :-1], y)

    def _within(self, x: Array, y: Array | None) -> Array:
        known = np.isin(x[:, -1], np.arange(len(self.levels)))
        within = self.statistic._within(x[:, :-1], y)
        return np.column_stack([within, known]) if within.ndim == 2 else np.asarray(within & known)

    def _declared(self) -> str:
        return f"{self.statistic._declared()}; {self.by} is one of {', '.join(map(repr, self.levels))}"

    def _labels(self, value: Array) -> Labels:
        return (tuple(map(str, self.levels)), *self.statistic._labels(value[0]))

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        parts = []
        for code in range(len(self.levels)):
            own = x[:, -1] == code
            parts.append(self.statistic._summand(x[own, :-1], None if y is None else y[own]))
        grouped = {_name(name): np.stack([part[name] for part in parts]) for name in parts[0]}
        return {"count": grouped["by.rows"].sum()} | grouped

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        rows = sums.total["by.rows"]
        rows = np.rint(rows) if not sums.noised and sums.error["by.rows"] < 0.5 else rows
        hidden = np.zeros(len(rows), bool) if sums.noised else small_cells(rows, self.least_cell, (0,))
        overall, _, detail = self.statistic._value(self._sums(sums, None))
        found = [None if hidden[at] or rows[at] < 1 else self._group(sums, at) for at in range(len(rows))]
        nothing: tuple[Array, Array, dict[str, Array]] = (
            np.full(overall.shape, np.nan),
            np.full(overall.shape, np.inf),
            {},
        )
        made = [one or nothing for one in found]
        details: dict[str, Array] = {
            name: np.stack([one[2].get(name, np.full(np.shape(of_all), np.nan)) for one in made])
            for name, of_all in detail.items()
        }
        value, error = np.stack([one[0] for one in made]), np.stack([one[1] for one in made])
        if "by.entries" in sums.total and not sums.noised:
            few = small_cells(np.rint(sums.total["by.entries"]), self.least_cell, (0,))  # of one column, in a group
            value, error = _without(few, value, np.nan), _without(few, error, np.inf)
            details = {name: _without(few, found, np.nan) for name, found in details.items()}
        details |= {"rows": np.where(hidden, np.nan, rows), "suppressed": hidden, "all": overall}
        return value, error, details

    def _group(self, sums: Sums, at: int) -> tuple[Array, Array, dict[str, Array]] | None:
        """Return the statistic of one group; `None` where it has too few rows for it."""
        try:
            return self.statistic._value(self._sums(sums, at))
        except DataError:
            return None

    def _sums(self, sums: Sums, at: int | None) -> Sums:
        """Return the sums of one group, or those of all groups together."""
        total: dict[str, Array] = {}
        error: dict[str, Any] = {}
        for tensor in self.statistic.tensors():
            grouped, moved = sums.total[_name(tensor.name)], sums.error[_name(tensor.name)]
            total[tensor.name] = np.asarray(grouped.sum(0) if at is None else grouped[at])
            error[tensor.name] = moved * (len(self.levels) if at is None else 1)
            if tensor.name in ("count", "counts") and not sums.noised and np.all(error[tensor.name] < 0.5):
                total[tensor.name], error[tensor.name] = np.rint(total[tensor.name]), 0.0
        return Sums(total, error, sums.noised)


def _without(few: Array, found: Array, instead: float) -> Array:
    """Leave out the columns of groups that have few entries, where an array has one number or more for each."""
    if found.shape[:2] != few.shape:
        return found
    return np.where(few.reshape(*few.shape, *(1,) * (found.ndim - 2)), instead, found)


def _name(name: str) -> str:
    """Return the name of a statistic's tensor for all groups."""
    return _RENAMED.get(name, f"by.{name}")
