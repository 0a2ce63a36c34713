"""Say of a table what its reader cannot tell: how its text is written, and which classes its labels have."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypedDict, cast

from securefed._class_names import ClassName, class_names
from securefed.errors import ConfigError

SEPARATORS: Final[Mapping[str, str]] = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""The separators that are found without being named, and their words."""
_WORDS: Final = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "bar": "|", "pipe": "|", "point": "."}
"""Words for separators and decimal marks, which may be written instead of the characters."""


class TableOptions(TypedDict, total=False):
    """The fields of a `TableFormat`, as keyword arguments of the functions that read tables.

    Attributes:
        encoding: encoding of the text.
        separator: the character between two cells.
        decimal: the decimal mark.
        classes: the classes of the labels.
    """

    encoding: str
    separator: str
    decimal: str
    classes: Sequence[ClassName]


@dataclass(frozen=True)
class TableFormat:
    """The form of a table. An empty attribute is found out from the table; if it cannot be, the table is refused.

    Attributes:
        encoding: encoding of the text, such as "utf-8", "cp1252" or "utf-16-le".
        separator: the character between two cells, or its name: "comma", "semicolon", "tab" or "bar".
        decimal: the decimal mark, "." or ",".
        classes: the values that the column of labels may hold, in the order of their numbers; of files of any kind.

    Raises:
        ConfigError: an unknown encoding, a separator or decimal mark that cannot be one, or classes that are no list of
            names.
    """

    encoding: str = ""
    separator: str = ""
    decimal: str = ""
    classes: Sequence[ClassName] = ()

    def __post_init__(self) -> None:
        """Replace words by their characters, and check them."""
        object.__setattr__(self, "classes", class_names(self.classes))
        for name in ("separator", "decimal"):
            value = getattr(self, name)
            object.__setattr__(self, name, _WORDS.get(value, value))
        if len(self.separator) > 1 or self.separator.isalnum() or self.separator in ('"', ".", "+", "-", "\n", "\r"):
            raise ConfigError(
                f"the separator must be one character between cells, such as ';', or a word: comma, semicolon, tab, "
                f"bar; got {self.separator!r}"
            )
        if self.decimal not in ("", ".", ","):
            raise ConfigError(f"the decimal mark must be '.' or ','; got {self.decimal!r}")
        if self.encoding:
            try:
                b"aaaa".decode(self.encoding, "ignore")  # of no bytes, every name is an encoding
            except (LookupError, UnicodeError) as error:
                raise ConfigError(
                    f"the encoding must be one that Python knows, such as utf-8, cp1252, latin-1 or utf-16; got "
                    f"{self.encoding!r}"
                ) from error

    def given(self) -> TableOptions:
        """Return what was named, by the names of the fields."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return cast("TableOptions", {name: value for name, value in values.items() if value})

    def text_only(self) -> TableFormat:
        """Return what was named of the text alone."""
        return TableFormat(self.encoding, self.separator, self.decimal)

    def command_options(self) -> list[str]:
        """Return what was named, as options of a command line."""
        return [_option(name, value) for name, value in cast("dict[str, Any]", self.given()).items()]


def remedy(**values: str) -> str:
    """Write the options that name these values, on the command line and in Python, for an error."""
    options = " ".join(_option(name, value) for name, value in values.items())
    arguments = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return f"{options} ({arguments} in Python)"


def classes_remedy(classes: Sequence[ClassName]) -> str:
    """Write the option that declares these classes, on the command line and in Python, for an error or a remark."""
    return f"{_option('classes', classes)} (classes={list(classes)!r} in Python)"


def split_classes(text: str) -> tuple[str, ...]:
    """Split names of classes at commas; a name that holds one stands in quotes."""
    return tuple(next(csv.reader([text], skipinitialspace=True))) if text.strip() else ()


def separator_word(separator: str) -> str:
    """Return the word for the cells' separators."""
    return SEPARATORS.get(separator, repr(separator))


def _option(name: str, value: str | Sequence[ClassName]) -> str:
    if not isinstance(value, str):
        out = io.StringIO()
        csv.writer(out, lineterminator="").writerow(value)
        value = out.getvalue()
    return f"--{name} {'tab' if value == chr(9) else shlex.quote(value)}"
