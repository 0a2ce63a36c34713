"""State that a client keeps between messages, and between a request for an upload and its answer.

An upload may be lost on the way. So a client keeps two states of what it contributes from: the committed one, which
agrees with the server's sums, and the tentative one, as it is if the last upload counts. A later request lists which
exchange counted the client last, that is, has its contribution in the sum; if it is the tentative one's, that becomes
the committed state, and else it is dropped. An exchange is the making of one sum. Its messages carry its number, which
the fields below call a round (`tentative_round`, `last_round`): a training round that is repeated has several.

A later message also holds the broadcast that followed from that sum, where the client needs it, and the sum itself,
where the client checks it. `SumNode` calls `ClientCommits.followed` and `check` while it checks the message, and then
`commit`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Final

import numpy as np

from securefed._messages import ClientId, Message
from securefed._persistence.packing import local, nest, pack, restore, unnest
from securefed._runtime.exchange_context import tensors_digest
from securefed._runtime.exchange_header import BEFORE_ALL, ExchangeHeader, ExchangePosition
from securefed._runtime.sum_facts import SumFacts
from securefed._tensors import Array, Tensors
from securefed.defenses._aggregation import SupportsVerification
from securefed.defenses._base import Session
from securefed.errors import ContradictionError, SecureFedError

_EMPTY: Final = "nmt"
"""Kinds of packed fields that hold no value of their own: n none, m mapping, t tuple. `pack` stores a field `x` under
the name `x:KIND`, so that the last letter of the name is its kind.
"""


@dataclass(frozen=True)
class NothingKept:
    """The state of a client whose contributions are computed elsewhere: it keeps nothing from one to the next."""


@dataclass(frozen=True)
class ClientNodeState:
    """State that a client (`SumNode`) keeps between messages; fields marked local are not packed with the rest.

    Attributes:
        committed: what it contributes from, after the last contribution that is known to be in a sum; of an algorithm's
            client, the algorithm's state.
        committed_round: the exchange of that contribution; -1 before the first.
        followed: digest of the broadcast that followed from that exchange. A client that updates its state from that
            broadcast is given it again with a later request, and the digest shows that it is the same one.
        tentative: the state after its last contribution, not committed yet.
        tentative_round: the exchange of that contribution.
        last_round: the newest exchange that was opened here, or the number of a later message outside any exchange. A
            message that would open this number or an older one is refused as a replay.
        place: position of exchange `last_round` in the run (`ExchangeSchedule`).
        out: number of exchanges of the run that this client sat out.
        absent: whether the client sat out of exchange `tentative_round`, so that there is nothing to commit.
        stuck: whether committing a round failed, so that the client has no valid state to contribute from.
        header: header of the current exchange.
        session: session of the current exchange.
        protocol: the defence's protocol state in the current exchange.
        encoded: its last encoded contribution (for simulations that score collusion).
        memory: what the defence's protocol must remember of earlier exchanges, such as a pinned key.
        sum_key: key that checks the sum of exchange `tentative_round`; empty where sums are not checked.
    """

    committed: Any = local(default=NothingKept(), repr=False)
    committed_round: int = -1
    followed: bytes = b""
    tentative: Any = local(default=None, repr=False)
    tentative_round: int = -1
    last_round: int = -1
    place: ExchangePosition = BEFORE_ALL
    out: int = 0
    absent: bool = False
    stuck: bool = False
    header: ExchangeHeader | None = local(default=None)
    session: Session | None = local(default=None)
    protocol: Any = local(default=None, repr=False)
    encoded: Tensors | None = local(default=None, repr=False)
    sum_key: bytes = field(default=b"", repr=False)
    memory: Array = field(default_factory=lambda: np.zeros(0, np.uint8), repr=False)

    @property
    def trains(self) -> bool:
        """True if exchange `last_round` sums training contributions, false if it sums evaluations.

        A position is (rounds completed or given up, 1 for training and 0 for an evaluation, attempt).
        """
        return self.place[1] == 1

    def learned(self) -> dict[str, Array]:
        """Pack what outlives an exchange: no session, no protocol secrets, no data of the client. Inverse: `relearned`.

        The tentative state is the one after the client's last contribution, which no server has confirmed yet.
        """
        tensors = nest("node", pack(self)) | nest("committed", pack(self.committed))
        return tensors | ({} if self.tentative is None else nest("tentative", pack(self.tentative)))

    def relearned(self, tensors: Tensors) -> ClientNodeState:
        """Return this state, of a client that has just enrolled, with what it had learned before.

        Raises:
            DataError: a field is missing.
        """
        state, template = restore(self, unnest("node", tensors)), self.committed
        tentative = restore(template, unnest("tentative", tensors)) if state.tentative_round >= 0 else None
        return replace(state, committed=restore(template, unnest("committed", tensors)), tentative=tentative)


def has_memory(state: Any) -> bool:
    """Tell whether a client's state holds anything that its data, settings and seed do not determine.

    A state that cannot be packed (a user's own class may keep any object) counts as one that does.
    """
    if state is None or not is_dataclass(state):
        return state is not None
    return any(name[-1] not in _EMPTY for name in pack(state))


@dataclass(frozen=True)
class PendingUpload:
    """A request for an upload that a client has accepted and not answered yet.

    Attributes:
        message: the request.
        state: the client's state with this exchange marked as answered: a second request for an upload is refused.
        counted: the last exchange whose sum includes this client, as the request says. The request lists this of each
            invited client; a fingerprint of the list enters the uploads, so that clients which were sent different
            lists are not summed.
        broadcast: what the contribution is computed from.
        fault: the error because of which there will be no contribution, if it is known before computing.
        source: digest of what the contribution is computed from (`UploadContext.source`), by which the ledger counts
            absences; empty where contributions have no base.
    """

    message: Message
    state: ClientNodeState
    counted: int
    broadcast: Tensors
    fault: Exception | None = None
    source: bytes = b""


ComputedContribution = tuple[Any, Tensors] | Exception
"""A tentative state and a contribution, or the error because of which there is none."""


_LOG = logging.getLogger("securefed.client")


@dataclass(frozen=True, eq=False)
class ClientCommits:
    """Decides about one client's tentative states.

    Attributes:
        client: the client's id.
        facts: what all parties of the sum agreed on.
        verifying: the aggregation, if its clients check the sums that counted them; else `None`.
        advance: makes the committed state of a tentative one, from the broadcast that followed from its sum (`None`
            where none is needed).
    """

    client: ClientId
    facts: SumFacts
    verifying: SupportsVerification | None
    advance: Callable[[Any, Tensors | None], Any]

    def followed(self, message: Message, broadcast: Tensors) -> Tensors | None:
        """Return the broadcast that followed from the exchange that counted this client; `None` if it needs none.

        Args:
            message: the server's; it leaves out what followed where that is the current broadcast.
            broadcast: the current broadcast.

        Raises:
            MalformedError: it is no broadcast of this run.
        """
        if not self.facts.schema.needs_outcome:
            return None
        followed = unnest("commit/broadcast", message.body) or broadcast
        self.facts.schema.check_broadcast(message.sender, followed)
        return followed

    def check(self, state: ClientNodeState, message: Message, counted: int) -> None:
        """Raise unless the client knows the exchange that counted it last, and that exchange's announced sum is right.

        Args:
            state: the client's state. Its `sum_key` checks the sum of the tentative exchange; empty where the defence
                has no check.
            message: the server's.
            counted: the exchange that counted this client last, as the message says.

        Raises:
            ContradictionError: `counted` is neither the committed nor the tentative exchange, so that server or client
                resumed from an outdated file. A client without memory has no state that could then be wrong.
            SumRefused: the sum that counted this client is not announced, or not right.
        """
        known = {state.committed_round} | (set() if state.tentative is None else {state.tentative_round})
        if counted not in known and has_memory(state.committed):
            where = f"exchange {counted} was counted last, and this client's state is of {sorted(known)}"
            raise ContradictionError(
                message.sender, f"{where}: one of both went on from an older file; restore the newest of each"
            )
        if state.tentative is not None and counted == state.tentative_round and state.sum_key:
            assert self.verifying is not None
            announced = unnest("commit/announced", message.body)
            # The check reads names and shapes of the tensors and the threshold, which are the same in all plans for
            # training: doubled bounds or another clipping norm change steps and widths only.
            self.verifying.client_check(state.sum_key, self.client, self.facts.training, announced)

    def commit(
        self, state: ClientNodeState, message: Message, counted: int
    ) -> tuple[ClientNodeState, Exception | None]:
        """Commit the tentative state if `counted`, the last exchange that counted this client, is its own, or drop it.

        If `advance` fails, now or before, the client is stuck: its last valid state lacks a contribution
        that the server's sums hold. Where the defence hides absences, the server must not learn of that. So the client
        notes the exchange as counted all the same; else `check` would refuse every later message.

        Returns:
            The next state, and the error because of which the client is stuck.

        Raises:
            Exception: that error, where the defence hides no absences.
        """
        commits, followed = state.tentative is not None and counted == state.tentative_round, None
        settled = replace(state, tentative=None, tentative_round=-1, sum_key=b"")
        if commits:
            followed = self.followed(message, unnest("broadcast", message.body))
            digest = b"" if followed is None else tensors_digest(followed)
            settled = replace(settled, committed_round=counted, followed=digest)
        try:
            if state.stuck:
                raise SecureFedError("a round that counted this client could not be committed before")
            if commits and not state.absent:  # an absent client uploaded a stand-in, which changes no state
                settled = replace(settled, committed=self.advance(state.tentative, followed))
            return settled, None
        except Exception as error:
            if not self.facts.hide_absence:
                raise
            _LOG.warning("client %d: the last round could not be committed: %r", self.client, error)
            return replace(settled, committed_round=counted, stuck=True), error
