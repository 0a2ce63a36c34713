"""Fixed point: floats to integers whose sum over the cohort cannot wrap, planned per tensor.

A client's entry x becomes k = round(x / step). With N planned clients in a ring of R bits, |k| <= (2^(R-1) - 1) / N,
so that the signed sum fits. `step` is a power of two: k * step is exact, and the only error is the rounding,
at most step / 2 per client and entry (plus one rounding of the decoded sum to float64).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed.defenses.base import Plan, TensorPlan
from securefed.errors import PlanError, RangeRefused
from securefed.tensors import Array, Ring, Tensors

_FLOAT64_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Quantise:
    """Fixed-point encoding for exact sums.

    Attributes:
        ring: force 32 or 64 bits for every tensor; `None` takes what each tensor's layout asks for.

    Guarantee: a decoded sum differs from the exact sum by at most `TensorPlan.error` per entry.
    Not promised: anything about entries outside the bound; they are refused, never clipped.
    """

    ring: Ring | None = None
    name: ClassVar[str] = "quantise"
    order: ClassVar[int] = 30

    def __str__(self) -> str:
        return self.name if self.ring is None else f"{self.name}({self.ring})"

    def plan(self, plan: Plan) -> Plan:
        tensors = tuple(self._tensor(t, self.ring or plan.wanted_rings[t.name], plan.clients) for t in plan.tensors)
        return replace(plan, tensors=tensors)

    @staticmethod
    def _tensor(tensor: TensorPlan, ring: int, clients: int) -> TensorPlan:
        if tensor.bound is None:
            raise PlanError(
                f"tensor {tensor.name!r} declares no bound, so no fixed point can be planned; "
                "put clip(...) before this defence, or declare a bound in the algorithm's layout"
            )
        largest = (2 ** (ring - 1) - 1) // clients
        if largest < 2:
            raise PlanError(
                f"{clients} clients leave no bit in a {ring}-bit ring; use 64 bits or a tree of aggregators"
            )
        step = 2.0 ** math.ceil(math.log2(tensor.bound / largest))
        units = math.ceil(tensor.bound / step)
        if units > largest:  # log2 rounded the wrong way
            step, units = 2 * step, math.ceil(tensor.bound / (2 * step))
        error = clients * step / 2 + clients * tensor.bound * _FLOAT64_EPS
        return replace(tensor, ring=ring, step=step, max_clients=(2 ** (ring - 1) - 1) // units, error=error)

    def encode(self, contribution: Tensors, plan: Plan) -> dict[str, Array]:
        return {t.name: self._round(np.asarray(contribution[t.name], np.float64), t) for t in plan.tensors}

    @staticmethod
    def _round(value: Array, tensor: TensorPlan) -> Array:
        assert tensor.bound is not None
        largest = float(np.abs(value).max(initial=0.0))
        if not largest <= tensor.bound:
            raise RangeRefused(f"{tensor.name!r} reaches {largest:.3g}, beyond the planned bound {tensor.bound:.3g}")
        return np.asarray(np.rint(value / tensor.step), dtype=np.int64)

    def decode(self, total: Tensors, plan: Plan, count: int) -> dict[str, Array]:
        return {t.name: np.asarray(total[t.name] * t.step) for t in plan.tensors}

    def release(self, total: Tensors, plan: Plan) -> Tensors:
        return total


def to_ring(value: Array, ring: int) -> Array:
    """Signed int64 entries as residues mod 2^ring (uint32 or uint64)."""
    return value.view(np.uint64).astype(np.uint32) if ring == 32 else value.view(np.uint64)


def from_ring(residues: Array, ring: int) -> Array:
    """Residues mod 2^ring as signed int64, the inverse of `to_ring` for sums that do not wrap."""
    return residues.view(np.int32).astype(np.int64) if ring == 32 else residues.view(np.int64)
