"""Numbers with a bound on their error, and arithmetic that carries the bound on.

With the true numbers a + da and b + db, |da| <= e and |db| <= f:

    (a + da)(b + db) - a b            is at most |a| f + |b| e + e f
    (a + da) / (b + db) - a / b       is at most (e + |a / b| f) / (|b| - f)
    sqrt(a + da) - sqrt(a)            is at most e / sqrt(a), and at most sqrt(e)

Rounding of float64 is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array


@dataclass(frozen=True, eq=False)
class Bounded:
    """An array and a bound on the error of each of its entries.

    Attributes:
        value: the array.
        error: one bound for all entries, or one for each.
    """

    value: Array
    error: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", np.asarray(self.value, np.float64))
        object.__setattr__(self, "error", np.broadcast_to(np.asarray(self.error, np.float64), self.value.shape))

    def __add__(self, other: Bounded | float) -> Bounded:
        other = exact(other)
        return Bounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other: Bounded | float) -> Bounded:
        other = exact(other)
        return Bounded(self.value - other.value, self.error + other.error)

    def __mul__(self, other: Bounded | float | Array) -> Bounded:
        other = exact(other)
        return Bounded(self.value * other.value, _product_error(self, other))

    def __truediv__(self, other: Bounded | float) -> Bounded:
        """Divide; NaN with an infinite error where the divisor may be 0."""
        other = exact(other)
        room = np.abs(other.value) - other.error
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.where(room > 0, self.value / other.value, np.nan)
            error = np.where(room > 0, (self.error + np.abs(value) * other.error) / room, np.inf)
        return Bounded(value, error)

    def outer(self, other: Bounded) -> Bounded:
        """Return all products of the entries of two vectors."""
        return Bounded(self.value[:, None], self.error[:, None]) * Bounded(other.value[None], other.error[None])

    def sqrt(self) -> Bounded:
        """Return the square root, 0 for a number below 0."""
        root = np.sqrt(np.maximum(self.value, 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.where(root > 0, self.error / root, np.inf)
        return Bounded(root, np.minimum(slope, np.sqrt(self.error)))

    def monotone(self, function: Callable[[Array], Array]) -> Bounded:
        """Apply a function that ascends or descends throughout."""
        value = function(self.value)
        ends = [np.abs(function(self.value + sign * self.error) - value) for sign in (-1, 1)]
        return Bounded(value, np.maximum(*ends))


def exact(number: Bounded | float | Array) -> Bounded:
    """Return a number that has no error as a `Bounded`, and one that is as it is."""
    return number if isinstance(number, Bounded) else Bounded(np.asarray(number), np.asarray(0.0))


def _product_error(left: Bounded, right: Bounded) -> Array:
    error = np.abs(left.value) * right.error + np.abs(right.value) * left.error + left.error * right.error
    return np.asarray(error)
