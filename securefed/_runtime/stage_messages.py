"""The messages of one stage of an exchange at the server: requests encoded when they are sent, their log, their limits.

A stage has a request for each party. Not all lie in memory at once (`Requests`); each that is sent or accepted is
counted and, where the run keeps a transcript, recorded (`MessageLog`): the transcript is all that the server sees of a
run, and attacks and audits read it. The length of a message is bounded from the plan, so that a party refuses an
endless one before it parses it (`MessageLimits`): parsing takes time in proportion to the list of fields (names, types,
shapes) and to their entries. Every party derives the bounds from the same public plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from securefed._messages import SERVER, Message, PartyId, SentMessage, Transcript
from securefed.defenses._base import Plan
from securefed.errors import MalformedError


class Requests(Mapping[PartyId, bytes]):
    """A stage's requests by receiver: `encode(party)` makes one whenever it is looked up, and none is kept."""

    def __init__(self, parties: Mapping[PartyId, Any], encode: Callable[[PartyId], bytes]) -> None:
        self._parties, self._encode = parties, encode

    def __getitem__(self, party: PartyId) -> bytes:
        if party not in self._parties:
            raise KeyError(party)
        return self._encode(party)

    def __iter__(self) -> Iterator[PartyId]:
        return iter(self._parties)

    def __len__(self) -> int:
        return len(self._parties)

    def __contains__(self, party: object) -> bool:
        return party in self._parties


@dataclass
class MessageLog:
    """Records the run's messages in its transcript, and counts their bytes.

    Attributes:
        transcript: the transcript.
        keep: whether it keeps the messages and sums; sizes are counted either way.
        up: bytes received so far, void exchanges included.
        down: bytes sent so far, void exchanges included.
    """

    transcript: Transcript
    keep: bool = True
    up: int = 0
    down: int = 0

    def note(self, message: Message, nbytes: int) -> None:
        """Keep one message that was sent or accepted."""
        if self.keep:
            self.transcript.sent.append(SentMessage(message, nbytes))


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
    """The longest messages of an exchange.

    Attributes:
        request: bytes of a message of the server.
        reply: bytes of a message of a client or helper.
        fields: bytes of the list of fields of any of them.
    """

    request: int
    reply: int
    fields: int

    @classmethod
    def of(cls, plan: Plan, broadcast_bytes: int = 0) -> MessageLimits:
        """Derive the limits of all messages under a plan, to and from one client or helper.

        An upload, or a helper's part in decrypting, takes at most twice the planned bytes. A request holds at most the
        announced sum of 64-bit integers and the broadcast, which may be sent twice (as what followed from the last sum,
        and as the current one); without masks the server also relays all ciphertexts to those who decrypt.

        Args:
            plan: the plan of the exchange.
            broadcast_bytes: bytes of the tensors that the server sends for a contribution.
        """
        fields = _FIELDS + sum(8 * len(tensor.name.encode()) + _PER_TENSOR for tensor in plan.tensors)
        reply = fields + 2 * plan.upload_bytes + _PER_CLIENT * (plan.clients + 1)
        relayed = 0 if plan.masking is not None else 2 * plan.clients * plan.upload_bytes
        request = reply + relayed + 8 * sum(tensor.size for tensor in plan.tensors) + 2 * broadcast_bytes
        return cls(request, reply, fields)

    def check(self, data: bytes, sender: PartyId) -> None:
        """Refuse bytes that are longer than any message of the exchange; nothing is parsed.

        Args:
            data: the bytes of a message, without any header in front.
            sender: the party that the transport names as their sender.

        Raises:
            MalformedError: they are longer, or their list of fields is.
        """
        most = self.request if sender == SERVER else self.reply
        if len(data) > most:
            raise MalformedError(sender, f"it has {len(data)} bytes, and no message of these terms exceeds {most}")
        if (listed := int.from_bytes(data[:_LENGTH_BYTES], "little")) > self.fields:
            raise MalformedError(
                sender, f"its list of fields claims {listed} bytes, and no message of these terms exceeds {self.fields}"
            )
