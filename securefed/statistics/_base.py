"""The base class of a statistic: what each party adds to the sum, and what follows from the sum.

All parties agree on `terms`, which fix the tensors that are summed, public bounds on their entries, and the defence:
how the sum is made (in the clear, masked, encrypted, noised). Each party computes its `summand`, `securefed.parties`
carries out the sum, and the holder of the result computes the `estimate`. Exact defences sum in fixed point: integers
that stand for multiples of a small step. So a sum has a known largest error. A tensor's sensitivity is the largest
change of its sum, in L2 norm, if one row is added or removed.

Noise for single rows has one standard deviation for all entries, in proportion to the sensitivity of all tensors
together. In the tensors' own units the sum of ages up to 120 would set the noise of the count beside it too, which
would drown, and so would the fixed-point step for blood platelets set that of ages. So each entry is summed in units of
its own: the scale of its columns (`_scales`), where these have bounds of their own, and the power of two at or above
the tensor's sensitivity. All are powers of two: dividing by them is exact. `_summand` and `_value` know nothing of
units.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, get_args

import numpy as np

from securefed._hyperparameters import check_choice
from securefed._tensors import Array, real_array
from securefed.datasets._tables.frames import one_column
from securefed.errors import ConfigError, DataError
from securefed.parties._result import SumResult
from securefed.parties._terms_parts import SummedTensor
from securefed.statistics._columns import Wanted, has_names, power_of_two, read_columns
from securefed.statistics._estimate import Estimate, Labels, Sums
from securefed.statistics._one_sum import OneSum, Rows

Outliers = Literal["refuse", "omit", "omit entries"]
_OF_ROWS: Final = ("count", "counts")
"""Tensors of numbers of rows, which `least_rows` of the terms is compared with."""
_ROUNDING: Final = 1e-9
"""Relative rounding error that the products of a million rows stay far below."""


@dataclass(frozen=True)
class Statistic(OneSum[Estimate]):
    """A statistic that follows from one sum over all parties' rows.

    A class writes `tensors`, `_check`, `_within`, `_declared`, `_summand` and `_value`.

    Attributes:
        outliers: what happens to a row that is not finite (as where a value is missing) or beyond the declared bounds.
            "refuse": its party takes no part. "omit": the row is left out of all sums, of the count too, so that the
            statistic is that of the other rows; noise for single rows needs this (see `terms`). "omit entries", for
            statistics of single columns: an entry is left out of the sums of its own column alone, whose rows are
            counted apart; with noise for single rows, k such counts raise the noise, by up to the root of k.

    Raises:
        ConfigError: another word, or entries to be omitted from a statistic of whole rows.
    """

    by_column: ClassVar[bool] = False
    """Whether each column is summed for itself, so that single entries can be left out."""
    takes_target: ClassVar[bool] = False
    """Whether the statistic uses `y`."""
    one_sum: ClassVar[bool] = True
    """Whether one sum is enough; of a model that iterates, it is not."""

    outliers: Outliers = field(default="refuse", kw_only=True)

    def __post_init__(self) -> None:
        check_choice("outliers", self.outliers, get_args(Outliers))
        if self.outliers == "omit entries" and not self.by_column:
            raise ConfigError(
                f"{type(self).__name__} is of whole rows, of which no single entry can be left out; write "
                "outliers='omit', which leaves out rows"
            )

    @abstractmethod
    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return the tensors that each party adds to the sum, the first of them `count`, with public bounds.

        Entries are in the units of `_scales`.
        """

    @abstractmethod
    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        """Compute one party's tensors, by name, from its rows, which are known to keep to the bounds.

        Where entries are omitted, those left out are NaN.
        """

    @abstractmethod
    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        """Return the value, the bound on its fixed-point error (of its shape), and details by name, from the sums."""

    @abstractmethod
    def _check(self, x: Array, y: Array | None) -> None:
        """Raise `DataError` where shapes or the number of rows are not as declared."""

    @abstractmethod
    def _within(self, x: Array, y: Array | None) -> Array:
        """Return whether rows that are finite keep to the declared bounds, (rows,); if `by_column`, of x's shape."""

    @abstractmethod
    def _declared(self) -> str:
        """Return the bounds of a row in words, for errors."""

    def _wanted(self) -> tuple[Wanted, ...]:
        """Return the columns that are read from a table with names; all of them where there are none."""
        return tuple(map(Wanted, getattr(self, "columns", ())))

    def _made(self, x: Array) -> Array:
        """Return the columns of the statistic, made from those that were read."""
        return x

    def _target(self) -> str:
        """Return the name of the column of targets, empty for none."""
        return ""

    def _labels(self, value: Array) -> Labels:
        """Return for each axis of a value the names of its entries."""
        return tuple(tuple(map(str, range(length))) for length in value.shape)

    def _scales(self) -> Mapping[str, float | Array]:
        """Return by name the unit of each tensor's entries, a power of two for each; 1 for those that are not named."""
        return {}

    def _refusing(self) -> str:
        return type(self).__name__ if self.outliers == "refuse" else ""

    def _units(self) -> dict[str, float]:
        """Return by name the unit in which each tensor is summed; 1 for numbers of rows, which clients compare."""
        known = {tensor.name: tensor.sensitivity or 1.0 for tensor in self.tensors()}
        return {name: 1.0 if name in _OF_ROWS else power_of_two(size) for name, size in known.items()}

    def summed_tensors(self) -> tuple[SummedTensor, ...]:
        """Return the tensors of the sum as the terms declare them, each in the unit in which it is summed."""
        units = self._units()
        return tuple(
            replace(
                tensor, bound=tensor.bound / units[tensor.name],
                sensitivity=tensor.sensitivity and tensor.sensitivity / units[tensor.name],
            )
            for tensor in self.tensors()
        )  # fmt: skip

    def summand(self, x: Rows, y: Rows | None = None) -> dict[str, Array]:
        """Compute one party's part of the sum: the update for `SumClient.receive`, each tensor in its own unit.

        Give it as a function, `receive(request, lambda: statistic.summand(x))`: a party for which it raises then takes
        no part, and the server does not learn which party that was. A plain call raises instead.

        Args:
            x: rows, (rows, features), or a table with named columns (`read_table`, a data frame of pandas, Polars or
                Arrow, a mapping from names to values). Of such a table a statistic with `columns` reads these, others
                all columns, which must be numbers.
            y: targets, (rows,), for statistics that have them.

        Raises:
            DataError: another number of columns, a column that is lacking or holds no numbers (by name, with its type),
                a level that was not agreed, or more rows than declared; where `outliers` is "refuse", also a row that
                is not finite or beyond the declared bounds.
        """
        if isinstance(x, tuple) and y is None:
            raise DataError("x is a pair, as `simulate` takes it; here rows and targets are two: summand(x, y)")
        refuse = self.outliers == "refuse"
        rows = self._made(read_columns(x, self._wanted(), refuse=refuse))
        if y is None and self._target() and has_names(x):
            y = read_columns(x, (Wanted(self._target()),), refuse=refuse)[:, 0]
        target = None if y is None else np.asarray(real_array(one_column(y, "y"), "y"), np.float64)
        self._check(rows, target)
        if self.outliers == "omit entries":
            own = self._summand(np.where(self._entries(rows), rows, np.nan), target)
        else:
            kept = self._kept(rows, target)
            own = self._summand(rows[kept], None if target is None else target[kept])
        units, scales = self._units(), self._scales()
        return {
            t.name: _within_bound(own[t.name] / scales.get(t.name, 1.0), t.bound) / units[t.name]
            for t in self.tensors()
        }

    def _entries(self, x: Array) -> Array:
        """Return which entries are finite and within the bounds, of x's shape."""
        finite = np.isfinite(x)
        return np.asarray(finite & self._within(np.where(finite, x, 0.0), None))

    def _kept(self, x: Array, y: Array | None) -> Array:
        """Return which rows are summed, (rows,), or refuse them all."""
        finite = np.asarray(np.isfinite(x).all(1))
        if y is not None:
            finite = finite & np.isfinite(y)
        kept = np.zeros(len(x), bool)
        within = self._within(x[finite], None if y is None else y[finite])
        kept[finite] = within.all(1) if within.ndim == 2 else within
        if self.outliers == "omit" or kept.all():
            return kept
        first = int(np.argmin(kept))
        reason = f"beyond what was declared: {self._declared()}" if finite[first] else "not finite"
        raise DataError(
            f"{np.count_nonzero(~kept)} of {len(x)} rows cannot be summed; the first, row {first}, is {reason}. "
            "Mend the rows, alike at all parties, or leave such rows out of all sums with outliers='omit'"
        )

    def estimate(self, result: SumResult) -> Estimate:
        """Compute the statistic from the result of the sum.

        Raises:
            ConfigError: no result of a sum.
            DataError: the sum holds too few rows for the statistic.
        """
        check_result(result)
        noised, units, scales = result.plan.noised, self._units(), self._scales()
        factor = {name: unit * scales.get(name, 1.0) for name, unit in units.items()}
        error: dict[str, Any] = {name: result.error[name] * result.weight * factor[name] for name in units}
        total = {name: np.asarray(result.total[name] * factor[name]) for name in units}
        noise = {name: result.noise[name] * factor[name] for name in units if name in result.noise}
        for name in _OF_ROWS:
            if name in total and not noised and error[name] < 0.5:  # whole rows: rounding is exact
                total[name], error[name] = np.rint(total[name]), 0.0
        if not noised and total["count"] < 1:
            raise DataError("no party in the sum has any rows")
        value, bound, detail = self._value(Sums(total, error, noised, noise))
        return self._estimate(
            Estimate(
                value, bound, noise, float(total["count"]), result.survivors, result.plan, detail, self._labels(value)
            )
        )

    def _estimate(self, found: Estimate) -> Estimate:
        """Return the result in a class of its own, where the statistic has one."""
        return found


def check_result(result: Any) -> None:
    """Raise `ConfigError` unless this is the result of a sum."""
    if result is None:
        raise ConfigError("no round is complete: `result` is None until the server has received all replies")
    if not isinstance(result, SumResult):
        raise ConfigError(f"estimate needs a SumServer's `result`; got {type(result).__name__}")


def _within_bound(total: Array, bound: float) -> Array:
    """Take back what rounding added beyond a bound, which exact sums keep to and which would void the round."""
    return np.where(np.abs(total) <= bound * (1 + _ROUNDING), np.clip(total, -bound, bound), total)


def check_table(x: Array, columns: int, most: int, *, of: str = "") -> None:
    """Raise `DataError` unless `x` is a table with so many columns, and with `most` rows at the most.

    Args:
        x: one party's rows.
        columns: number of columns.
        most: number of rows that is declared as the most of one party.
        of: what the columns hold, such as " of codes", for the error.
    """
    if x.ndim != 2 or x.shape[1] != columns:
        raise DataError(f"x must have {columns} columns{of}, as declared (features=...); got shape {x.shape}")
    if len(x) > most:
        raise DataError(f"{len(x)} rows, and {most} are declared as the most of one party; declare more")
