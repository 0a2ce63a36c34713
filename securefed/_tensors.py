"""Define named arrays, the only numeric thing that crosses the wire, their layout, and their form as bytes.

`Layout` states, before a run, which tensors one contribution holds: names, shapes, and the public bound
on their entries. It flattens and unflattens without copies where NumPy allows it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as _safetensors_load

from securefed.errors import DataError

Array = NDArray[Any]
"""A NumPy array of any number type."""
Tensors = Mapping[str, Array]
"""Arrays by name: the only numbers that cross the wire."""
Ring = Literal[32, 64]
"""Bits of the integers, modulo 2^bits, in which an exact defence sums a tensor."""

_METADATA: Final = "__metadata__"
_TYPES: Final = ("U64", "I64", "F64", "F32", "U32", "I32", "F16", "U16", "I16", "I8", "U8", "BOOL")
"""The types of numbers in safetensors' files, in the order in which their tensors stand there."""
_NUMPY_NAMES: Final = {"U": "u", "I": "i", "F": "f"}
# By NumPy type, the place of its name in `_TYPES`: "U64" is NumPy's "u8", as it counts bytes and safetensors bits.
_PLACES: Final[Mapping[np.dtype[Any], int]] = {
    np.dtype(bool if name == "BOOL" else f"{_NUMPY_NAMES[name[0]]}{int(name[1:]) // 8}"): place
    for place, name in enumerate(_TYPES)
}

_header_json: Final = json.JSONEncoder(sort_keys=True).encode
_index_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def is_torch(value: object) -> bool:
    """Tell whether a value is a torch tensor, without importing torch."""
    module = sys.modules.get("torch")  # a tensor cannot exist before its library is imported
    return module is not None and isinstance(value, module.Tensor)


def real_array(value: Any, where: str) -> Array:
    """Make a NumPy array of the same real numbers.

    Args:
        value: an array, nested lists of numbers, or a torch tensor on any device and of any width, bfloat16 included.
        where: what it is, for errors.

    Returns:
        The numbers in the type they have; in float32 where NumPy has no such type (bfloat16).

    Raises:
        DataError: complex numbers, texts, objects, or another type that holds no real numbers.
    """
    if is_torch(value):
        try:
            value = value.detach().cpu()
            if value.is_floating_point() and value.element_size() < 4:  # NumPy has one of these, float32 holds all
                value = value.float()
            value = value.numpy()
        except (TypeError, RuntimeError) as error:
            raise DataError(f"{where} is a torch tensor that NumPy cannot hold: {error}") from error
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} is no array of numbers: {error}") from error
    if array.dtype.kind == "c":
        raise DataError(
            f"{where} holds complex numbers ({array.dtype}), of which only the real part would be kept; give real and "
            "imaginary parts as two tensors"
        )
    if array.dtype.kind not in "biuf":
        given = type(value).__name__ if array.dtype.kind == "O" else array.dtype
        raise DataError(f"{where} is of type {given}; it must hold real numbers: floats, integers or booleans")
    return array


@dataclass(frozen=True)
class TensorSpec:
    """One named tensor of a contribution.

    Attributes:
        name: its key in a `Tensors` mapping.
        shape: its shape; `()` for a scalar.
        bound: largest absolute value an entry of ONE client's contribution may take, from public facts only;
            `None` where nothing is known, which every fixed-point defence refuses unless a `clip` precedes it.
        ring: width in bits of the integers it is summed in under an exact defence.
        sensitivity: largest L2 distance between ONE client's tensors with and without any one of its records, derived
            from public facts; `None` where no such bound is derived, which record-level privacy refuses.
    """

    name: str
    shape: tuple[int, ...]
    bound: float | None = None
    ring: Ring = 32
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.shape, tuple) and all(isinstance(n, int | np.integer) and n >= 0 for n in self.shape)):
            raise DataError(
                f"tensor {self.name!r}: the shape must be a tuple of sizes, such as (4,), or () for a scalar; "
                f"got {self.shape!r}"
            )
        if self.sensitivity is not None and not (np.isfinite(self.sensitivity) and self.sensitivity > 0):
            raise DataError(f"tensor {self.name!r}: its sensitivity must be positive and finite: {self.sensitivity}")
        if self.bound is not None and not (np.isfinite(self.bound) and self.bound > 0):
            raise DataError(f"tensor {self.name!r}: the bound must be positive and finite, not {self.bound}")

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The tensors of one contribution.

    Attributes:
        specs: one for each tensor, in the order in which `flatten` puts their entries.

    Raises:
        DataError: two tensors have one name.
    """

    specs: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.specs]
        if len(set(names)) != len(names):
            raise DataError(f"a layout names each tensor once, not {names}")

    def __iter__(self) -> Iterator[TensorSpec]:
        return iter(self.specs)

    @classmethod
    def of(cls, tensors: Tensors, bound: float | None = None, ring: Ring = 32) -> Layout:
        """Return the layout that `tensors` have."""
        return cls(tuple(TensorSpec(name, np.shape(value), bound, ring) for name, value in tensors.items()))

    @cached_property
    def size(self) -> int:
        """Number of entries of all tensors together."""
        return sum(spec.size for spec in self.specs)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors, in wire order."""
        return tuple(spec.name for spec in self.specs)

    def check(self, tensors: Tensors, *, where: str = "contribution", finite: bool = True) -> None:
        """Raise `DataError` unless `tensors` has exactly these names and shapes, and finite entries if asked for."""
        if set(tensors) != set(self.names):
            missing, extra = sorted(set(self.names) - set(tensors)), sorted(set(tensors) - set(self.names))
            raise DataError(f"{where}: missing tensors {missing}, unexpected ones {extra}")
        for spec in self.specs:
            value = tensors[spec.name]
            if np.shape(value) != spec.shape:
                raise DataError(f"{where}: {spec.name!r} has shape {np.shape(value)}, the layout has {spec.shape}")
            if finite and not np.isfinite(value).all():
                raise DataError(f"{where}: {spec.name!r} holds NaN or infinity")

    def flatten(self, tensors: Tensors, dtype: DTypeLike = np.float64) -> Array:
        """Return all entries as one vector of length `size` in layout order; no copy if there is one tensor."""
        parts = [np.asarray(tensors[spec.name], dtype=dtype).reshape(-1) for spec in self.specs]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)

    def unflatten(self, vector: Array) -> dict[str, Array]:
        """Return views into `vector`, the inverse of `flatten`; of vectors (..., size), tensors (..., *shape)."""
        if vector.shape[-1:] != (self.size,):
            raise DataError(f"the layout holds {self.size} entries, the vector has shape {vector.shape}")
        out, start = {}, 0
        for spec in self.specs:
            out[spec.name] = vector[..., start : start + spec.size].reshape((*vector.shape[:-1], *spec.shape))
            start += spec.size
        return out


def add(left: Tensors, right: Tensors) -> dict[str, Array]:
    """Compute left + right entry by entry; both hold the same names."""
    return {name: left[name] + right[name] for name in left}


def subtract(left: Tensors, right: Tensors) -> dict[str, Array]:
    """Compute left - right entry by entry; both hold the same names."""
    return {name: left[name] - right[name] for name in left}


def encode(tensors: Tensors, header: Mapping[str, Any] | None = None, *, before: bytes = b"") -> bytes:
    """Encode tensors as safetensors bytes; `header` (JSON values) travels in their metadata.

    The bytes are those of the safetensors library, which copies the entries several times on the way: 8 bytes with the
    length of the index (little-endian), the index as JSON (by name, type, shape and place of the entries; padded with
    spaces to a multiple of 8 bytes), then the entries of all tensors, sorted by type and name.

    Args:
        tensors: arrays by name.
        header: JSON values that travel in the index; `decode` returns them.
        before: bytes to put in front; put there afterwards, they would cost one more copy of the whole.

    Raises:
        DataError: an array of a type that safetensors does not hold, or a name that it reserves.
    """
    rows = sorted((_place(name, value), name, np.asarray(value, order="C")) for name, value in tensors.items())
    index: dict[str, Any] = {} if header is None else {_METADATA: {"securefed": _header_json(header)}}
    entries, end = [], 0
    for place, name, value in rows:
        index[name] = {"dtype": _TYPES[place], "shape": value.shape, "data_offsets": (end, end + value.nbytes)}
        end += value.nbytes
        little = value.astype(value.dtype.newbyteorder("<"), copy=False)
        entries.append(little.reshape(-1).view(np.uint8).data)
    head = _index_json(index).encode()
    head += b" " * (-len(head) % 8)  # to the next multiple of 8
    return b"".join([before, len(head).to_bytes(8, "little"), head, *entries])


def _place(name: str, value: Any) -> int:
    """Return the place of an array's type in `_TYPES`."""
    dtype = np.asarray(value).dtype
    if name == _METADATA or (place := _PLACES.get(dtype.newbyteorder("="))) is None:
        raise DataError(
            f"array {name!r} of type {dtype} cannot be encoded; give numbers, and a name other than {_METADATA}"
        )
    return place


def decode(data: bytes) -> tuple[dict[str, Array], dict[str, Any]]:
    """Decode bytes, the inverse of `encode` (without `before`).

    Returns:
        The tensors in the order of their names, and the header.

    Raises:
        DataError: the bytes are no complete safetensors file, they hold an array of a type that `encode` does not write
            (such as complex numbers), or their header is not ours.
    """
    try:
        tensors = _safetensors_load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"not a complete safetensors message: {error}") from error
    for name, value in tensors.items():
        if value.dtype.newbyteorder("=") not in _PLACES:  # what came in must go out again: states keep messages
            raise DataError(f"array {name!r} is of type {value.dtype}, which no message holds")
    # safetensors hands them over in an order that differs from call to call
    return dict(sorted(tensors.items())), _header(data)


def _header(data: bytes) -> dict[str, Any]:
    """Read the header that `encode` put into the metadata; empty where there is none."""
    # safetensors: 8 bytes little-endian length, then a JSON object whose "__metadata__" is ours.
    length = int.from_bytes(data[:8], "little")
    try:
        raw = json.loads(data[8 : 8 + length]).get(_METADATA, {}).get("securefed", "{}")
        header = json.loads(raw)
    except (ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"unreadable message header: {error}") from error
    if not isinstance(header, dict):
        raise DataError("unreadable message header: not an object")
    return header
