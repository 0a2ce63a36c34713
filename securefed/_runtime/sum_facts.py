"""What all parties of a sum agree on before it, whatever computes the contributions.

Server and clients derive the schema of the messages from the same terms. So the size of an upload tells the server
nothing about data, and a client can refuse a broadcast of another shape before anything is computed from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from securefed._messages import PartyId
from securefed._runtime.exchange_header import TRAIN
from securefed._runtime.exchange_schedule import ExchangeSchedule
from securefed._runtime.message_limits import MessageLimits
from securefed._runtime.sum_memory import SumRule
from securefed._tensors import Layout, Tensors
from securefed.defenses._base import Defense
from securefed.errors import DataError, MalformedError


@dataclass(frozen=True)
class SumSchema:
    """The tensors of every message, and the numbers of clients.

    Attributes:
        layouts: by kind of exchange, the tensors that a client uploads; a run sums no other kinds.
        broadcast: the tensors that the server sends with the request for an upload.
        dtypes: their types.
        clients: number of clients.
        cohort: number of clients planned for a sum.
    """

    layouts: Mapping[str, Layout]
    broadcast: Layout
    dtypes: Mapping[str, np.dtype[Any]]
    clients: int
    cohort: int

    @property
    def needs_outcome(self) -> bool:
        """True if a client needs the broadcast that followed from the sum that counted it."""
        return False

    def check_broadcast(self, sender: PartyId, broadcast: Tensors) -> None:
        """Refuse a broadcast that no honest server sends.

        Args:
            sender: the party named in the error.
            broadcast: the tensors received.

        Raises:
            MalformedError: other names, shapes or types, entries that are not finite, or what `_check_values` rules
                out. The rules look at the broadcast alone.
        """
        try:
            self.broadcast.check(broadcast, where="broadcast")
            for name, value in broadcast.items():
                if value.dtype != self.dtypes[name]:
                    raise DataError(f"broadcast {name!r} is {value.dtype}, not {self.dtypes[name]}")
            self._check_values(broadcast)
        except (DataError, TypeError) as error:
            raise MalformedError(sender, str(error)) from error

    def _check_values(self, broadcast: Tensors) -> None:
        """Raise `DataError` for entries that the bounds of contributions do not allow for; none by default."""


@dataclass(frozen=True, kw_only=True)
class SumFacts:
    """What all parties of a sum agreed on.

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

    @cached_property
    def limits(self) -> MessageLimits:
        """The longest message of the run, for parties that receive bytes."""
        plan = self.defense.plan(self.schema.layouts[TRAIN], self.schema.cohort)
        return MessageLimits.of(plan, sum(8 * spec.size for spec in self.schema.broadcast))
