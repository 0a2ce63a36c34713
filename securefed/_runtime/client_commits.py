"""Check what the server says that it counted of a client, and commit or drop the client's tentative state.

An exchange makes one sum. After its upload a client does not know whether the sum counted it, and keeps two states: the
committed one, and a tentative one that holds if it was counted. A later message of the server says which exchange
counted the client last, with the broadcast that followed from that sum where the algorithm needs it, and with the sum
itself where the client checks it. `ClientNode` passes such messages here: it calls `followed` and `check` while it
checks the message, and then `commit`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from securefed._messages import ClientId, Message
from securefed._persistence.packing import unnest
from securefed._runtime.client_state import ClientNodeState
from securefed._runtime.exchange_context import tensors_digest
from securefed._runtime.exchange_plans import ExchangePlans
from securefed._runtime.message_schema import MessageSchema
from securefed._runtime.privacy_checks import has_memory
from securefed._tensors import Tensors
from securefed.algorithms._base import RoundOutcome
from securefed.defenses._aggregation import SupportsVerification
from securefed.errors import ContradictionError, SecureFedError

_LOG = logging.getLogger("securefed.client")


@dataclass(frozen=True, eq=False)
class ClientCommits:
    """Decides about one client's tentative states.

    Attributes:
        client: the client's id.
        schema: names, shapes and types of the messages' tensors, and the algorithm.
        plans: the plans of the client's exchanges. `plans.hide_absence` is true where the defence lets a client that
            has no contribution upload a stand-in, so that the server does not learn of it.
        verifying: the aggregation, if its clients check the sums that counted them; else `None`.
    """

    client: ClientId
    schema: MessageSchema
    plans: ExchangePlans
    verifying: SupportsVerification | None

    def followed(self, message: Message, broadcast: Tensors) -> Tensors | None:
        """Return the broadcast that followed from the exchange that counted this client; `None` if it needs none.

        Args:
            message: the server's; it leaves out what followed where that is the current broadcast.
            broadcast: the current broadcast.

        Raises:
            MalformedError: it is no broadcast of this run.
        """
        if not self.schema.algorithm.needs_outcome:
            return None
        followed = unnest("commit/broadcast", message.body) or broadcast
        self.schema.check_broadcast(message.sender, followed)
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
            self.verifying.client_check(state.sum_key, self.client, self.plans.training, announced)

    def commit(
        self, state: ClientNodeState, message: Message, counted: int
    ) -> tuple[ClientNodeState, Exception | None]:
        """Commit the tentative state if `counted`, the last exchange that counted this client, is its own, or drop it.

        If the algorithm's `commit` fails, now or before, the client is stuck: its last valid state lacks a contribution
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
                committed = self.schema.algorithm.commit(state.tentative, RoundOutcome(True, followed))
                settled = replace(settled, committed=committed)
            return settled, None
        except Exception as error:
            if not self.plans.hide_absence:
                raise
            _LOG.warning("client %d: the last round could not be committed: %r", self.client, error)
            return replace(settled, committed_round=counted, stuck=True), error
