"""Masked uploads as the server takes them: one at a time, added to what came before, and forgotten."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securefed.defenses.base import Plan
from securefed.defenses.fixed_point import wire_dtype
from securefed.defenses.secure_aggregation import channel, verification
from securefed.defenses.secure_aggregation.session import MASKED, wire_shape
from securefed.messages import Message
from securefed.tensors import Array


def check_upload(reply: Message, plan: Plan) -> None:
    """Raise `MalformedError` unless the reply holds just the plan's tensors as they travel, and the tag if any."""
    check = (verification.CHECK,) if plan.verified else ()
    channel.expect_fields(reply, (*(f"{MASKED}/{tensor.name}" for tensor in plan.tensors), *check, channel.TAG))
    for name in check:
        channel.take(reply, name, np.uint64, (2,))
    for tensor in plan.tensors:
        channel.take(reply, f"{MASKED}/{tensor.name}", wire_dtype(tensor.ring), wire_shape(tensor))


def add_upload(totals: Sequence[Array], reply: Message, plan: Plan) -> tuple[Array, ...]:
    """New totals, flat and in the plan's order, with this upload in them; without any before it, a copy of it."""
    parts = [reply.body[f"{MASKED}/{tensor.name}"].reshape(-1) for tensor in plan.tensors]
    if not totals:
        return tuple(part.copy() for part in parts)
    return tuple(total + part for total, part in zip(totals, parts, strict=True))


def add_tag(total: Array, reply: Message) -> Array:
    """The sum of tags with that of this upload, as a field; `total` is empty before the first."""
    tag = reply.body[verification.CHECK]
    return verification.add_checks([total, tag] if total.size else [tag])
