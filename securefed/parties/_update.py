"""Read an update (arrays or tensors by name) into NumPy arrays, and write a mean back in the update's own types.

`SumClient` reads each update and `SumServer` the model it starts from; the result of a sum is written back by `like`.
The terms of a sum (`SumTerms`) state the names and shapes of its tensors, and patterns of names that stay local.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np

from securefed._runtime.exchange_context import tensors_digest
from securefed._tensors import Array, is_torch, real_array
from securefed.errors import DataError
from securefed.parties._wrapped_names import unwrap_hint, without_wrapper

T = TypeVar("T")


def is_local(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether a tensor stays with its client: its name matches a shell pattern such as `*running_mean`."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def read_update(update: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], what: str) -> dict[str, Array]:
    """Return the summed tensors of an update as NumPy arrays in this machine's byte order, in the order of the terms.

    Args:
        update: arrays or tensors by name, on any device; further names are left out if the terms keep them local. Names
            may have a prefix of a library that wraps models (`without_wrapper`).
        shapes: by name, the shape that the terms state.
        what: what the mapping is, for errors.

    Returns:
        Arrays by name. They share memory with the update where its type and byte order allow it.

    Raises:
        DataError: no mapping, a tensor is missing, of another shape, or holds no real numbers.
    """
    if not isinstance(update, Mapping):
        raise DataError(
            f"{what} must hold arrays or tensors by name, such as a state_dict; got {type(update).__name__}"
        )
    update = without_wrapper(update, shapes)
    if missing := [name for name in shapes if name not in update]:
        raise DataError(
            f"{what} lacks {missing[0]!r} ({len(missing)} of {len(shapes)} tensors of the terms are missing)"
            f"{unwrap_hint(missing[0], update)}"
        )
    out = {}
    for name, shape in shapes.items():
        value = real_array(update[name], f"{what}: {name!r}")
        if value.shape != shape:
            raise DataError(f"{what}: {name!r} has shape {value.shape}, and the terms say {shape}")
        wide = value.dtype.kind == "f" and value.dtype.itemsize > 8  # no message holds more than float64
        out[name] = value.astype(np.float64 if wide else value.dtype.newbyteorder("="), copy=False)
    return out


def model_digest(model: Mapping[str, Array]) -> bytes:
    """Compute SHA-256 of names, types, shapes and entries of a model, 32 bytes."""
    return tensors_digest(model)


def like(value: Array, example: T) -> T:
    """Convert a mean or sum to the type, dtype and device of `example`; integers are rounded to nearest.

    Where the example holds booleans, which stand for 0 and 1, the result is numbers (float64): the mean of booleans is
    a share, and their sum is a count.

    Raises:
        DataError: a number that the type does not hold, such as 130 in int8 or 1e6 in float16.
    """
    if is_torch(example):
        import torch  # noqa: PLC0415 - only where the caller uses it

        tensor: Any = example
        if tensor.dtype is torch.bool:
            return torch.from_numpy(np.asarray(value, np.float64)).to(tensor.device)  # type: ignore[return-value]
        name = str(tensor.dtype).removeprefix("torch.")
        if "int" in name and "q" not in name:
            _check_integers(value, np.dtype(name))
        given = torch.from_numpy(np.asarray(value))
        out: Any = (given if tensor.is_floating_point() else given.round()).to(tensor.dtype)
        if tensor.is_floating_point():
            _check_no_overflow(value, out.double().numpy(), name)
        return out.to(tensor.device)  # type: ignore[no-any-return]
    dtype = np.asarray(example).dtype
    if dtype.kind == "b":
        return np.asarray(value, np.float64)  # type: ignore[return-value]
    if dtype.kind in "iu":
        _check_integers(value, dtype)
    with np.errstate(over="ignore"):  # refused below
        rounded: Any = np.asarray(value if np.issubdtype(dtype, np.floating) else np.rint(value)).astype(dtype)
    _check_no_overflow(value, rounded, str(dtype))
    return rounded  # type: ignore[no-any-return]


def _check_integers(value: Array, dtype: np.dtype[Any]) -> None:
    """Raise `DataError` where an integer type would wrap around."""
    limits, rounded = np.iinfo(dtype), np.rint(value)
    if not ((rounded >= float(limits.min)) & (rounded < float(limits.max) + 1.0)).all():
        raise _too_large(value, str(dtype))


def _check_no_overflow(value: Array, converted: Array, name: str) -> None:
    """Raise `DataError` where a finite number became infinite in a floating-point type."""
    if not np.isfinite(converted).all() and np.isfinite(value).all():
        raise _too_large(value, name)


def _too_large(value: Array, name: str) -> DataError:
    return DataError(f"the sum or mean holds {float(np.abs(value).max()):.6g}, which {name} does not; use float64")
