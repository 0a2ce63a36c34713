"""The results of statistics: one value with its error (`Estimate`), and those of several statistics (`Estimates`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from securefed._extras import needed_for
from securefed._messages import ClientId
from securefed._tensors import Array
from securefed.defenses._base import Plan
from securefed.errors import UnknownNameError

Labels = tuple[tuple[str, ...], ...]
"""For each axis of a value, a label for each entry."""
Error = float | Array
"""A bound on an error: one number for all entries of an array, or an array of its shape."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """The value of a statistic.

    Attributes:
        value: the statistic; its shape is stated by its class.
        error: bound on the error by fixed point, of the shape of `value`; zeros where sums are made in the clear.
            It does not count noise, nor the rounding of float64 in each party's products and in the value.
        noise: standard deviation of the noise in an entry of each sum that the value is computed from, by name, or an
            array where each column has a bound of its own; empty without differential privacy.
        count: number of rows of the parties in the sum, as the sum says it (with noise: an estimate).
        survivors: ids of the parties in the sum; others dropped out.
        plan: the defence's plan.
        detail: further values that the class states, by name.
        labels: for each axis of `value`, the names of its entries.
    """

    value: Array
    error: Array
    noise: Mapping[str, Any]
    count: float
    survivors: tuple[ClientId, ...]
    plan: Plan = field(repr=False)
    detail: Mapping[str, Array]
    labels: Labels = ()

    def to_frame(self) -> Any:
        """Return the value as a pandas DataFrame, with labels.

        One number for each label comes with its error and with the details of the same shape, a column each; a matrix
        has a row for each label of the first axis; a table of more axes has one row for each cell.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        with needed_for("to_frame()"):
            import pandas as pd  # noqa: PLC0415 - optional
        labels = self.labels or tuple(tuple(map(str, range(length))) for length in self.value.shape)
        if self.value.ndim == 2:
            return pd.DataFrame(self.value, index=list(labels[0]), columns=list(labels[1]))
        if self.value.ndim > 2:
            index = pd.MultiIndex.from_product(labels)
            return pd.DataFrame({"value": self.value.ravel(), "error": self.error.ravel()}, index=index)
        beside = {name: np.ravel(found) for name, found in self.detail.items() if found.shape == self.value.shape}
        columns = {"value": np.ravel(self.value), "error": np.ravel(self.error)} | beside
        return pd.DataFrame(columns, index=list(labels[0]) if labels else ["value"])


@dataclass(frozen=True, eq=False)
class Estimates(Mapping[str, Estimate]):
    """The results of several statistics of one exchange, by the name of each, or by its place.

    Attributes:
        parts: by name, the result of each statistic.
        by_column: names of those that are of single columns of the data.
    """

    parts: Mapping[str, Any]
    by_column: frozenset[str] = frozenset()

    @overload
    def __getitem__(self, name: str) -> Any: ...
    @overload
    def __getitem__(self, name: int) -> Any: ...
    def __getitem__(self, name: str | int) -> Any:
        """Return a result by the name of its statistic, or by its place.

        Raises:
            UnknownNameError: no statistic has this name.
        """
        if isinstance(name, int):
            return list(self.parts.values())[name]
        if name not in self.parts:
            raise UnknownNameError("statistic of this exchange", str(name), self.parts)
        return self.parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __contains__(self, name: object) -> bool:
        return name in self.parts

    def to_frame(self) -> Any:
        """Return one pandas DataFrame: a row for each column of the data, a column for each number of each statistic.

        Statistics of one number for each column of the data stand side by side, by the column's name, and so do those
        of several numbers for each (quantiles, bins). Others, such as a contingency table, have a frame of their own:
        `estimates["table"].to_frame()`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        with needed_for("to_frame()"):
            import pandas as pd  # noqa: PLC0415 - optional
        columns = []
        for name, part in self.parts.items():
            if name not in self.by_column:
                continue
            frame = pd.DataFrame(part.value, index=list(part.labels[0]))
            ends = [name] if part.value.ndim == 1 else [f"{name} {label}" for label in part.labels[1]]
            columns.append(frame.set_axis(ends, axis=1))
        return pd.concat(columns, axis=1) if columns else pd.DataFrame()


@dataclass(frozen=True)
class Sums:
    """The sums of one round, as a statistic reads them.

    Attributes:
        total: by name, the sum over all parties.
        error: by name, the bound on the error of each entry by fixed point.
        noised: whether noise was added.
        noise: by name, the standard deviation of the noise in each entry; empty without noise.
    """

    total: Mapping[str, Array]
    error: Mapping[str, Any]
    noised: bool
    noise: Mapping[str, Any] = field(default_factory=dict)
