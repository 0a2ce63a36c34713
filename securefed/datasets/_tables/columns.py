"""Hold one column of a table: its name, its type, and its values without loss.

Whole numbers stay integers, beyond 2^53 and beyond int64 too. Texts lose blanks at their ends and have one form of each
letter (Unicode's NFC), so that two spellings of one name are one name. `TextColumn` reads the cells of a text table
when they are asked for, `TypedColumn` holds values of a known type.
"""

from __future__ import annotations

import math
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np

from securefed._tensors import Array
from securefed.errors import DataError

Kind = Literal["integer", "real", "boolean", "text", "empty", "other"]
"""Type of a column's values; "other" is what is neither number, truth value nor text, such as dates and lists."""
EXACT: Final = 2**53
"""Integers of larger size are not all float64 numbers: neighbours become one."""
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_REAL: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE)
_REAL_COMMA: Final = re.compile(_REAL.pattern.replace(r"\.", ","), re.IGNORECASE)
NO_NUMBER: Final = frozenset(
    form
    for text in ("", "na", "nan", "NaN", "n/a", "#n/a", "<na>", "null", "none")
    for form in (text, text.upper(), text.capitalize())
)
"""Texts that stand for a missing number."""
_NO_TEXT: Final = frozenset({"", "NA", "NaN", "nan", "N/A", "#N/A", "<NA>", "NULL", "null"})
"""Texts that stand for a missing value of another kind; "none" and "na" in lower case are names that people use."""
_TRUTH: Final = {"true": True, "false": False}


def clean(text: str) -> str:
    """Return a text without blanks at its ends, each letter in one form."""
    stripped = text.strip()
    return stripped if stripped.isascii() else unicodedata.normalize("NFC", stripped)


class Column(ABC):
    """One column of a table.

    Args:
        name: its name, empty where it has none.
        dtype: its type in the words of its source, for errors.
    """

    def __init__(self, name: str, dtype: str) -> None:
        self.name, self.dtype = name, dtype

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.dtype!r})"  # no values: they are a client's rows

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """Type of the values that are there."""

    @property
    @abstractmethod
    def values(self) -> Array:
        """(rows,) values: int64, float64, bool or objects (texts; integers beyond int64); missing ones are 0 or ''."""

    @property
    @abstractmethod
    def missing(self) -> Array:
        """(rows,) whether a row has no value."""

    @property
    @abstractmethod
    def texts(self) -> Sequence[str]:
        """(rows,) the values as texts, for errors and for readers that know what stands in them."""

    @property
    @abstractmethod
    def spellings(self) -> Sequence[str]:
        """The values as they were written, before blanks were taken off."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.missing)

    def real(self) -> Array:
        """Return the values as float64, NaN where they are missing.

        Raises:
            DataError: texts or other values, or an integer that float64 does not hold.
        """
        if self.kind in ("text", "other"):
            raise DataError(f"column {self.name!r} is no column of numbers: {self.described()}")
        if (beyond := self.inexact()) is not None:
            raise DataError(f"column {self.name!r} holds {beyond}, which float64 does not tell from its neighbours")
        out = self.values.astype(self.values.dtype if self.values.dtype == np.float32 else np.float64)
        out[self.missing] = np.nan
        return out

    def inexact(self) -> int | None:
        """Return the first integer of a size above 2^53, `None` where there is none."""
        if self.kind != "integer":
            return None
        beyond = (self.values > EXACT) | (self.values < -EXACT)
        return int(self.values[beyond.argmax()]) if beyond.any() else None

    def described(self) -> str:
        """Describe cells that are no numbers: the type, the first such cell, and how many there are."""
        if self.kind in ("integer", "real", "boolean", "empty"):
            rows = np.flatnonzero(self.missing)
            cell = self.texts[rows[0]] if len(rows) else ""
        else:
            numbers = [_INTEGER.fullmatch(text) or _REAL.fullmatch(text) for text in self.texts]
            rows = np.flatnonzero([number is None for number in numbers])
            rows = rows if len(rows) else np.arange(len(self.texts))  # numbers that the source calls texts
            cell = self.texts[rows[0]]
        first = repr(cell) if cell else "an empty cell"
        stated = "" if self.dtype == "text" else f"{self.dtype}; "
        return f"{stated}{first}; {len(rows)} of {len(self.texts)} rows"

    def settled(self) -> TypedColumn:
        """Return the column with its values alone, without the cells that they were read from."""
        return TypedColumn(self.name, self.dtype, self.kind, self.values, self.missing)


class TypedColumn(Column):
    """A column whose values have a type.

    Args:
        name: its name.
        dtype: its type in the words of its source.
        kind: type of the values.
        values: (rows,) values, 0 or '' where they are missing.
        missing: (rows,) whether a row has no value.
        written: the texts with the blanks that they had, where there are any.
    """

    def __init__(
        self, name: str, dtype: str, kind: Kind, values: Array, missing: Array, written: Sequence[str] | None = None
    ) -> None:
        super().__init__(name, dtype)
        self._kind, self._values, self._missing, self._written = kind, values, missing, written

    @property
    def kind(self) -> Kind:
        """Type of the values that are there."""
        return self._kind

    @property
    def values(self) -> Array:
        """The values."""
        return self._values

    @property
    def missing(self) -> Array:
        """Whether a row has no value."""
        return self._missing

    @cached_property
    def texts(self) -> Sequence[str]:
        """The values as texts, empty where they are missing."""
        return ["" if gone else str(value) for value, gone in zip(self.values.tolist(), self.missing, strict=True)]

    @property
    def spellings(self) -> Sequence[str]:
        """The values as they were written, where that is known."""
        return self.texts if self._written is None else self._written


class TextColumn(Column):
    """A column of cells of a text table.

    Args:
        name: its name.
        cells: the cells as they stand in the file.
        decimal: the decimal mark.
    """

    def __init__(self, name: str, cells: Sequence[str], decimal: str = ".") -> None:
        super().__init__(name, "text")
        self._cells, self._decimal = cells, decimal

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self._cells)

    @property
    def spellings(self) -> Sequence[str]:
        """The cells as they stand in the file."""
        return self._cells

    @cached_property
    def texts(self) -> Sequence[str]:
        """The cells without blanks at their ends."""
        stripped = tuple(map(str.strip, self._cells))
        return stripped if "".join(stripped).isascii() else tuple(map(clean, stripped))

    @cached_property
    def _present(self) -> list[str]:
        """The cells that stand for a number, if the column is one of numbers."""
        return [text for text in self.texts if text not in NO_NUMBER]

    @cached_property
    def kind(self) -> Kind:
        """Type of the cells that are not missing."""
        if not self._present:
            return "empty"
        if all(map(_INTEGER.fullmatch, self._present)):
            return "integer"
        if all(map((_REAL_COMMA if self._decimal == "," else _REAL).fullmatch, self._present)):
            return "real"
        return "boolean" if all(text.lower() in _TRUTH for text in self._present) else "text"

    @cached_property
    def missing(self) -> Array:
        """Whether a cell stands for no value."""
        if self.kind == "text":
            return np.array([text in _NO_TEXT for text in self.texts])
        return np.array([text in NO_NUMBER for text in self.texts])

    @cached_property
    def values(self) -> Array:
        """The values that the cells stand for."""
        if self.kind == "text":
            return np.array(self.texts, object)
        if self.kind == "integer":
            return integers([0 if gone else int(text) for text, gone in zip(self.texts, self.missing, strict=True)])
        if self.kind == "boolean":
            return np.array([_TRUTH.get(text.lower(), False) for text in self.texts])
        numbers = ("0" if text in NO_NUMBER else text for text in self.texts)
        if self._decimal == ",":
            numbers = (text.replace(",", ".") for text in numbers)
        return np.fromiter(map(float, numbers), np.float64, len(self.texts))


def typed(name: str, dtype: str, values: Any) -> TypedColumn:
    """Make a column of an array or a list of values, as data frames and archives hold them."""
    given = np.asarray(values) if isinstance(values, np.ndarray) else _objects(values)
    if given.dtype.kind in "biu":
        kind: Kind = "boolean" if given.dtype.kind == "b" else "integer"
        return TypedColumn(name, dtype, kind, given, np.zeros(len(given), bool))
    if given.dtype.kind == "f":
        missing = np.isnan(given)
        return TypedColumn(name, dtype, "empty" if missing.all() else "real", np.where(missing, 0, given), missing)
    if given.dtype.kind in "USO":
        return _of_objects(name, dtype, given.astype(object).tolist())
    return TypedColumn(name, dtype, "other", given, np.zeros(len(given), bool))


def integers(values: list[int]) -> Array:
    """Return whole numbers as int64, or as Python's integers where one lies beyond it."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return _objects(values)


def _of_objects(name: str, dtype: str, values: list[Any]) -> TypedColumn:
    """Make a column of Python values, `None` and the like for missing ones."""
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    values = [value.decode() if isinstance(value, bytes) and value.isascii() else value for value in values]
    missing = np.array([_is_missing(value) for value in values])
    there = [value for value, gone in zip(values, missing, strict=True) if not gone]
    kinds = {type(value) for value in there}
    kind: Kind
    if not there:
        return TypedColumn(name, dtype, "empty", np.zeros(len(values)), missing)
    written, kept = None, np.zeros(0)
    if kinds == {bool}:
        kind, kept = "boolean", np.array([value is True for value in values])
    elif kinds <= {bool, int} and bool not in kinds:
        kind, kept = "integer", integers([0 if gone else value for value, gone in zip(values, missing, strict=True)])
    elif kinds <= {bool, int, float, Decimal}:
        if any(isinstance(value, int) and abs(value) > EXACT for value in there):
            raise DataError(
                f"column {name!r} holds fractions beside integers beyond 2^53, which float64 does not tell from their "
                "neighbours; make it a column of integers, or of texts"
            )
        kind, kept = "real", np.array([0.0 if gone else float(v) for v, gone in zip(values, missing, strict=True)])
    elif kinds <= {bool, int, float, Decimal, str}:
        kind, written = "text", ["" if gone else str(v) for v, gone in zip(values, missing, strict=True)]
        kept = np.array(["" if gone else clean(str(v)) for v, gone in zip(values, missing, strict=True)], object)
        missing = missing | np.isin(kept, sorted(_NO_TEXT))
    else:
        kind, kept = "other", _objects(values)
    return TypedColumn(name, dtype, kind, kept, missing, written)


def _is_missing(value: Any) -> bool:
    """Tell whether a value is `None`, NaN, or what pandas has for them."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and math.isnan(value)


def _objects(values: Sequence[Any]) -> Array:
    """Return values as a (rows,) array of objects, lists among them too."""
    return np.fromiter(values, dtype=object, count=len(values))
