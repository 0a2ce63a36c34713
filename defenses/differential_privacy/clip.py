"""Clipping: the L2 norm of a client's whole contribution is limited before anything else happens to it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed.defenses.base import Plan
from securefed.errors import ConfigError
from securefed.tensors import Array, Tensors

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Clip:
    """Scales a contribution x to x min(1, norm / ||x||), the norm taken over all tensors together.

    Attributes:
        norm: the largest L2 norm that leaves a client.

    Guarantee: the clipped contribution's norm is at most `norm` in exact arithmetic: rounding of the norm and of
    the products is allowed for by a margin of about `size` machine epsilons, by which a contribution that
    is scaled ends below `norm`. Entries of each tensor are bounded by the smaller of `norm` and the declared bound.
    Not promised: privacy; without noise after it, clipping hides nothing.

    Raises:
        ConfigError: `norm` is not positive and finite.
    """

    norm: float
    name: ClassVar[str] = "clip"
    order: ClassVar[int] = 10

    def __post_init__(self) -> None:
        if not (math.isfinite(self.norm) and self.norm > 0):
            raise ConfigError(f"clip: the norm must be positive and finite, not {self.norm}")

    def __str__(self) -> str:
        return f"{self.name}({self.norm:g})"

    def plan(self, plan: Plan) -> Plan:
        tensors = tuple(
            replace(tensor, bound=self.norm if tensor.bound is None else min(tensor.bound, self.norm))
            for tensor in plan.tensors
        )
        return replace(plan, tensors=tensors, clip=self.norm)

    def encode(self, contribution: Tensors, plan: Plan) -> dict[str, Array]:
        values = {name: np.asarray(value, np.float64) for name, value in contribution.items()}
        # Scaled by the largest entry, so that no square overflows or vanishes.
        largest = max((float(np.abs(value).max(initial=0.0)) for value in values.values()), default=0.0)
        if largest == 0:
            return values
        units = {name: value / largest for name, value in values.items()}
        squares = sum(float(np.square(unit).sum()) for unit in units.values())
        # The sum of `size` squares, its root and the products below are off by less than this margin.
        margin = 1 + (sum(unit.size for unit in units.values()) + 8) * _EPS
        relative = math.sqrt(squares) * margin
        if largest * relative <= self.norm:
            return values
        return {name: np.asarray(unit * (self.norm / relative)) for name, unit in units.items()}

    def decode(self, total: Tensors, plan: Plan, count: int) -> Tensors:
        return total

    def release(self, total: Tensors, plan: Plan) -> Tensors:
        return total


def clip(norm: float) -> Clip:
    """Limit the L2 norm of every client's contribution; see `Clip`."""
    return Clip(norm)
