"""Carry the messages of exchanges and of selections through a transport.

An exchange (`OpenExchange`) makes one sum in several stages, and does no I/O itself; `Coordinator.exchange` sends each
stage's requests and hands it the replies. A selection asks candidates for scalars by which an algorithm chooses the
cohort (`Coordinator.ask`). `Server` uses both.
"""

from __future__ import annotations

from collections.abc import Mapping

from securefed._messages import SERVER, ClientId, Message, PartyId
from securefed._runtime.message_log import MessageLog
from securefed._runtime.open_exchange import ExchangeResult, OpenExchange
from securefed._tensors import Tensors
from securefed._transports.base import Transport, arrivals
from securefed.defenses._base import Helper
from securefed.errors import MessageRefused


class HelperNode:
    """A helper, such as the key holder that decrypts encrypted sums, as an endpoint of a transport.

    Args:
        helper: made by the defence's aggregation.
        run: the run it belongs to; requests of another run are refused.
    """

    def __init__(self, helper: Helper, run: str) -> None:
        self._helper, self._run = helper, run

    def handle(self, message: Message) -> Message:
        """Answer a request to the helper; a refusal is raised, since it means a fault of the server's own request."""
        message.check(
            run=self._run, round=message.round, stage=message.stage, sender=SERVER, receiver=self._helper.party
        )
        body = self._helper.handle(message)
        return Message(self._run, message.round, message.stage, self._helper.party, SERVER, body)


class Coordinator:
    """Carries a run's messages between its server and a transport.

    Args:
        transport: reaches the parties.
        log: where messages are recorded.
        timeout: seconds to wait for the replies of one stage.
    """

    def __init__(self, transport: Transport, log: MessageLog, timeout: float | None = None) -> None:
        self._transport, self._log, self._timeout = transport, log, timeout

    def exchange(self, exchange: OpenExchange) -> ExchangeResult:
        """Carry an exchange's messages until it ends, and return its result.

        Raises:
            ClientOut, RangeRefused, DivergenceError, TooFewSurvivors: as `OpenExchange.close_stage`.
        """
        while True:
            outgoing: Mapping[PartyId, bytes] = exchange.outgoing
            if self._log.keep:  # the transcript then has all requests of a stage before its replies
                outgoing = dict(outgoing)
            for party, data in arrivals(self._transport, outgoing, self._timeout):
                exchange.receive(party, data)
            if (result := exchange.close_stage()) is not None:
                return result

    def ask(self, run: str, number: int, stage: str, bodies: Mapping[ClientId, Tensors]) -> dict[ClientId, Tensors]:
        """Send messages outside any exchange; a client that does not answer as asked is left out of the replies.

        Args:
            run: the run's identifier.
            number: the messages' number, which no exchange has.
            stage: `COMMIT` (how the last round ended) or `REVEAL` (scalars that a selection needs).
            bodies: by client, the tensors to send.

        Returns:
            By client, ascending, the tensors of its reply.
        """
        outgoing: dict[PartyId, bytes] = {}
        for client, body in bodies.items():
            message = Message(run, number, stage, SERVER, client, body)
            outgoing[client] = message.encode()
            self._log.down += len(outgoing[client])
            self._log.note(message, len(outgoing[client]))
        answered: dict[ClientId, Tensors] = {}
        for party, data in arrivals(self._transport, outgoing, self._timeout):
            if party not in bodies:
                continue
            self._log.up += len(data)
            try:
                reply = Message.decode(data, claimed_sender=party)
            except MessageRefused:
                continue
            if (reply.round, reply.stage, reply.sender) == (number, stage, party):
                self._log.note(reply, len(data))
                answered[party] = reply.body
        return dict(sorted(answered.items()))
