"""Dual numbers: vectors with derivatives along many directions, for steps that use only `+ - *`.

The local steps of a federated client, run on dual numbers in place of arrays, give its message together with the
derivatives of the message by the client's rows. `round_simulation` runs them so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._tensors import Array


@dataclass(frozen=True, eq=False)
class DualNumber:
    """A vector with its derivatives; arrays count as constants.

    Products of two dual numbers are not defined: local steps are linear except for the gradients.

    Attributes:
        value: (..., parameters) the vector.
        slopes: (directions, ..., parameters) its derivatives.
    """

    value: Array
    slopes: Array

    __array_ufunc__ = None  # `array + dual` is left to this class

    def __add__(self, other: DualNumber | Array | float) -> DualNumber:
        if isinstance(other, DualNumber):
            return DualNumber(self.value + other.value, self.slopes + other.slopes)
        return DualNumber(self.value + other, self.slopes)

    __radd__ = __add__

    def __sub__(self, other: DualNumber | Array | float) -> DualNumber:
        if isinstance(other, DualNumber):
            return DualNumber(self.value - other.value, self.slopes - other.slopes)
        return DualNumber(self.value - other, self.slopes)

    def __rsub__(self, other: Array | float) -> DualNumber:
        return -self + other

    def __mul__(self, factor: DualNumber | Array | float) -> DualNumber:
        if isinstance(factor, DualNumber):
            raise TypeError("products of two dual numbers are not defined")
        return DualNumber(self.value * factor, self.slopes * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Array | float) -> DualNumber:
        return self * (1.0 / divisor)

    def __neg__(self) -> DualNumber:
        return DualNumber(-self.value, -self.slopes)


def where(chosen: Array, one: Any, other: Any) -> Any:
    """Select `one` where `chosen` (..., 1) holds, else `other`; both may be arrays or dual numbers.

    `round_simulation` uses it for clients that take no part in a round: they send zero and keep their memory.
    """
    if not isinstance(one, DualNumber) and not isinstance(other, DualNumber):
        return np.where(chosen, one, other)
    pairs = [(v.value, v.slopes) if isinstance(v, DualNumber) else (v, 0.0) for v in (one, other)]
    return DualNumber(np.where(chosen, pairs[0][0], pairs[1][0]), np.where(chosen, pairs[0][1], pairs[1][1]))
