"""Bound the length of messages from the plan, so that a party refuses an endless message before it parses it.

A message is a list of fields (names, types, shapes) and their entries. Parsing takes time in proportion to the list and
to the entries, so that both are bounded. Every party derives the bounds from the same public plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from securefed._messages import PartyId
from securefed.defenses._base import Plan
from securefed.errors import MalformedError

_FIELDS: Final = 2**14
"""Bytes for the fields that every message has, whatever the tensors: at most 30 names with types and shapes, of at most
200 bytes each (the longest list of a plan without tensors has 2,100 bytes)."""
_PER_TENSOR: Final = 8 * 200
"""A message holds a tensor at most as broadcast, upload, announced sum and proof, each in at most two fields."""
_PER_CLIENT: Final = 1000
"""Public keys, encrypted shares, signatures and numbers that a message holds for one client of the exchange."""
_LENGTH_BYTES: Final = 8  # safetensors: the length of the list of fields, little-endian


@dataclass(frozen=True)
class MessageLimits:
    """The longest message of an exchange.

    Attributes:
        message: bytes of a whole message.
        fields: bytes of its list of fields.
    """

    message: int
    fields: int

    @classmethod
    def of(cls, plan: Plan, broadcast_bytes: int = 0) -> MessageLimits:
        """Derive the limits of all messages under a plan, to and from one client or helper.

        An upload takes at most twice the planned bytes. A request holds at most the encrypted sum, which is as large as
        an upload, beside an announced sum of 64-bit integers and the broadcast, which may be sent twice (as what
        followed from the last sum, and as the current one).

        Args:
            plan: the plan of the exchange.
            broadcast_bytes: bytes of the tensors that the server sends for a contribution.
        """
        fields = _FIELDS + sum(8 * len(tensor.name.encode()) + _PER_TENSOR for tensor in plan.tensors)
        entries = 2 * plan.upload_bytes + 8 * sum(tensor.size for tensor in plan.tensors) + 2 * broadcast_bytes
        return cls(fields + entries + _PER_CLIENT * (plan.clients + 1), fields)

    def check(self, data: bytes, sender: PartyId) -> None:
        """Refuse bytes that are longer than any message of the exchange; nothing is parsed.

        Args:
            data: the bytes of a message, without any header in front.
            sender: the party that the transport names as their sender.

        Raises:
            MalformedError: they are longer, or their list of fields is.
        """
        if len(data) > self.message:
            raise MalformedError(
                sender, f"it has {len(data)} bytes, and no message of these terms exceeds {self.message}"
            )
        if (listed := int.from_bytes(data[:_LENGTH_BYTES], "little")) > self.fields:
            raise MalformedError(
                sender, f"its list of fields claims {listed} bytes, and no message of these terms exceeds {self.fields}"
            )
