"""Dual numbers: vectors with their derivatives along many directions, for steps that use nothing but `+ - *`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed.tensors import Array


@dataclass(frozen=True, eq=False)
class Dual:
    """A vector (..., parameters) and `slopes` (directions, ..., parameters). Arrays are constants.

    Products of two dual numbers are not defined: steps are linear but for the gradients.
    """

    value: Array
    slopes: Array

    __array_ufunc__ = None  # `array + dual` is left to this class

    def __add__(self, other: Dual | Array | float) -> Dual:
        if isinstance(other, Dual):
            return Dual(self.value + other.value, self.slopes + other.slopes)
        return Dual(self.value + other, self.slopes)

    __radd__ = __add__

    def __sub__(self, other: Dual | Array | float) -> Dual:
        if isinstance(other, Dual):
            return Dual(self.value - other.value, self.slopes - other.slopes)
        return Dual(self.value - other, self.slopes)

    def __rsub__(self, other: Array | float) -> Dual:
        return Dual(other - self.value, -self.slopes)

    def __mul__(self, factor: Dual | Array | float) -> Dual:
        if isinstance(factor, Dual):
            raise TypeError("products of two dual numbers are not defined")
        return Dual(self.value * factor, self.slopes * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Array | float) -> Dual:
        return self * (1.0 / divisor)

    def __neg__(self) -> Dual:
        return Dual(-self.value, -self.slopes)


def where(chosen: Array, one: Any, other: Any) -> Any:
    """`one` where `chosen` (..., 1), else `other`: arrays or dual numbers."""
    if not isinstance(one, Dual) and not isinstance(other, Dual):
        return np.where(chosen, one, other)
    pairs = [(v.value, v.slopes) if isinstance(v, Dual) else (v, 0.0) for v in (one, other)]
    return Dual(np.where(chosen, pairs[0][0], pairs[1][0]), np.where(chosen, pairs[0][1], pairs[1][1]))
