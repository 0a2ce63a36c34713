"""Turn states into named arrays and back, so that they survive a process.

The states of clients and servers between two messages go through it (`frozen`), and so do nested
arrays in messages (`nest`, `unnest`). Nothing is encrypted here.

A state is a frozen dataclass whose fields are arrays, numbers (integers within int64), strings, bytes, `None`,
tuples of those, or dicts of those keyed by `int` or by `str` without '/' and ':'; or states themselves, alone or in a
tuple that is as long in the template. A field marked `local()` (a
client's data, its model) is never packed: the owner makes the state anew and `restore` lays the packed fields
over it.

A field called `x` becomes the array `x:KIND`, where KIND is one letter: a array, b bool, i integer, f float, s string,
y bytes, n `None`. A state within a state is `x:d`, empty, and its own arrays behind `x/`. A tuple is `x:t` with its
length and `x/0`, `x/1`, ...; a dict is `x:m`, empty, and `x/iKEY` or `x/sKEY` for integer and string keys; the order of
its keys is lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from securefed._tensors import Array, Tensors
from securefed.errors import DataError

S = TypeVar("S")
# Letters of the kinds that `_leaf` writes and `_read` reads.
_KINDS = "abifsy"


def local(**kwargs: Any) -> Any:
    """Declare a dataclass field that stays with its owner and is left out of `pack`."""
    return dataclasses.field(metadata={"local": True}, **kwargs)


def stored_as(name: str, *, written: Callable[[Any], Any] | None = None, **kwargs: Any) -> Any:
    """Declare a dataclass field that `pack` stores under `name`, its name in files that exist already.

    Args:
        name: the stored name.
        written: turns the field's value into what is stored, and restored; by default the value itself.
        **kwargs: further arguments of `dataclasses.field`.
    """
    return dataclasses.field(metadata={"stored_as": name, "written": written}, **kwargs)


def pack(state: Any) -> dict[str, Array]:
    """Return the state's fields as named arrays. Inverse: `restore`.

    Raises:
        DataError: a field, an entry of one or a key is of a type that cannot be packed, an integer is beyond int64, or
            a key holds '/' or ':'.
    """
    out: dict[str, Array] = {}
    for field in _packed_fields(state):
        value, written = getattr(state, field.name), field.metadata.get("written")
        _put(out, field.metadata.get("stored_as", field.name), value if written is None else written(value))
    return out


def restore(template: S, tensors: Tensors) -> S:
    """Return `template` with its packed fields replaced by those in `tensors`.

    Args:
        template: a state of the same class; its `local()` fields are kept.
        tensors: what `pack` returned.

    Raises:
        DataError: a field is missing.
    """
    values: dict[str, Any] = {}
    for field in _packed_fields(template):
        stored = field.metadata.get("stored_as", field.name)
        values[field.name] = _get(tensors, stored, getattr(template, field.name))
    return dataclasses.replace(template, **values)  # type: ignore[type-var]


def nest(prefix: str, tensors: Tensors) -> dict[str, Array]:
    """Return `tensors` with `prefix/` before every name."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def unnest(prefix: str, tensors: Tensors) -> dict[str, Array]:
    """Return the tensors whose names start with `prefix/`, without this prefix."""
    start = f"{prefix}/"
    return {name[len(start) :]: value for name, value in tensors.items() if name.startswith(start)}


def from_bytes(data: bytes) -> Array:
    """View bytes as a uint8 array, read-only and without a copy."""
    return np.frombuffer(data, dtype=np.uint8)


def _packed_fields(state: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(state) if not field.metadata.get("local")]


def _put(out: dict[str, Array], name: str, value: Any) -> None:
    """Add the arrays of one field, or of an entry of it, to `out`."""
    match value:
        case None:
            out[f"{name}:n"] = np.zeros(0, np.uint8)
        case Mapping():
            out[f"{name}:m"] = np.zeros(0, np.uint8)
            for key, item in value.items():
                _put(out, f"{name}/{_key(name, key)}", item)
        case tuple():
            out[f"{name}:t"] = np.asarray(len(value), np.int64)
            for index, item in enumerate(value):
                _put(out, f"{name}/{index}", item)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            out[f"{name}:d"] = np.zeros(0, np.uint8)
            out |= nest(name, pack(value))
        case _:
            kind, array = _leaf(name, value)
            out[f"{name}:{kind}"] = array


def _key(name: str, key: Any) -> str:
    """Return how a key of the dict `name` is written: iKEY or sKEY, which `_get` reads."""
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return f"i{int(key)}"
    if not isinstance(key, str):
        raise DataError(f"key {key!r} of field {name!r} is of type {type(key).__name__}; keys are integers or texts")
    if "/" in key or ":" in key:
        raise DataError(f"key {key!r} of field {name!r} holds a '/' or ':', which packing reserves")
    return f"s{key}"


def _leaf(name: str, value: Any) -> tuple[str, Array]:
    """Return the letter and the array of a value that is no container; `DataError` for other types."""
    match value:
        case bool():
            return "b", np.asarray(value, np.uint8)
        case int():
            if not -(2**63) <= value < 2**63:
                raise DataError(f"field {name!r} holds {value}, which is beyond int64")
            return "i", np.asarray(value, np.int64)
        case float():
            return "f", np.asarray(value, np.float64)
        case str():
            return "s", from_bytes(value.encode())
        case bytes():
            return "y", from_bytes(value)
        case np.ndarray() | np.generic():
            return "a", np.asarray(value)
        case _:
            raise DataError(f"field {name!r} of type {type(value).__name__} cannot be packed")


def _get(tensors: Tensors, name: str, template: Any = None) -> Any:
    """Read the value of the field or entry `name`, the inverse of `_put`; `DataError` where it is missing.

    Args:
        tensors: what `pack` returned.
        name: of the field or entry.
        template: its value in the template, which states within a state are laid over.
    """
    if f"{name}:d" in tensors:
        if not dataclasses.is_dataclass(template) or isinstance(template, type):
            raise DataError(f"field {name!r} holds a state, and the template has none there")
        return restore(template, unnest(name, tensors))
    if f"{name}:t" in tensors:
        count = int(tensors[f"{name}:t"])
        if not 0 <= count <= len(tensors):  # every entry is at least one tensor
            raise DataError(f"field {name!r} is said to have {count} entries, more than there are tensors")
        alike = isinstance(template, tuple) and len(template) == count
        parts = template if alike else (None,) * count
        return tuple(_get(tensors, f"{name}/{index}", part) for index, part in enumerate(parts))
    if f"{name}:m" in tensors:
        # the part of each entry's name after `name/`, up to the next '/' or ':': iKEY or sKEY
        keys = {entry[len(name) + 1 :].split("/")[0].split(":")[0] for entry in tensors if entry.startswith(f"{name}/")}
        return {(int(key[1:]) if key[0] == "i" else key[1:]): _get(tensors, f"{name}/{key}") for key in sorted(keys)}
    if f"{name}:n" in tensors:
        return None
    for kind in _KINDS:
        if (value := tensors.get(f"{name}:{kind}")) is not None:
            return _read(kind, value)
    raise DataError(f"field {name!r} is missing")


def _read(kind: str, value: Array) -> Any:
    """Turn an array of a kind back into its value, the inverse of `_leaf`."""
    match kind:
        case "b":
            return bool(value)
        case "i":
            return int(value)
        case "f":
            return float(value)
        case "s":
            return value.tobytes().decode()
        case "y":
            return value.tobytes()
        case _:
            return value
