"""Show data and results by the shapes of their arrays, so that no log, traceback or notebook prints a client's rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, Final

_LISTED: Final = 6
"""Entries of a collection up to which each is shown; of a longer one, their number and type are."""


class ShapeRepr:
    """Give a dataclass a `repr` of one line, for data classes made with `@dataclass(repr=False)`."""

    def __repr__(self) -> str:
        shown = (f"{field.name}={_short(getattr(self, field.name))}" for field in fields(self) if field.repr)  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(shown)})"


def _short(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    if not isinstance(value, Collection) or isinstance(value, str | bytes) or (not value):
        return repr(value)
    if len(value) > _LISTED:
        return f"<{len(value)} {type(next(iter(value))).__name__}>"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_short(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_short, value)) + "]"
    return repr(value)
