"""Pack many integers into one Paillier plaintext, so that adding plaintexts adds all of them.

A client packs its contribution before it encrypts it; the server unpacks the sum that was decrypted. A contribution is
one client's tensors in fixed point: the plan gives each tensor a bound, a step (the value of one integer unit) and a
ring (the width in bits in which its sum fits).

A plaintext is a number below the modulus n, cut into slots of equal width. A slot is as wide as the tensor's planned
ring (R bits). A client's entry k, |k| <= u, is stored as k + u >= 0, where u = ceil(bound / step) is public. Since N u
<= 2^(R-1) - 1, a slot's sum over up to N clients is at most 2 N u <= 2^R - 2: it never carries into its neighbour. A
plaintext holds floor((bits - 1) / R) slots, so the sum stays below 2^(bits - 1) <= n and never wraps mod n. The decoder
subtracts count * u, exactly, count being the number of contributions in the sum.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gmpy2
import numpy as np

from securefed._messages import PartyId
from securefed._tensors import Array, Tensors
from securefed.defenses._base import INDICATOR, has_indicator, some_client_out
from securefed.defenses._plan import Plan, TensorPlan
from securefed.errors import MalformedError, PlanError, RangeRefused


@dataclass(frozen=True)
class SlotGroup:
    """The tensors of one slot width, laid one after the other.

    Attributes:
        ring: slot width in bits.
        tensors: in the plan's order.
        slots: number of slots in a plaintext.
    """

    ring: int
    tensors: tuple[TensorPlan, ...]
    slots: int

    @property
    def entries(self) -> int:
        """Number of integers of one contribution."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def plaintexts(self) -> int:
        """Number of plaintexts of one contribution."""
        return -(-self.entries // self.slots)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Unsigned integers of the slot width."""
        return np.dtype(f"<u{self.ring // 8}")


@dataclass(frozen=True)
class Packing:
    """Layout of one contribution in plaintexts: one group after the other, by slot width.

    Attributes:
        groups: the groups, narrow slots first.
    """

    groups: tuple[SlotGroup, ...]

    @classmethod
    def of(cls, plan: Plan, bits: int) -> Packing:
        """Lay out the tensors of `plan` under a key of `bits` bits.

        Raises:
            PlanError: a tensor is not in fixed point, or the planned sum does not fit its slot.
        """
        for tensor in plan.tensors:
            if not (tensor.step and tensor.ring) or tensor.bound is None:
                raise PlanError(f"tensor {tensor.name!r} is not in fixed point; put quantise() before paillier()")
            if tensor.ring not in (32, 64):
                raise PlanError(f"tensor {tensor.name!r}: slots hold rings of 32 and 64 bits, not {tensor.ring}")
            if plan.clients * units(tensor) > 2 ** (tensor.ring - 1) - 1:
                raise PlanError(f"tensor {tensor.name!r}: {plan.clients} clients overflow {tensor.ring}-bit slots")
        rings = sorted({tensor.ring for tensor in plan.tensors})
        members = {ring: tuple(t for t in plan.tensors if t.ring == ring) for ring in rings}
        return cls(tuple(SlotGroup(ring, members[ring], (bits - 1) // ring) for ring in rings))

    @property
    def plaintexts(self) -> int:
        """Number of plaintexts of one contribution."""
        return sum(group.plaintexts for group in self.groups)

    def pack(self, encoded: Tensors) -> list[Any]:
        """Pack one contribution of int64 tensors into plaintexts.

        Raises:
            RangeRefused: an entry lies outside the planned bound.
        """
        return [plaintext for group in self.groups for plaintext in _pack(group, encoded)]

    def uniform(self, modulus: int) -> list[Any]:
        """Draw the plaintexts of a client that sits out: uniform below `modulus`, from the operating system.

        A client sits out if its values are out of range or its computation failed. It must not show that by itself;
        whatever is added to its plaintexts, the sum is uniform.
        """
        return [gmpy2.mpz(secrets.randbelow(modulus)) for _ in range(self.plaintexts)]

    def unpack(self, plaintexts: Sequence[Any], count: int, sender: PartyId) -> dict[str, Array]:
        """Unpack the int64 sums of `count` packed contributions, shaped as the plan's tensors; errors name `sender`.

        Raises:
            MalformedError: a slot exceeds what `count` clients inside their bounds can add up to, or padding is not
                zero: some client's plaintext, or the reply, is not what the plan says.
        """
        out: dict[str, Array] = {}
        start = 0
        for group in self.groups:
            out |= _unpack(group, plaintexts[start : start + group.plaintexts], count, sender)
            start += group.plaintexts
        return out


def unpack_sum(
    packing: Packing, plan: Plan, plaintexts: Sequence[Any], count: int, sender: PartyId
) -> dict[str, Array]:
    """Unpack the int64 sums of `count` contributions; zeros with the indicator set where some client sat out.

    The indicator is a further tensor that every contributing client uploads as zero (`Defense`). A client that sits out
    makes every plaintext of the sum uniform. So a sum that is out of range means the same as an indicator that is not
    zero: some client was out, or sent what the plan does not allow.

    Args:
        packing: layout of a contribution.
        plan: the plan of the exchange.
        plaintexts: the plaintexts of the sum, as decrypted.
        count: number of contributions in it.
        sender: the party that decrypted it, named in errors.

    Raises:
        MalformedError: as `Packing.unpack`, where the plan has no indicator.
    """
    if not has_indicator(plan):
        return packing.unpack(plaintexts, count, sender)
    try:
        total = packing.unpack(plaintexts, count, sender)
    except MalformedError:
        return out_total(plan, np.int64)
    return out_total(plan, np.int64) if some_client_out(total, plan) else total


def out_total(plan: Plan, dtype: type[np.int64] | type[np.float64]) -> dict[str, Array]:
    """Return what replaces a sum that is uniformly random: zeros, and 1 in the indicator."""
    total = {tensor.name: np.zeros(tensor.shape, dtype) for tensor in plan.tensors}
    return total | {INDICATOR: np.ones_like(total[INDICATOR])}


def units(tensor: TensorPlan) -> int:
    """Return u, the largest absolute integer that a client's entry may take."""
    assert tensor.bound is not None
    return math.ceil(tensor.bound / tensor.step)


def _pack(group: SlotGroup, encoded: Tensors) -> list[Any]:
    """Pack the tensors of one slot width; unused slots at the end hold 0."""
    words = np.zeros(group.plaintexts * group.slots, group.dtype)
    start = 0
    for tensor in group.tensors:
        limit = units(tensor)
        # Unsigned arithmetic mod 2^64: exactly the entries in [-limit, limit] land in [0, 2 limit].
        shifted = np.ascontiguousarray(encoded[tensor.name], np.int64).reshape(-1).view(np.uint64) + np.uint64(limit)
        if shifted.size and int(shifted.max()) > 2 * limit:
            raise RangeRefused(f"{tensor.name!r} holds integers beyond {limit}, the planned bound over the step")
        words[start : start + tensor.size] = shifted
        start += tensor.size
    data, width = words.tobytes(), group.slots * group.ring // 8  # bytes of one plaintext
    return [gmpy2.mpz(int.from_bytes(data[i : i + width], "little")) for i in range(0, len(data), width)]


def _unpack(group: SlotGroup, plaintexts: Sequence[Any], count: int, sender: PartyId) -> dict[str, Array]:
    """Unpack the sums of one slot width; `MalformedError` as `Packing.unpack`."""
    width = group.slots * group.ring // 8
    if any(plaintext.bit_length() > 8 * width for plaintext in plaintexts):
        raise MalformedError(sender, "a decrypted sum is longer than its slots")
    data = b"".join(int(plaintext).to_bytes(width, "little") for plaintext in plaintexts)
    words = np.frombuffer(data, group.dtype)
    if words[group.entries :].any():
        raise MalformedError(sender, "padding of a decrypted sum is not zero")
    out: dict[str, Array] = {}
    start = 0
    for tensor in group.tensors:
        part = words[start : start + tensor.size].astype(np.uint64)
        start += tensor.size
        offset = count * units(tensor)
        if part.size and int(part.max()) > 2 * offset:
            raise MalformedError(sender, f"the sum of {tensor.name!r} exceeds what {count} clients can add up to")
        out[tensor.name] = (part - np.uint64(offset)).view(np.int64).reshape(tensor.shape)
    return out
