"""Encode floats in fixed point: integers whose sum over the cohort cannot wrap, planned per tensor.

`quantise()` makes the last link of a defence's chain before an exact aggregation (masks, encryption); `chain` adds it
where it is missing. Clients call `encode` in each exchange (one sum), the server `decode` on the sum of integers; the
functions at the end turn integers into those that travel (`to_ring`) and back. The cohort is the invited clients.

A ring of R bits is the integers modulo 2^R, read as signed numbers. A client's entry x becomes k = round(x / step).
With N planned clients in a ring of R bits, |k| <= (2^(R-1) - 1) / N, so that the signed sum fits. `step` is a power of
two: k * step is exact, and the only error is the rounding, at most step / 2 per client and entry (plus one rounding of
the decoded sum to float64).

In a message, a ring of 32 or 64 bits takes one integer per entry. In rings of 21 bits or fewer, L = 64 // R entries
share one 64-bit integer, each in its own lane of R bits: entries k_0 .. k_{L-1} travel as sum_j k_j 2^(R j) mod 2^64,
k_j signed, so that a negative entry borrows from the lane above. Such integers add like the entries as long as every
lane's sum stays in its ring, which the plan ensures, and `from_ring` then separates the lanes. A mask over the whole
integer hides all lanes. Rings from 22 to 31 bits are refused: only two entries would fit into 64 bits, as with a ring
of 32 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np

from securefed._tensors import Array, Tensors
from securefed.defenses._base import ChainStage, Transform
from securefed.defenses._plan import Plan, TensorPlan
from securefed.errors import ConfigError, DataError, PlanError, RangeRefused

_WORD: Final = 64
# Three lanes of 21 bits fill a word. A ring of 8 bits has room for two units of each of 63 clients: less is no use.
_NARROWEST, _WIDEST_LANE = 8, 21
# Number of entries rounded at a time; they take 256 kB, so that they stay in a core's second-level cache.
_PART: Final = 1 << 15

_SMALLEST_STEP = float(np.finfo(np.float64).tiny)
_FLOAT64_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Quantise(Transform):
    """Fixed-point encoding for exact sums.

    Attributes:
        ring: width in bits for every tensor (8 to 21, 32 or 64); `None` uses the ring that the layout asks for.
        only: names of the tensors that `ring` is for; the others keep the ring that the layout asks for. Counts and
            running sums need a wide ring; `TensorPlan.error` is the rounding error that a narrow one causes.

    Guarantee: a decoded sum differs from the exact sum by at most `TensorPlan.error` per entry.
    Not promised: anything about entries outside the bound; they are refused, never clipped.
    """

    ring: int | None = None
    only: tuple[str, ...] | None = None
    name: ClassVar[str] = "quantise"
    stage: ClassVar[ChainStage] = ChainStage.ENCODE
    refuses_non_finite: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.ring is not None:
            check_ring(self.ring, self.name)
        if self.only is not None and self.ring is None:
            raise ConfigError("`only` names the tensors that `ring` is for; give a ring")

    def __str__(self) -> str:
        """Return the name, with ring and tensors if they are given."""
        if self.ring is None:
            return self.name
        return f"{self.name}({', '.join([str(self.ring), *(self.only or ())])})"

    def plan(self, plan: Plan) -> Plan:
        """Return the plan with ring, step, largest number of clients and error of the sum for every tensor.

        Raises:
            PlanError: a tensor without bound, too many clients for the ring, or a name in `only` that is not in
                the layout.
        """
        if unknown := set(self.only or ()) - {t.name for t in plan.tensors}:
            raise PlanError(f"quantise names tensors {sorted(unknown)}, the layout holds {[*plan.wanted_rings]}")
        return replace(
            plan, tensors=tuple(self._tensor(t, self._ring(t.name, plan), plan.clients) for t in plan.tensors)
        )

    def _ring(self, name: str, plan: Plan) -> int:
        """Return the width in bits for a tensor: `ring` where it is given for it, else what the layout asks for."""
        forced = self.ring is not None and (self.only is None or name in self.only)
        return self.ring if forced and self.ring is not None else plan.wanted_rings[name]

    @staticmethod
    def _tensor(tensor: TensorPlan, ring: int, clients: int) -> TensorPlan:
        """Plan one tensor: the finest power-of-two step with which the sum over `clients` fits the ring.

        With u = ceil(bound / step) units of one client at most, clients * u <= 2^(ring - 1) - 1.
        """
        if tensor.bound is None:
            raise PlanError(
                f"tensor {tensor.name!r} declares no bound, so no fixed point can be planned; "
                "put clip(...) before this defence, or declare a bound in the algorithm's layout"
            )
        check_ring(ring, f"the layout's tensor {tensor.name!r}")
        largest = (2 ** (ring - 1) - 1) // clients  # most units of one client's entry
        if largest < 2:
            raise PlanError(f"{clients} clients are too many for a {ring}-bit ring; use a wider ring, or fewer clients")
        if tensor.bound / largest < _SMALLEST_STEP:
            raise PlanError(
                f"tensor {tensor.name!r} has a bound of {tensor.bound:.3g}, too small for a fixed point in a "
                f"{ring}-bit ring; declare a larger bound, or scale the data up"
            )
        step = 2.0 ** math.ceil(math.log2(tensor.bound / largest))
        units = math.ceil(tensor.bound / step)
        if units > largest:  # log2 rounded the wrong way
            step, units = 2 * step, math.ceil(tensor.bound / (2 * step))
        error = tensor.error + clients * step / 2 + clients * tensor.bound * _FLOAT64_EPS
        return replace(tensor, ring=ring, step=step, max_clients=(2 ** (ring - 1) - 1) // units, error=error)

    def encode(self, contribution: Tensors, plan: Plan) -> dict[str, Array]:
        """Round each entry to the nearest multiple of its step: int64 tensors.

        Raises:
            DataError: an entry is not finite.
            RangeRefused: an entry lies beyond its bound, and all are finite.
        """
        rounded: dict[str, Array] = {}
        largest: dict[str, float] = {}  # NaN or infinite where an entry is
        for tensor in plan.tensors:
            value = np.asarray(contribution[tensor.name], np.float64)
            rounded[tensor.name], largest[tensor.name] = self._round(value, tensor)
        # Refused after all entries were rounded: an earlier end would show in the time that a reply takes.
        for name, most in largest.items():
            if not math.isfinite(most):
                raise DataError(f"contribution: {name!r} holds NaN or infinity")
        for tensor in plan.tensors:
            bound, most = tensor.bound, largest[tensor.name]
            if bound is not None and most > bound:
                raise RangeRefused(f"{tensor.name!r} reaches {most:.3g}, beyond the planned bound {bound:.3g}")
        return rounded

    @staticmethod
    def _round(value: Array, tensor: TensorPlan) -> tuple[Array, float]:
        """Round to integers, a part at a time: temporary arrays of full size cost more than the arithmetic.

        Returns:
            The integers, and the largest absolute entry; NaN where one is. Integers of entries beyond the bound are of
            no use.
        """
        bound, per_step = tensor.bound, 1.0 / tensor.step
        assert bound is not None
        flat, out = value.reshape(-1), np.empty(value.size, np.int64)
        units, largest = np.empty(min(value.size, _PART)), 0.0
        nothing = np.zeros(units.size)  # rounded in place of entries that are refused, in the same time
        for start in range(0, value.size, _PART):
            part = flat[start : start + _PART]
            scaled = units[: part.size]
            low, high = float(part.min()), float(part.max())
            largest = math.nan if math.isnan(low) else max(largest, -low, high)  # once NaN, it stays so
            within = -bound <= low <= high <= bound  # false where an entry is NaN
            # exact, as the quotient is: a step is a power of two
            np.multiply(part if within else nothing[: part.size], per_step, out=scaled)
            out[start : start + _PART] = np.rint(scaled, out=scaled)
        return out.reshape(value.shape), largest

    def decode(self, total: Tensors, plan: Plan, count: int) -> dict[str, Array]:
        """Multiply the summed integers by their steps, which gives the sum as float64."""
        return {t.name: np.asarray(total[t.name] * t.step) for t in plan.tensors}


def quantise(ring: int | None = None, *, only: tuple[str, ...] | None = None) -> Quantise:
    """Encode contributions in fixed point, for exact sums; see `Quantise`.

    Args:
        ring: width in bits of the sums (8 to 21, 32 or 64); `None` uses the ring that each tensor's layout asks for.
        only: names of the tensors that `ring` is for; `None` for all.
    """
    return Quantise(ring, only)


def is_ring(ring: object) -> bool:
    """Tell whether sums can be made in a ring of this many bits."""
    return type(ring) is int and (_NARROWEST <= ring <= _WIDEST_LANE or ring in (32, 64))


def check_ring(ring: object, where: str) -> None:
    """Raise `ConfigError` unless sums can be made in a ring of this many bits.

    Args:
        ring: the width in bits.
        where: the defence that asks for it, for the message.
    """
    if not is_ring(ring):
        raise ConfigError(
            f"{where}: ring must be 32 or 64, or {_NARROWEST} to {_WIDEST_LANE} bits for shorter messages; got "
            f"{ring!r} (a ring between {_WIDEST_LANE} and 32 bits is no smaller on the wire than 32)"
        )


def lanes(ring: int) -> int:
    """Return the number of entries that share one integer on the wire."""
    return 1 if ring == 32 else _WORD // ring


def wire_dtype(ring: int) -> np.dtype[Any]:
    """Return the type of the integers on the wire: little-endian, 32 bits for a ring of 32, else 64."""
    return np.dtype("<u4" if ring == 32 else "<u8")


def wire_size(size: int, ring: int) -> int:
    """Return the number of integers on the wire for `size` entries."""
    return -(-size // lanes(ring))


def to_ring(value: Array, ring: int) -> Array:
    """Pack signed int64 entries, flat, into the integers that travel: uint32 or uint64 (`wire_size`,).

    The first lane holds the first `wire_size` entries, the next lane those that follow, so that NumPy adds one whole
    lane at a time. With W = `wire_size` integers, integer i is sum_j k_{j W + i} 2^(ring j) mod 2^64.
    """
    if ring == 32:
        return value.view(np.uint64).astype(np.uint32)
    if ring == 64:
        return value.view(np.uint64)
    width = wire_size(value.size, ring)
    words = value[:width].view(np.uint64).copy()
    for lane in range(1, lanes(ring)):
        part = value[lane * width : (lane + 1) * width].view(np.uint64)
        words[: part.size] += part << np.uint64(lane * ring)
    return words


def from_ring(words: Array, ring: int, size: int) -> Array:
    """Unpack sums that do not wrap, the inverse of `to_ring`.

    Args:
        words: sums of packed integers, uint32 or uint64 (`wire_size`,).
        ring: width in bits.
        size: number of entries.

    Returns:
        The sums of the entries, signed int64 (size,).
    """
    if ring == 32:
        return words.view(np.int32).astype(np.int64)
    if ring == 64:
        return words.view(np.int64)
    remaining, entries, unused_bits = words.view(np.int64), [], np.int64(_WORD - ring)
    for _ in range(lanes(ring)):
        lane = (remaining << unused_bits) >> unused_bits  # the lowest lane with its sign: the shift right keeps it
        entries.append(lane)
        remaining = (remaining - lane) >> np.int64(ring)  # less the lane, so that what it borrowed is given back
    return np.concatenate(entries)[:size]
