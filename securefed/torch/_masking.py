"""Mask the integers of one rank for one call, and read the control words of the sum. Nothing is sent here.

A call sums one flat tensor over all ranks. A rank's words are its values in fixed point, followed by control words:

    value_0 ... value_{n-1}   too large (2)   not finite (2)   check (2)

A rank without trouble adds 0 to all control words, and masks everything by one stream for each other rank. With
G(k) the stream of pseudo-random words of key k, and k_rp the key of ranks r and p, rank r sends

    y_r = (value words, control words) + sum_{p > r} G(k_rp) - sum_{p < r} G(k_rp)     modulo 2^ring,

so the streams of a pair cancel in sum_r y_r. Rank 0 also adds the common stream, which all ranks know and subtract
after the sum: so a party outside the group that reads the network does not learn the sum either.

A stream is keyed by the pair's secret, which is new in every agreement of keys, and by the call's name: kind, number,
length, ring and step. So no stream is used twice, and ranks that differ in any of these do not cancel: then the check
words are uniform, and both are 0 with a probability of 2^-64 (2^-128 in a ring of 64 bits). A rank that leaves its
masks out is found in the same way, and so is a link that alters check words, as a fault that hits a whole message does.
What the check words do not find: a rank that adds wrong values under the right masks, and a link that alters value
words alone, as either could in an all-reduce in the clear.

A rank whose values are too large or not finite adds uniform words instead of its values, and uniform words to the pair
of control words that says why. The sum is then noise, and shows that some rank was out, but not which or how many.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from securefed._tensors import Array, Ring
from securefed.defenses._fixed_point import Quantise, wire_dtype
from securefed.defenses._plan import Plan, TensorPlan
from securefed.defenses._secure_aggregation.chacha_stream import AES, StreamName
from securefed.defenses._secure_aggregation.masks import SignedMask, apply_masks, pair_mask
from securefed.defenses._secure_aggregation.primitives import hkdf, label
from securefed.errors import MaskMismatch

CONTROL: Final = 6
"""Number of control words: three pairs, each of 64 bits or more, so that none is 0 by chance."""


class Trouble(enum.Enum):
    """Why a rank cannot add its values; the value is the place of its first control word."""

    TOO_LARGE = 0
    NOT_FINITE = 2


@dataclass(frozen=True)
class Call:
    """The public facts of one call, the same at every rank.

    Attributes:
        kind: `hook` for a bucket of gradients, `own` for `secure_all_reduce`, `trial` for the sum of known numbers that
            tests the backend after the agreement of keys.
        number: counts the calls of this kind from 0.
        length: number of values.
        ring: width in bits of the integers.
        step: value of one integer unit, a power of two.
    """

    kind: Literal["hook", "own", "trial"]
    number: int
    length: int
    ring: Ring
    step: float

    @property
    def name(self) -> str:
        """All facts as one text, which keys the streams."""
        return f"{self.kind} {self.number}: {self.length} values, {self.ring} bits, step {self.step.hex()}"


class RankMasks:
    """The masks of one rank with all others.

    Args:
        session: digest of the agreement of keys.
        rank: this rank.
        agreements: by other rank, the agreed X25519 secret.
        common: 32 bytes that all ranks know.
        stream: name of the stream that masks are made of.
    """

    def __init__(
        self, session: bytes, rank: int, agreements: Mapping[int, bytes], common: bytes, stream: StreamName = AES
    ) -> None:
        self._stream = stream
        self._pairs = [pair_mask(agreements[peer], session, rank, peer) for peer in sorted(agreements)]
        self._common = SignedMask(hkdf(common, label("common mask", session)), 1)
        self._own = [*self._pairs, self._common] if rank == 0 else self._pairs

    def expand(self, call: Call, into: Array | None = None) -> Array:
        """Return the sum of this rank's masks, one for each value and control word: uint32 or uint64.

        Args:
            call: the call.
            into: an array that may be overwritten, of the length and type of the words; a new one without it.
        """
        words = np.empty(call.length + CONTROL, wire_dtype(call.ring)) if into is None else into
        words[:] = 0
        apply_masks([words], self.of_call(call), stream=self._stream)
        return words

    def remove_common(self, words: Array, call: Call) -> None:
        """Subtract the common stream from the sum of all ranks' words, in place."""
        apply_masks([words], [self.common_of_call(call)], remove=True, stream=self._stream)

    def of_call(self, call: Call) -> list[SignedMask]:
        """Derive this rank's masks for one call."""
        return [_of_call(mask, call) for mask in self._own]

    def common_of_call(self, call: Call) -> SignedMask:
        """Derive the common mask for one call."""
        return _of_call(self._common, call)


def planned(bound: float, ring: Ring, ranks: int) -> TensorPlan:
    """Plan the fixed point of one call: its step, and the largest error of the sum.

    Raises:
        PlanError: too many ranks for the ring, or a bound too small for it.
    """
    tensor = TensorPlan("values", (), bound, ring, 0.0, 0, 0.0)  # the zeros are for `Quantise` to plan
    plan = Plan("masked all-reduce", ranks, (tensor,), {"values": ring})
    return Quantise(ring).plan(plan).tensors[0]


def spoil(words: Array, trouble: Trouble) -> None:
    """Add uniform words instead of values, and to the control words that state the trouble, in place."""
    values, control = words[:-CONTROL], words[-CONTROL:]
    for part in (values, control[trouble.value : trouble.value + 2]):
        np.add(part, np.frombuffer(secrets.token_bytes(part.nbytes), part.dtype), out=part)


def read_control(words: Array, call: Call) -> Trouble | None:
    """Return what some rank reported in the sum, `None` where all is well.

    Raises:
        MaskMismatch: the masks did not cancel.
    """
    control = words[-CONTROL:]
    if control[-2:].any():
        raise MaskMismatch(
            f"the masks of the ranks did not cancel in call {call.name!r}: some rank left its masks out, made another "
            "number of calls, has another step or buckets, or the network altered the message. The sum is "
            "of no use and no step may be made of it; start the run again on all ranks, with the same code everywhere"
        )
    # NOT_FINITE goes before TOO_LARGE: where some rank has both kinds of entries, a larger bound would not help.
    return next((trouble for trouble in reversed(Trouble) if control[trouble.value : trouble.value + 2].any()), None)


def _of_call(mask: SignedMask, call: Call) -> SignedMask:
    return SignedMask(hkdf(mask.secret, label("call", call.name)), mask.sign)
