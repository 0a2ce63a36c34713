"""One tensor of the terms of a sum, and the checks of fields that terms read from a file by hand may break."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from securefed._hyperparameters import check_integer, check_positive
from securefed._tensors import Ring
from securefed.defenses._fixed_point import check_ring
from securefed.errors import ConfigError


def check_type(what: str, value: object, kind: type) -> None:
    """Raise `ConfigError` unless a field is exactly of this type.

    Args:
        what: name of the field, for the error.
        value: its value.
        kind: the type; a subclass is refused too, so that equal terms have equal bytes.
    """
    if type(value) is not kind:
        raise ConfigError(f"{what} must be a {kind.__name__}; got {value!r}")


def as_plain(record: Any, kind: type[int] | type[float], *names: str) -> None:
    """Turn numbers into Python's own, so that equal terms are the same bytes and have the same digest.

    Args:
        record: a frozen dataclass in its `__post_init__`; it is changed.
        kind: `int` or `float`.
        names: the fields to convert; those that hold `None` stay.
    """
    for name in names:
        if (value := getattr(record, name)) is not None:
            object.__setattr__(record, name, kind(value))


@dataclass(frozen=True)
class SummedTensor:
    """One tensor of an update.

    Attributes:
        name: its key in the update.
        shape: its shape.
        bound: largest absolute entry of one client's update (of its difference from the base, where these are summed).
        integer: whether it holds integers, whose mean is rounded to nearest. Booleans are numbers, 0 and 1, whose mean
            is a share.
        ring: width in bits of the integers that it is summed in under an exact defence.
        sensitivity: largest L2 distance by which one row of a client moves the tensor, where noise hides single rows
            (`records()`); `None` where no such bound is known.

    Raises:
        ConfigError: a field of another type, or outside its domain.
    """

    name: str
    shape: tuple[int, ...]
    bound: float
    integer: bool = False
    ring: Ring = 64
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        check_type("a tensor's name", self.name, str)
        where = f"of tensor {self.name!r}"
        check_type(f"shape {where}", self.shape, tuple)
        check_type(f"`integer` {where}", self.integer, bool)
        for length in self.shape:
            check_integer(f"a length in shape {where}", length, 0)
        check_ring(self.ring, where)
        check_positive(f"bound {where}", self.bound)
        if self.sensitivity is not None:
            check_positive(f"sensitivity {where}", self.sensitivity)
        as_plain(self, float, "bound", "sensitivity")
