"""Read an update (arrays or tensors by name), turn it into a contribution, and write a mean back in the update's types.

`SumClient` reads each update and `SumServer` the model it starts from; the result of a sum is written back by `like`.
The terms of a sum (`SumTerms`) state the names and shapes of its tensors, and patterns of names that stay local.
Libraries that wrap a model put a prefix before all names of its state_dict (`module.`); either side may be the wrapped
one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, Final, TypeVar

import numpy as np

from securefed._runtime.ledger import Ledger
from securefed._runtime.ledger_entries import Training
from securefed._tensors import Array, is_torch, real_array
from securefed.errors import ConfigError, DataError
from securefed.parties._guards import COUNT, counts_rows
from securefed.parties._terms import SumTerms
from securefed.parties._terms_parts import METRIC, UPDATE, WEIGHT, is_local

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


Trained = Training | int | Callable[[], Training | int]
"""A training by DP-SGD that a ledger counts, its number there, or a function that returns either once it has ended."""
_LOG = logging.getLogger("securefed.client")


def structure(update: Mapping[str, Any], terms: SumTerms) -> dict[str, Array]:
    """Read an update; raise `DataError` where names, shapes or types are not those of the terms."""
    arrays = read_update(update, terms.shapes, "the update")
    update = without_wrapper(update, arrays)
    for tensor in terms.tensors:
        if tensor.integer and arrays[tensor.name].dtype.kind == "f":
            _LOG.warning(
                "%r is of type %s, and the terms say integers, whose mean is rounded; where it must not be, make "
                "the terms from an example of this type, such as 0.0 for 0", tensor.name, arrays[tensor.name].dtype,
            )  # fmt: skip
    for name in update:
        if name not in arrays and not is_local(name, terms.local):
            raise DataError(f"the update holds {name!r}, which the terms neither sum nor keep local")
    return arrays


def contribution(
    terms: SumTerms,
    given: Mapping[str, Array],
    weight: float,
    metrics: Mapping[str, float],
    base: Mapping[str, Array] | None,
) -> dict[str, Array]:
    """Return what a client contributes for an update x of weight w.

    It holds (w / W) x, or (w / W) (x - base) where differences are summed, beside the weight w / W and the metrics. W
    is the largest weight that the terms allow. Without weights, w / W counts as 1.

    Args:
        terms: the terms of the sum.
        given: the update by name, as `structure` returns it.
        weight: its weight w.
        metrics: the client's metrics, by name.
        base: the model that the update was computed from; `None` without one.

    Raises:
        DataError: a weight below 0 or not finite.
    """
    if not 0 <= weight < math.inf:
        raise DataError(f"weight must be finite and at least 0; got {weight!r}")
    relative = weight / terms.largest_weight if terms.weighted else 1.0
    out: dict[str, Array] = {}
    for name, value in given.items():
        begin = base[name] if terms.differences and base is not None else None
        entries = value if begin is None else np.subtract(value, begin, dtype=np.float64)
        out[f"{UPDATE}{name}"] = np.multiply(entries, relative, dtype=np.float64)
    out |= {f"{METRIC}{name}": np.asarray(metrics[name]) for name, _ in terms.metrics}
    if terms.weighted:
        out[WEIGHT] = np.asarray(relative)
    return out


def check_rows(terms: SumTerms, update: Mapping[str, Any]) -> None:
    """Raise `DataError`, for which the party sits out, where it has fewer rows than the terms ask for."""
    if terms.least_rows is None:
        return
    for name in filter(counts_rows, terms.shapes):
        counts = np.ravel(np.asarray(update[name], np.float64))
        fewest = float(counts.min(initial=np.inf))
        if not fewest >= terms.least_rows:
            column = f", column {counts.argmin()}" if len(counts) > 1 else ""
            where = "" if name == COUNT else f" in {name!r}{column}"
            raise DataError(
                f"{fewest:g} rows{where}, and these terms ask for {terms.least_rows} or more of each party: what so "
                "few rows add to a sum says much of each; take no part, or agree on other terms"
            )


def build_nothing(terms: SumTerms, base: Mapping[str, Array] | None) -> None:
    """Take the time of building a contribution, where the update failed and the server must not learn that."""
    zeros = {tensor.name: np.broadcast_to(0 if tensor.integer else 0.0, tensor.shape) for tensor in terms.tensors}
    contribution(terms, structure(zeros, terms), 0.0, {name: 0.0 for name, _ in terms.metrics}, base)


def number(value: Any, what: str) -> float:
    """Return a number as a float; raise `DataError` for another type, as for a tensor of other names."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # torch raises the last for a tensor of several entries
        raise DataError(f"{what} must be a number; got {value!r}") from error


def given_weight(terms: SumTerms, weight: float | Callable[[], float] | None) -> float | Callable[[], float]:
    """Read the weight that the caller gives, 1 by default, or keep a function that returns it.

    Where the terms sum no weights, any that is given is refused, 1 too: a client that refused a weight of 2 and
    answered with a weight of 1 would show the server which of them it has.

    Raises:
        ConfigError: a weight is given, and the terms sum none.
        DataError: it is no number.
    """
    if weight is None:
        return 1.0
    if not terms.weighted:
        remedy = (
            "under noise or a clip every client weighs the same: leave weight out"
            if terms.plan.privacy is not None
            else "make them with SumTerms.like(..., largest_weight=...), the largest weight of a client, or leave "
            "weight out"
        )
        raise ConfigError(f"a weight is given, and these terms ({terms.defense.name}) sum none; {remedy}")
    return weight if callable(weight) else number(weight, "weight")


def given_metrics(terms: SumTerms, metrics: Mapping[str, float]) -> dict[str, float]:
    """Read the metrics; raise `ConfigError` unless they are those of the terms, `DataError` unless they are numbers."""
    wanted = {name for name, _ in terms.metrics}
    if set(metrics) != wanted:
        raise ConfigError(f"the terms name the metrics {sorted(wanted)}; got {sorted(metrics)}")
    return {name: number(value, f"metric {name!r}") for name, value in metrics.items()}


def check_trained(terms: SumTerms, ledger: Ledger | None, trained: Trained | None, *, ended: bool = False) -> None:
    """Check that the client's ledger counts the training of an update, within its limits, and that it is sent alone.

    Args:
        terms: the terms of the sum.
        ledger: the client's.
        trained: the training; `None` for an update of another kind.
        ended: whether the update was computed, so that a function that returns the training can be called.

    Raises:
        ConfigError: the ledger does not count it, or something else of the rows is summed beside the model.
        BudgetSpent: the ledger is beyond a limit.
    """
    if trained is None:
        return
    if ledger is None:
        raise ConfigError("trained= needs the ledger that counts the training: SumClient(..., ledger=ledger)")
    if terms.metrics:
        raise ConfigError(
            f"the metrics {[name for name, _ in terms.metrics]} are sent without noise, beside an update that DP-SGD "
            "made private; make terms without metrics, or leave trained out"
        )
    if not callable(trained) or ended:
        ledger.check_training(trained() if callable(trained) else trained)
