"""Data frames with the interfaces of pandas, Polars and Arrow, and the libraries' own where they are installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np

Columns = Sequence[tuple[str, Sequence[Any]]]
"""Names and values; a name may occur twice."""


def array(values: Sequence[Any]) -> Any:
    """The array that a library makes of values: numbers where none is missing or of another kind, else objects."""
    made = np.array(values, object)
    kinds = {type(value) for value in values}
    return np.array(values) if len(kinds) == 1 and kinds <= {int, float, bool} else made


@dataclass(frozen=True)
class Series:
    """A column as pandas has it."""

    values: Any
    ndim: int = 1

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    def to_numpy(self, dtype: Any = None) -> Any:
        return self.values if dtype is None else self.values.astype(dtype)


class PandasLike:
    """A frame as pandas has it: columns by place."""

    def __init__(self, columns: Columns) -> None:
        self._made = [Series(array(values)) for _, values in columns]
        self.columns = [name for name, _ in columns]
        self.dtypes = [series.dtype for series in self._made]

    @property
    def iloc(self) -> Any:
        made = self._made

        class Places:
            def __getitem__(self, key: tuple[slice, int]) -> Series:
                return made[key[1]]

        return Places()


@dataclass(frozen=True)
class PolarsSeries:
    """A column as Polars has it: its array turns integers beside gaps into floats."""

    name: str
    given: list[Any]
    dtype: str = field(init=False, default="Int64")

    def null_count(self) -> int:
        return sum(value is None for value in self.given)

    def to_list(self) -> list[Any]:
        return self.given

    def to_numpy(self) -> Any:
        return np.array([np.nan if value is None else value for value in self.given])


class PolarsLike:
    """A frame as Polars has it."""

    schema: Mapping[str, str] = {}

    def __init__(self, columns: Columns) -> None:
        self._made = [PolarsSeries(name, list(values)) for name, values in columns]

    def get_columns(self) -> list[PolarsSeries]:
        return self._made


@dataclass(frozen=True)
class ArrowColumn:
    """A column as Arrow has it."""

    given: list[Any]

    @property
    def null_count(self) -> int:
        return sum(value is None for value in self.given)

    def to_pylist(self) -> list[Any]:
        return self.given

    def to_numpy(self, zero_copy_only: bool = True) -> Any:
        assert not zero_copy_only
        return array(self.given)


class ArrowLike:
    """A table as Arrow has it."""

    def __init__(self, columns: Columns) -> None:
        self.columns = [ArrowColumn(list(values)) for _, values in columns]
        self.schema = SimpleNamespace(names=[name for name, _ in columns], types=["type"] * len(columns))

    def to_pydict(self) -> dict[str, Any]:
        raise NotImplementedError("it loses one of two columns of one name")


def _pandas_type(values: Sequence[Any]) -> str:
    """Return pandas' type for values with gaps; its own choice turns integers beside gaps into floats."""
    kinds = {type(value) for value in values if value is not None}
    return {int: "Int64", float: "Float64", bool: "boolean"}.get(kinds.pop(), "object")


def _pandas(columns: Columns) -> Any:
    pandas = import_module("pandas")
    made = [pandas.Series(pandas.array(list(values), dtype=_pandas_type(values))) for _, values in columns]
    frame = pandas.concat(made, axis=1)
    frame.columns = [name for name, _ in columns]
    return frame


def _arrow(columns: Columns) -> Any:
    arrow = import_module("pyarrow")
    return arrow.table([arrow.array(list(values)) for _, values in columns], names=[name for name, _ in columns])


FRAMES: dict[str, Callable[[Columns], Any]] = {
    "like pandas": PandasLike,
    "like Polars": PolarsLike,
    "like Arrow": ArrowLike,
}
if find_spec("pandas"):
    FRAMES["pandas"] = _pandas
if find_spec("polars"):
    FRAMES["polars"] = lambda columns: import_module("polars").DataFrame(dict(columns))
if find_spec("pyarrow"):
    FRAMES["pyarrow"] = _arrow
