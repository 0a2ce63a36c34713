"""Remember which exchange counted each client last, and build the part of a request that states it.

An exchange makes one sum; it counted a client if the client's contribution is in the sum. A client commits the state
after its last contribution only if it learns that this was counted, and some algorithms' clients also need the
broadcast that followed from that sum (dual variables, for instance). `SumRun` keeps this record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from securefed._messages import ClientId
from securefed._persistence.packing import nest
from securefed._runtime.exchange_context import NEVER, CountedExchanges, tensors_digest
from securefed._tensors import Array, Tensors


@dataclass
class CountedClients:
    """Server-side record of the last exchange that counted each client, and of its outcome.

    Attributes:
        needs_outcome: whether clients need the broadcast that followed from the exchange that counted them.
        exchanges: by client, the last exchange that counted it.
        followed: by exchange, the broadcast that followed; kept while it is the last exchange that counted
            some client.
        announced: by exchange, the sum announced to the clients that check it; kept equally long.
    """

    needs_outcome: bool
    exchanges: dict[ClientId, int] = field(default_factory=dict)
    followed: dict[int, Tensors] = field(default_factory=dict)
    announced: dict[int, Tensors] = field(default_factory=dict)

    def count(self, exchange: int, survivors: Sequence[ClientId], broadcast: Tensors, announced: Tensors) -> None:
        """Note that `exchange` counted its survivors.

        Args:
            exchange: its number.
            survivors: the clients in its sum.
            broadcast: the broadcast computed from its sum.
            announced: its sum and proof for the survivors; empty where they do not check it.
        """
        self.exchanges |= dict.fromkeys(survivors, exchange)
        last = set(self.exchanges.values())
        if self.needs_outcome:
            self.followed = {key: value for key, value in self.followed.items() if key in last} | {exchange: broadcast}
        if announced:
            self.announced = {key: value for key, value in self.announced.items() if key in last}
            self.announced[exchange] = announced

    def listed(self, cohort: Sequence[ClientId]) -> CountedExchanges:
        """Build the list, in a request for an upload, of the exchanges that counted each client of the cohort last."""
        if not self.needs_outcome:
            return CountedExchanges.of(cohort, self.exchanges, None)
        known = {self.exchanges[client] for client in cohort if client in self.exchanges}
        digests = {exchange: tensors_digest(self.followed[exchange]) for exchange in known}
        return CountedExchanges.of(cohort, self.exchanges, digests)

    def body(self, client: ClientId) -> dict[str, Array]:
        """Build the fields for one client about the exchange that counted it last.

        The broadcast that followed is left out if it is the current one, which the request holds anyway.
        """
        counted = self.exchanges.get(client, NEVER)
        newest = max(self.exchanges.values(), default=NEVER)
        body: dict[str, Array] = {}
        if self.needs_outcome and counted not in (NEVER, newest):
            body |= nest("commit/broadcast", self.followed[counted])
        if counted in self.announced:
            body |= nest("commit/announced", self.announced[counted])
        return body

    def body_outside(self, client: ClientId, broadcast: Tensors) -> dict[str, Array]:
        """Build these fields for a message outside any exchange, which has no list of the cohort's last exchanges.

        Args:
            client: the receiver.
            broadcast: the current broadcast; sent where clients need what followed from their last contribution.
        """
        counted = np.asarray(self.exchanges.get(client, NEVER), np.int64)
        body = self.body(client) | {"commit/round": counted}
        return body | nest("broadcast", broadcast) if self.needs_outcome else body
