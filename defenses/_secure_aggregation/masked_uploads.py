"""Turn contributions into the integers that are masked, and check and add masked uploads at the server.

A contribution is a client's tensors in fixed point: signed int64, within bounds of the plan. For masking they become
residues modulo 2^ring, flat unsigned arrays; a ring is the width in bits that the plan gives a tensor's sum. In rings
of 21 bits or fewer several entries share a 64-bit integer, each in its own range of bits, a lane (`_fixed_point`). A
client calls `residues_of` before it adds its masks; the server calls the rest for each upload.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

import numpy as np

from securefed._messages import Message
from securefed._tensors import Array, Tensors
from securefed.defenses._base import Plan, TensorPlan
from securefed.defenses._fixed_point import lanes, to_ring, wire_dtype, wire_size
from securefed.defenses._secure_aggregation import channel, verification
from securefed.defenses._secure_aggregation.primitives import KEY_BYTES, key_stream
from securefed.defenses._secure_aggregation.session import MASKED, wire_shape
from securefed.errors import DataError, RangeRefused

_PART: Final = 1 << 15
"""Entries converted at a time; 256 kB, which stay in a core's second-level cache."""
_BLOCK: Final = 16
_ZEROS: Final = memoryview(bytes(1 << 16))
"""Encrypted a part at a time for a stand-in, which takes no memory beside it."""


def check_upload(reply: Message, plan: Plan) -> None:
    """Raise `MalformedError` unless the reply holds just the fields of an upload, as they travel.

    These are the plan's tensors; where clients check the announced sum, the tag for that (`verification.CHECK`); and
    the tag that authenticates the message itself (`channel.TAG`).
    """
    check = (verification.CHECK,) if plan.verified else ()
    channel.expect_fields(reply, (*(f"{MASKED}/{tensor.name}" for tensor in plan.tensors), *check, channel.TAG))
    for name in check:
        channel.take(reply, name, np.uint64, (2,))
    for tensor in plan.tensors:
        channel.take(reply, f"{MASKED}/{tensor.name}", wire_dtype(tensor.ring), wire_shape(tensor))


def add_upload(totals: Sequence[Array], reply: Message, plan: Plan) -> tuple[Array, ...]:
    """Return new totals with this upload in them.

    Args:
        totals: sums of the uploads so far, flat and in the plan's order; empty before the first, which is copied.
        reply: an upload that `check_upload` passed.
        plan: names the tensors. Unsigned addition wraps at 2^32 or 2^64, as the masks do.
    """
    parts = [reply.body[f"{MASKED}/{tensor.name}"].reshape(-1) for tensor in plan.tensors]
    if not totals:
        return tuple(part.copy() for part in parts)
    return tuple(total + part for total, part in zip(totals, parts, strict=True))


def residues_of(encoded: Tensors, plan: Plan) -> list[Array]:
    """Convert an encoded contribution to flat residues, in the plan's order, which share no memory with it.

    Args:
        encoded: int64 tensors in fixed point, named as in the plan.
        plan: shapes and rings.

    Raises:
        DataError: other names, types or shapes than the plan's.
        RangeRefused: an entry does not fit its ring.
    """
    tensors = plan.tensors
    if set(encoded) != {tensor.name for tensor in tensors}:
        raise DataError(f"encoded tensors {sorted(encoded)} are not those of the plan")
    out = []
    for tensor in tensors:
        value = encoded[tensor.name]
        if value.shape != tensor.shape or value.dtype != np.int64:
            raise DataError(
                f"encoded {tensor.name!r} is {value.dtype} of shape {value.shape}, not int64 {tensor.shape}"
            )
        out.append(_residues(value.reshape(-1), tensor, plan.clients))
    return out


def _residues(flat: Array, tensor: TensorPlan, clients: int) -> Array:
    """Check that all entries fit the ring, and convert them; a part at a time, which is read once from memory."""
    least, most = -(2 ** (tensor.ring - 1)), 2 ** (tensor.ring - 1) - 1
    whole = lanes(tensor.ring) == 1
    if not whole:  # a sum beyond its ring would spill into the next lane, so each client has its share
        least, most = -(most // clients), most // clients
    out = np.empty(flat.size if whole else 0, wire_dtype(tensor.ring))
    for start in range(0, flat.size, _PART):
        part = np.ascontiguousarray(flat[start : start + _PART])
        if not least <= part.min() <= part.max() <= most:
            raise RangeRefused(f"encoded {tensor.name!r} does not fit a ring of {tensor.ring} bits")
        if whole:
            np.copyto(out[start : start + _PART], part.view(np.uint64), casting="unsafe")  # the low bits, as `to_ring`
    return out if whole else to_ring(flat, tensor.ring)


def uniform_residues(plan: Plan) -> list[Array]:
    """Draw the integers of a client that sits out: a stream under a fresh key from the operating system.

    A sum with them is uniform, and reveals nothing of its other terms. Flat arrays in the plan's order, as they travel.
    """
    stream, drawn = key_stream(secrets.token_bytes(KEY_BYTES)), []
    for tensor in plan.tensors:
        dtype = wire_dtype(tensor.ring)
        nbytes = dtype.itemsize * wire_size(tensor.size, tensor.ring)
        out = np.empty(nbytes + _BLOCK, np.uint8)  # `update_into` wants room for one block more than it fills
        for start in range(0, nbytes, len(_ZEROS)):
            stream.update_into(_ZEROS[: nbytes - start], out[start:])
        drawn.append(out[:nbytes].view(dtype))
    return drawn


def upload_residues(encoded: Tensors | None, plan: Plan) -> list[Array]:
    """Return the integers that a client masks: of its contribution, or uniform ones where it sits out.

    Both are made in either case, and one is selected last: else a server that times replies would see who sat out.

    Args:
        encoded: the contribution, int64 tensors in fixed point; `None` for a client that sits out.
        plan: shapes and rings.

    Raises:
        DataError, RangeRefused: as `residues_of`.
    """
    # zeros without memory of their own, where the arrays of a contribution are in memory: fresh pages would take longer
    nothing = np.zeros((), np.int64)
    zeros = {t.name: np.broadcast_to(nothing, t.shape) for t in plan.tensors}
    own, stand_in = residues_of(zeros if encoded is None else encoded, plan), uniform_residues(plan)
    return stand_in if encoded is None else own
