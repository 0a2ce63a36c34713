"""Place the integers of a contribution in the coefficients of ciphertexts, and read their sums back.

A coefficient's sum holds `value_bits` bits (`parameters.Encoding`). Entries of narrow rings share one: those of a ring
of r bits stand beside each other in lanes of r bits, whose sums fit them, as the plan says. With two primes a
coefficient holds an entry of 64 bits. Only the indicator is cut into pieces where its ring is too wide for one prime:
it is 0 for every client that contributes, so that the sums of pieces show nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array, Tensors
from securefed.defenses._base import INDICATOR
from securefed.defenses._fixed_point import is_ring
from securefed.defenses._one_message.parameters import Encoding
from securefed.defenses._plan import Plan, TensorPlan
from securefed.errors import DataError, PlanError, RangeRefused

_WORD = 64


@dataclass(frozen=True)
class Placing:
    """Where the entries of a plan's tensors stand.

    Attributes:
        tensors: the tensors, in the plan's order.
        encoding: how many bits a coefficient holds.
    """

    tensors: tuple[TensorPlan, ...]
    encoding: Encoding

    @classmethod
    def of(cls, plan: Plan) -> Placing:
        """Place a plan's tensors.

        Raises:
            PlanError: a tensor is not quantised, or too many clients are planned for the modulus.
        """
        for tensor in plan.tensors:
            if not tensor.step or not is_ring(tensor.ring):
                raise PlanError(f"tensor {tensor.name!r} is not quantised; put quantise() before one_message()")
        entries = sum(tensor.size for tensor in plan.tensors)
        widest = max((tensor.ring for tensor in plan.tensors if tensor.name != INDICATOR), default=0)
        # more coefficients than entries: the pieces of the indicator, of 8 bits at least
        return cls(plan.tensors, Encoding.of(plan.clients, entries + _WORD, widest))

    def lanes(self, ring: int) -> int:
        """Return the number of entries in a coefficient; 0 where an entry takes several."""
        return (
            1 if self.encoding.primes > 1 and ring >= _WORD // 2 else min(self.encoding.value_bits, _WORD - 2) // ring
        )

    def limbs(self, ring: int) -> int:
        """Return the number of coefficients that an entry takes: 1, or several for the indicator."""
        return 1 if self.lanes(ring) else -(-ring // self.encoding.limb_bits)

    def coefficients(self, tensor: TensorPlan) -> int:
        """Return the number of coefficients that a tensor takes."""
        lanes = self.lanes(tensor.ring)
        return -(-tensor.size // lanes) if lanes else tensor.size * self.limbs(tensor.ring)

    @property
    def blocks(self) -> int:
        """Number of ciphertext polynomials of a contribution."""
        return -(-sum(map(self.coefficients, self.tensors)) // self.encoding.degree)

    @property
    def size(self) -> int:
        """Number of coefficients of a contribution, padding included."""
        return self.blocks * self.encoding.degree

    def place(self, encoded: Tensors) -> Array:
        """Return the coefficients of one contribution, int64 (`size`,).

        Args:
            encoded: int64 tensors in fixed point, named as in the plan.

        Raises:
            DataError: other tensors, shapes or types than planned.
            RangeRefused: an entry does not fit its ring.
        """
        out, start = np.zeros(self.size, np.int64), 0
        for tensor in self.tensors:
            value = encoded.get(tensor.name)
            if value is None or value.dtype != np.int64 or value.shape != tensor.shape:
                raise DataError(f"the encoded contribution has no int64 tensor {tensor.name!r} of shape {tensor.shape}")
            _check_range(value, tensor)
            end = start + self.coefficients(tensor)
            out[start:end] = self._placed(value.reshape(-1), tensor.ring)
            start = end
        return out

    def _placed(self, flat: Array, ring: int) -> Array:
        if not (lanes := self.lanes(ring)):
            return np.concatenate(self._cut(flat, self.limbs(ring)))
        width = -(-flat.size // lanes)
        packed = np.zeros(width, np.int64)
        for lane in range(lanes):
            part = flat[lane * width : (lane + 1) * width]
            packed[: part.size] += part << np.int64(lane * ring)
        return packed

    def _cut(self, flat: Array, limbs: int) -> Sequence[Array]:
        """Cut entries into limbs from the lowest; the last one has the sign."""
        bits = np.int64(self.encoding.limb_bits)
        pieces = []
        for _ in range(limbs - 1):
            pieces.append(flat & ((np.int64(1) << bits) - np.int64(1)))
            flat = flat >> bits
        return [*pieces, flat]

    def read(self, total: Array) -> dict[str, Array]:
        """Return the sums of the entries, int64 tensors by name, from the coefficients of the sum (`size`,)."""
        out, start = {}, 0
        for tensor in self.tensors:
            end = start + self.coefficients(tensor)
            out[tensor.name] = self._read(total[start:end], tensor).reshape(tensor.shape)
            start = end
        return out

    def _read(self, part: Array, tensor: TensorPlan) -> Array:
        ring = tensor.ring
        if not (lanes := self.lanes(ring)):
            pieces = part.reshape(self.limbs(ring), tensor.size)
            total = np.zeros(tensor.size, np.uint64)
            for place, piece in enumerate(pieces):  # modulo 2^64, the plan's ring
                total += piece.view(np.uint64) << np.uint64(place * self.encoding.limb_bits)
            return total.view(np.int64) if ring == _WORD else _signed(total.view(np.int64), ring)
        entries, rest = [], part
        for _ in range(lanes):
            lane = _signed(rest, ring)
            entries.append(lane)
            rest = (rest - lane) >> np.int64(ring)
        return np.concatenate(entries)[: tensor.size]


def _signed(values: Array, ring: int) -> Array:
    """Return the lowest `ring` bits as signed integers."""
    unused = np.int64(_WORD - ring)
    return np.asarray((values << unused) >> unused)


def _check_range(value: Array, tensor: TensorPlan) -> None:
    """Raise `RangeRefused` for an entry that does not fit its ring."""
    if (
        tensor.ring < _WORD
        and value.size
        and not -(2 ** (tensor.ring - 1)) <= value.min() <= value.max() < 2 ** (tensor.ring - 1)
    ):
        raise RangeRefused(f"an encoded entry of {tensor.name!r} does not fit its ring of {tensor.ring} bits")
