"""Read an update (arrays or tensors by name) into NumPy arrays, and write a mean back in the update's own types.

`SumClient` reads each update and `SumServer` the model it starts from; the result of a sum is written back by `like`.
The terms of a sum (`SumTerms`) state the names and shapes of its tensors, and patterns of names that stay local.

Libraries that wrap a model put a prefix before all names of its state_dict (`module.`); either side may be the wrapped
one. The messages of a round name the model that updates are computed from by its digest: what clients upload is bound
to it, so that clients which were given different models are not summed. The model itself travels as the caller likes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final, TypeVar

import numpy as np

from securefed._runtime.exchange_context import tensors_digest
from securefed._tensors import Array, is_torch, real_array
from securefed.errors import DataError

T = TypeVar("T")
_WRAPPERS: Final = {"_module.": "opacus", "module.": "DistributedDataParallel", "_orig_mod.": "torch.compile"}
_LOG = logging.getLogger("securefed.client")


def without_wrapper(given: Mapping[str, T], wanted: Collection[str]) -> Mapping[str, T]:
    """Return a mapping under the names that the terms give its tensors, if it differs from them by wrappers alone.

    Names are changed only where all of them, on that side, have the same prefix, and where every wanted name is then
    found; so it is clear which tensor is which. That is said in the log, once for each prefix.

    Args:
        given: tensors by name; further names than the wanted ones may be among them.
        wanted: names that the terms give.

    Returns:
        The mapping under the names of the terms, or `given` itself where no prefix explains the difference.
    """
    if all(name in given for name in wanted) or not all(isinstance(name, str) for name in given):
        return given
    theirs, ours = _wrapper(given), _wrapper(wanted)
    renamed = {ours + name.removeprefix(theirs): value for name, value in given.items()}
    if theirs == ours or not all(name in renamed for name in wanted):
        return given
    _say(theirs, ours)
    return renamed


def unwrap_hint(name: str, given: Collection[str]) -> str:
    """Say what to write where a missing tensor is there under a wrapper's prefix; empty where it is not."""
    for other in given:
        for prefix, library in _WRAPPERS.items():
            if isinstance(other, str) and other.endswith(prefix + name):
                bare = f"model.{other.removesuffix(name)}state_dict()"
                return f"; it holds {other!r}, the name inside a wrapper ({library}): give {bare}"
    return ""


def _wrapper(names: Collection[str]) -> str:
    """Return the wrappers' prefixes that all names begin with; empty for no names."""
    prefix, more = "", bool(names)
    while more:
        more = False
        for wrapper in _WRAPPERS:
            if all(name.startswith(prefix + wrapper) for name in names):
                prefix, more = prefix + wrapper, True
    return prefix


@cache
def _say(theirs: str, ours: str) -> None:
    _LOG.warning(
        "names of tensors begin with %r, and those of the terms with %r: these are read as the same tensors; give the "
        "state_dict of the bare model, such as model._module.state_dict(), to be rid of this line", theirs, ours,
    )  # fmt: skip


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


BASE: Final = "base"


def no_model(round: int) -> bytes:
    """Return what stands for the model's digest in a round that no model is bound to, 32 bytes.

    It depends on the round only, and binds an upload to it. Two statistics of round 0 have the same one, so that a
    client cannot recognise a contribution by it. Without a model all
    contributions of the same rows count as equal (`SumRule.sources`, rule B in `sum_memory`).
    """
    return hashlib.sha256(f"securefed no model\0{round}".encode()).digest()


def base_array(digest: bytes) -> Array:
    """Return the digest of a model as the tensor that requests hold, uint8 (32,)."""
    return np.frombuffer(digest, np.uint8).copy()


def broadcast_of(base: Mapping[str, Array] | None, round: int) -> dict[str, Array]:
    """Return what the requests of a round tell its clients: the digest of its model, or what stands for it."""
    return {BASE: base_array(no_model(round) if base is None else model_digest(base))}
