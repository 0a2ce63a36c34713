"""Run one exchange at the server: drive the defence's protocol through the transport, and record the sums."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from securefed._messages import (
    REFUSAL,
    SERVER,
    Aggregate,
    ClientId,
    Message,
    PartyId,
    RoundRecord,
    SentMessage,
    Transcript,
)
from securefed._persistence.packing import nest
from securefed._runtime.exchange_context import CountedExchanges, exchange_context, tensors_digest
from securefed._runtime.exchange_header import ExchangeHeader
from securefed._runtime.refusals import read_refusal
from securefed._tensors import Array, Layout, Tensors
from securefed._transports.base import Transport, arrivals
from securefed.defenses._base import (
    Defense,
    Helper,
    Outgoing,
    Plan,
    Session,
    some_client_out,
    without_indicator,
    without_indicator_tensor,
)
from securefed.defenses._capabilities import (
    SupportsAuthenticatedRefusals,
    SupportsPipelining,
    SupportsStreaming,
    SupportsVerification,
)
from securefed.errors import (
    ClientOut,
    DivergenceError,
    MessageRefused,
    RangeRefused,
    SurvivorsTooClose,
    TooFewSurvivors,
)


@dataclass(frozen=True)
class ExchangeResult:
    """One completed exchange.

    Attributes:
        record: the server's record of the exchange.
        plan: the defence's plan for the exchange.
        refusals: by party, the reason for which its message was refused.
        announced: the sum and its proof for the counted clients to check; empty where they do not check sums.
    """

    record: RoundRecord
    plan: Plan
    refusals: Mapping[PartyId, str]
    announced: Tensors


@dataclass
class _Traffic:
    refusals: dict[PartyId, str] = field(default_factory=dict)


@dataclass
class _Intake:
    """Adds uploads to the server's state as they arrive, so that none is kept."""

    protocol: SupportsStreaming
    state: Any

    def take(self, reply: Message) -> None:
        """Add one upload; if it is refused, raise the refusal and leave the state unchanged."""
        self.state = self.protocol.server_absorb(self.state, reply)


class _Encoded(Mapping[PartyId, bytes]):
    """Messages by receiver, encoded on lookup and not kept."""

    def __init__(self, parties: Collection[PartyId], encode: Callable[[PartyId], bytes]) -> None:
        self._parties, self._encode = dict.fromkeys(parties), encode

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


class HelperNode:
    """A helper (the key holder) as an endpoint."""

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
    """Runs exchanges for one federation.

    Args:
        transport: reaches the parties.
        defense: protects the contributions in messages.
        layouts: by kind of exchange, the tensors that a client uploads.
        clients: the planned cohort size, a constant of the run.
        transcript: where messages and sums are recorded.
        keep: whether the transcript keeps messages; sizes are counted either way.
        timeout: seconds to wait for the replies of one stage.
    """

    def __init__(
        self,
        transport: Transport,
        defense: Defense,
        layouts: Mapping[str, Layout],
        clients: int,
        transcript: Transcript,
        *,
        keep: bool = True,
        timeout: float | None = None,
    ) -> None:
        self._transport, self._defense, self._layouts = transport, defense, layouts
        self._clients, self._transcript, self._keep, self._timeout = clients, transcript, keep, timeout
        self._prepared: Any = None  # by the last exchange for the next, where the aggregation does that
        self.up = self.down = 0  # bytes received and sent so far, void exchanges included

    def exchange(
        self,
        number: int,
        header: ExchangeHeader,
        broadcast: Tensors,
        counted: CountedExchanges,
        previous: tuple[ClientId, ...],
        commit: Callable[[ClientId], Tensors],
    ) -> ExchangeResult:
        """Sum one contribution of each client of the header's cohort.

        Args:
            number: the exchange's number, never used before in this run.
            header: kind, place in the run, cohort, and the public numbers that the plan is derived from.
            broadcast: what contributions are computed from.
            counted: the list of the exchanges that counted the cohort last.
            previous: survivors of the last sum that was opened; empty before any.
            commit: returns the fields that tell one client about its last counted contribution.

        Raises:
            ClientOut: a client sat out, so that the sum is noise.
            RangeRefused: a client's values lie beyond the planned range, in the clear; nothing was unmasked.
            DivergenceError: a client's local steps diverged, and its defence hides nothing.
            TooFewSurvivors: the protocol could not complete.
        """
        plan = self._defense.plan(
            self._layouts[header.kind],
            self._clients,
            range_doublings=header.doublings,
            learned=header.learned,
        )
        protocol, cohort = self._defense.aggregation, header.cohort
        session = Session(self._transcript.run, number, cohort, plan)
        context = exchange_context(session, header, tensors_digest(broadcast), counted)
        session = replace(session, context=context, previous=previous)
        traffic = _Traffic()
        opened: set[PartyId] = set()

        def body(stage: str, party: PartyId, own: Tensors) -> Mapping[str, Array]:
            if party < 0:  # a helper, not a client
                return own
            out = nest("protocol", own)
            if party not in opened:
                opened.add(party)
                out |= header.body()
            if stage == protocol.upload:
                out |= nest("broadcast", broadcast) | counted.body() | dict(commit(party))
            return out

        prepared, self._prepared = self._prepared, None  # used once, whatever becomes of this exchange
        if isinstance(protocol, SupportsPipelining):
            state, stage, outgoing = protocol.server_resume(session, prepared)
        else:
            state, stage, outgoing = protocol.server_open(session)
        while True:
            requests = {party: body(stage, party, own) for party, own in outgoing.items()}
            if stage == protocol.upload and isinstance(protocol, SupportsStreaming):
                intake = _Intake(protocol, state)
                replies = self._send(session, stage, requests, traffic, state, intake)
                state = intake.state
            else:
                replies = self._send(session, stage, requests, traffic, state)
            step = self._step(state, replies, traffic)
            if isinstance(step, Aggregate):
                if isinstance(protocol, SupportsPipelining):
                    self._prepared = protocol.server_carry(state, replies)
                break
            state, stage, outgoing = step
        if some_client_out(step.total, plan):
            raise ClientOut(step.survivors)
        record = self._record(session, header.kind, broadcast, step)
        announced = protocol.announce(step) if isinstance(protocol, SupportsVerification) else {}
        return ExchangeResult(record, plan, traffic.refusals, announced)

    def ask(self, number: int, stage: str, bodies: Mapping[ClientId, Tensors]) -> dict[ClientId, Tensors]:
        """Send messages outside any protocol; return the replies of the clients that answered."""
        answered: dict[ClientId, Tensors] = {}
        for party, reply, nbytes in self._deliver(number, stage, bodies, _Traffic()):
            if (reply.round, reply.stage, reply.sender) == (number, stage, party):
                self._note(reply, nbytes)
                answered[party] = reply.body
        return dict(sorted(answered.items()))

    def _record(self, session: Session, kind: str, broadcast: Tensors, aggregate: Aggregate) -> RoundRecord:
        plan = session.plan
        total = self._defense.decode(aggregate.total, plan, aggregate.count)
        encoded = without_indicator_tensor(aggregate.total)
        record = RoundRecord(
            session.round,
            kind,
            broadcast,
            session.cohort,
            aggregate.survivors,
            encoded,
            without_indicator(plan).steps,
            total,
            self._defense.release(total, plan),
            self._defense.distortion(plan, aggregate.count),
        )
        if self._keep:
            self._transcript.records.append(record)
        return record

    def _step(
        self, state: Any, replies: dict[PartyId, Message], traffic: _Traffic
    ) -> tuple[Any, str, Outgoing] | Aggregate:
        """Make the server's step; a refused reply is dropped and the step is repeated from the same state."""
        while True:
            try:
                return self._defense.aggregation.server_step(state, replies)
            except MessageRefused as error:
                if error.sender not in replies:
                    raise
                traffic.refusals[error.sender] = str(error)
                del replies[error.sender]
            except SurvivorsTooClose:
                raise
            except TooFewSurvivors as error:
                if not traffic.refusals:
                    raise
                party, reason = next(iter(traffic.refusals.items()))
                more = f" (and {len(traffic.refusals) - 1} more)" if len(traffic.refusals) > 1 else ""
                raise TooFewSurvivors(f"{error}; party {party}: {reason}{more}") from error

    def _send(
        self,
        session: Session,
        stage: str,
        bodies: Outgoing,
        traffic: _Traffic,
        state: Any,
        intake: _Intake | None = None,
    ) -> dict[PartyId, Message]:
        """Send one stage's messages and return the accepted replies, except those that `intake` takes."""
        protocol = self._defense.aggregation
        accepted: dict[PartyId, Message] = {}
        stop: RangeRefused | DivergenceError | None = None
        for party, reply, nbytes in self._deliver(session.round, stage, bodies, traffic):
            try:
                expected = REFUSAL if reply.stage == REFUSAL else stage
                reply.check(run=session.run, round=session.round, stage=expected, sender=party, receiver=SERVER)
                if reply.stage == REFUSAL and isinstance(protocol, SupportsAuthenticatedRefusals):
                    protocol.server_refusal(state, reply)
            except MessageRefused as error:
                traffic.refusals[party] = str(error)
                continue
            self._note(reply, nbytes)
            if reply.stage == REFUSAL:
                refusal = read_refusal(reply)
                traffic.refusals[party] = str(refusal)
                if isinstance(refusal, RangeRefused | DivergenceError):
                    stop = refusal
            elif intake is None:
                accepted[party] = reply
            else:
                try:
                    intake.take(reply)
                except MessageRefused as error:
                    if error.sender != party:
                        raise
                    traffic.refusals[party] = str(error)
        # Where uploads are hidden or noised no honest client sends these: one that does drops out, as by any refusal.
        in_the_clear = not protocol.hides and not session.plan.noised
        if stop is not None and in_the_clear:
            raise stop
        return dict(sorted(accepted.items()))

    def _deliver(
        self, number: int, stage: str, bodies: Outgoing, traffic: _Traffic
    ) -> Iterator[tuple[PartyId, Message, int]]:
        """Iterate over readable replies and their sizes as they arrive; the caller decides which to trust."""

        def encode(party: PartyId) -> bytes:
            message = Message(self._transcript.run, number, stage, SERVER, party, bodies[party])
            data = message.encode()
            self.down += len(data)
            self._note(message, len(data))
            return data

        outgoing: Mapping[PartyId, bytes] = _Encoded(bodies, encode)
        if self._keep:  # the transcript then has all requests of a stage before its replies
            outgoing = dict(outgoing)
        for party, data in arrivals(self._transport, outgoing, self._timeout):
            if party not in bodies:
                traffic.refusals[party] = f"message from {party} refused: it was not asked"
                continue
            self.up += len(data)
            try:
                message = Message.decode(data, claimed_sender=party)
            except MessageRefused as error:
                traffic.refusals[party] = str(error)
                continue
            yield party, message, len(data)

    def _note(self, message: Message, nbytes: int) -> None:
        if self._keep:
            self._transcript.sent.append(SentMessage(message, nbytes))
