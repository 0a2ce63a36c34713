"""The facts that all parties of a sum agree on before it, whatever computes the contributions.

Server and clients derive the schema of the messages from the same terms. So the size of an upload tells the server
nothing about data, and a client can refuse a broadcast of another shape before anything is computed from it.
The length of a message is bounded from the plan, so that a party refuses an endless one before it parses it
(`MessageLimits`): parsing takes time in proportion to the list of fields (names, types, shapes) and to their entries.

The plan of an exchange states how the defence makes its sum: for each tensor the norm to which it is clipped, its
fixed-point step and the width of the integers that are added, and for the protocol its stages, threshold and bytes.
Each party derives it by itself from the same facts, so that a server cannot give a client another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from securefed._messages import SERVER, PartyId
from securefed._runtime.exchange_header import TRAIN, ExchangeHeader, ExchangeSchedule
from securefed._runtime.sum_memory import SumRule
from securefed._tensors import Layout, Tensors
from securefed.defenses._base import Defense, Plan, has_indicator
from securefed.errors import DataError, MalformedError

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


@dataclass(frozen=True)
class SumSchema:
    """The tensors of every message, and the numbers of clients.

    Attributes:
        layouts: by kind of exchange, the tensors that a client uploads; a run sums no other kinds.
        broadcast: the tensors that the server sends with the request for an upload.
        dtypes: their types.
        clients: number of clients.
        cohort: number of clients planned for a sum.
        needs_outcome: whether a client needs the broadcast that followed from the sum that counted it.
        check_values: raises `DataError` for entries of a broadcast that the bounds of contributions do not allow for.
    """

    layouts: Mapping[str, Layout]
    broadcast: Layout
    dtypes: Mapping[str, np.dtype[Any]]
    clients: int
    cohort: int
    needs_outcome: bool = False
    check_values: Callable[[Tensors], None] | None = None

    def check_broadcast(self, sender: PartyId, broadcast: Tensors) -> None:
        """Refuse a broadcast that no honest server sends.

        Args:
            sender: the party named in the error.
            broadcast: the tensors received.

        Raises:
            MalformedError: other names, shapes or types, entries that are not finite, or what `check_values` rules
                out. The rules look at the broadcast alone.
        """
        try:
            self.broadcast.check(broadcast, where="broadcast")
            for name, value in broadcast.items():
                if value.dtype != self.dtypes[name]:
                    raise DataError(f"broadcast {name!r} is {value.dtype}, not {self.dtypes[name]}")
            if self.check_values is not None:
                self.check_values(broadcast)
        except (DataError, TypeError) as error:
            raise MalformedError(sender, str(error)) from error


@dataclass(frozen=True, kw_only=True)
class SumFacts:
    """The facts that all parties of a sum agreed on.

    Attributes:
        defense: protects the contributions in messages.
        schema: the tensors of every message.
        exchanges: which sums the run makes, and how often each may be attempted; a client refuses others.
        rule: which sums a client lets out beside earlier ones of its data.
    """

    defense: Defense
    schema: SumSchema
    exchanges: ExchangeSchedule = ExchangeSchedule()
    rule: SumRule = SumRule()

    def plan(self, header: ExchangeHeader) -> Plan:
        """Return the plan of the exchange with this header.

        Args:
            header: public numbers that the server sends. The plan depends on three: the kind of the sum (training or
                evaluation); how often the planned bounds of the entries were doubled, since a sum in which a value
                exceeded its bound is void and is repeated with twice the bounds; and what an adaptive defence learned
                from earlier sums, such as the clipping norm.

        Raises:
            PlanError: the defence cannot keep its promise after so many doublings of the bounds.
        """
        asked = header.kind, header.doublings, header.learned
        if (plan := self._newest.get(asked)) is None:
            layout, cohort = self.schema.layouts[header.kind], self.schema.cohort
            plan = self.defense.plan(layout, cohort, range_doublings=header.doublings, learned=header.learned)
            self._newest.clear()
            self._newest[asked] = plan
        return plan

    @cached_property
    def _newest(self) -> dict[tuple[str, int, tuple[float, ...]], Plan]:
        """The newest plan, by what it was derived from: the clients of a simulation ask for the same one."""
        return {}

    @cached_property
    def training(self) -> Plan:
        """The plan of the first training exchange, before any doubling of the bounds."""
        return self.defense.plan(self.schema.layouts[TRAIN], self.schema.cohort)

    @cached_property
    def learned(self) -> tuple[float, ...]:
        """The public numbers of the first training exchange that an adaptive defence learns anew from each sum."""
        return self.defense.start(self.schema.layouts[TRAIN])

    @cached_property
    def limits(self) -> MessageLimits:
        """The longest message of the run, for parties that receive bytes."""
        return MessageLimits.of(self.training, sum(8 * spec.size for spec in self.schema.broadcast))

    @cached_property
    def hide_absence(self) -> bool:
        """True if a client without a contribution, as where its values exceed their bounds, uploads all the same.

        The server then does not learn which client it is. Where uploads are masked or encrypted, the client uploads
        random numbers, and an added tensor, the indicator, shows in the sum that some client did (`has_indicator`).
        Under noise it uploads zeros with noise, since a refusal depends on its data and epsilon does not cover it. If
        false, uploads are in the clear without noise, and the client answers with an error, which shows who it is.
        """
        return has_indicator(self.training) or self.training.noised
