"""One exchange (the making of one sum) at the server, without I/O: bytes out, bytes in, one stage at a time.

    result = None
    while result is None:
        for party, reply in carry(exchange.outgoing):       # any transport
            exchange.receive(party, reply)
        result = exchange.close_stage()                     # a party that has not replied by now has dropped out

The aggregation protocol of the defence names the stages (masking: keys, shares, upload, unmasking). A party's first
request holds the exchange's header, and the request for the upload also holds the broadcast that contributions are
computed from, and which exchange counted each client last. `Server` and `SumServer` drive it.

A client that sits out, as where its values are out of range, uploads uniform integers under a defence that hides them,
also in an entry of the plan called the indicator, where all others upload 0. The sum is then noise, and the indicator's
sum shows that some client sat out, not which. A client that drops out uploads nothing; the sum is over the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from securefed._messages import REFUSAL, SERVER, Aggregate, Message, PartyId, RoundRecord, SentMessage, Transcript
from securefed._persistence.packing import from_bytes, nest, pack, restore, unnest
from securefed._runtime.exchange_context import CountedExchanges, exchange_context, tensors_digest
from securefed._runtime.exchange_header import ExchangeHeader
from securefed._runtime.refusals import read_refusal
from securefed._runtime.sum_facts import MessageLimits, SumFacts
from securefed._tensors import Array, Tensors
from securefed.defenses._aggregation import (
    SupportsAuthenticatedRefusals,
    SupportsPipelining,
    SupportsReleases,
    SupportsStreaming,
    SupportsVerification,
)
from securefed.defenses._base import (
    Outgoing,
    Plan,
    Session,
    some_client_out,
    without_indicator,
    without_indicator_tensor,
)
from securefed.defenses._plan import SumsSoFar
from securefed.errors import (
    ClientOut,
    DivergenceError,
    MessageRefused,
    RangeRefused,
    SurvivorsTooClose,
    TooFewSurvivors,
)


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
    """Records the run's messages in its transcript, which is all that the server sees of it, and counts their bytes.

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

    def sent(self, message: Message) -> bytes:
        """Encode, count and keep one message that is sent."""
        data = message.encode()
        self.down += len(data)
        self.note(message, len(data))
        return data


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


@dataclass(frozen=True)
class ExchangeContent:
    """The content of an exchange's requests, without the fields of the aggregation protocol.

    Attributes:
        header: kind, place in the run, cohort, and the public numbers that the plan is derived from.
        broadcast: the tensors that contributions are computed from.
        counted: the list of the exchanges that counted the cohort last.
        commit: by client, the fields that tell it about its last contribution that is in a sum (`CountedClients`).
    """

    header: ExchangeHeader
    broadcast: Tensors
    counted: CountedExchanges
    commit: Callable[[PartyId], Tensors]


@dataclass
class _Stage:
    """Progress of the stage that is open.

    Attributes:
        outgoing: the protocol's fields of each request, by receiver.
        sent: parties whose request was encoded.
        replied: parties whose reply came in.
        accepted: replies for the protocol's next step; uploads that were added to the sum at once are not kept.
        stop: the error that ends the run, where contributions travel in the clear: a value out of range, or a
            divergence.
    """

    outgoing: Outgoing
    sent: set[PartyId] = field(default_factory=set)
    replied: set[PartyId] = field(default_factory=set)
    accepted: dict[PartyId, Message] = field(default_factory=dict)
    stop: RangeRefused | DivergenceError | None = None


class OpenExchange:
    """One exchange in progress, bound to everything that its clients receive before they upload.

    Between two calls its whole state is data (`freeze`).

    Args:
        facts: what all parties of the sum agreed on.
        number: the exchange's number, never used before in this run.
        content: what requests hold beside the protocol's fields.
        log: where messages are recorded.
        so_far: which clients the run's sums tell apart; `None` where any sum may follow.
        prepared: keys and masks that the last exchange precomputed for this one (`SupportsPipelining`).

    Attributes:
        session: run, number, cohort and plan, with the exchange's context.
        stage: the stage that is open.
        refusals: by party, the reason for which its message was refused.
        prepared: after the exchange, what it precomputed for the next one; `None` where the aggregation does not.

    Raises:
        PlanError: the defence cannot keep its promise at the bounds, which the run doubles when a client was out of
            range (`header.doublings`).
    """

    def __init__(
        self, facts: SumFacts, number: int, content: ExchangeContent, log: MessageLog, so_far: SumsSoFar | None = None,
        prepared: Any = None,
    ) -> None:  # fmt: skip
        header, plan, defense = content.header, facts.plan(content.header), facts.defense
        session = Session(log.transcript.run, number, header.cohort, plan)
        context = exchange_context(session, header, tensors_digest(content.broadcast), content.counted)
        session = self.session = replace(session, context=context, so_far=so_far or session.so_far)
        self.content, self.log = content, log
        self._defense, self._protocol, self._limits = defense, defense.aggregation, MessageLimits.of(plan)
        self._introduced: dict[PartyId, str] = {}  # by party, the stage whose request held the exchange's header
        self.refusals: dict[PartyId, str] = {}
        self.prepared: Any = None
        if isinstance(self._protocol, SupportsPipelining):
            self._state, self.stage, outgoing = self._protocol.server_resume(session, prepared)
        else:
            self._state, self.stage, outgoing = self._protocol.server_open(session)
        self._begin(outgoing)

    @property
    def outgoing(self) -> Mapping[PartyId, bytes]:
        """The requests of this stage to all parties that have not replied."""
        waiting = {party: own for party, own in self._open.outgoing.items() if party not in self._open.replied}
        return Requests(waiting, self._encode)

    def receive(self, party: PartyId, data: bytes) -> None:
        """Take one reply of the stage; what is wrong with it is noted in `refusals`, and it then counts as missing.

        Args:
            party: the party that the transport names as its sender.
            data: the reply's bytes.
        """
        if party not in self._open.outgoing or party in self._open.replied:
            why = "it was not asked" if party not in self._open.outgoing else "it has replied already"
            self.refusals.setdefault(party, f"message from {party} refused: {why}")
            return
        self.log.up += len(data)
        try:
            reply = Message.decode(data, claimed_sender=party, limits=self._limits)
            expected = REFUSAL if reply.stage == REFUSAL else self.stage
            reply.check(run=self.session.run, round=self.session.round, stage=expected, sender=party, receiver=SERVER)
            if reply.stage == REFUSAL and isinstance(self._protocol, SupportsAuthenticatedRefusals):
                self._protocol.server_refusal(self._state, reply)
        except MessageRefused as error:
            self.refusals[party] = str(error)
            return
        self._open.replied.add(party)
        self.log.note(reply, len(data))
        if reply.stage == REFUSAL:
            refusal = read_refusal(reply)
            self.refusals[party] = str(refusal)
            self._open.stop = refusal if isinstance(refusal, RangeRefused | DivergenceError) else self._open.stop
        elif self.stage == self._protocol.upload and isinstance(self._protocol, SupportsStreaming):
            try:  # the upload is added to the server's state and not kept; a refused one leaves the state unchanged
                self._state = self._protocol.server_absorb(self._state, reply)
            except MessageRefused as error:
                if error.sender != party:
                    raise
                self.refusals[party] = str(error)
        else:
            self._open.accepted[party] = reply

    def close_stage(self) -> ExchangeResult | None:
        """End the stage: parties that have not replied have dropped out. Return the result after the last stage.

        Raises:
            ClientOut: a client sat out, so that the sum is noise.
            RangeRefused: a client's values lie beyond the planned range, in the clear; nothing was unmasked.
            DivergenceError: a client's local steps diverged, and its defence hides nothing.
            TooFewSurvivors, SurvivorsTooClose: the protocol could not complete.
            MessageRefused: a reply is refused that is not of this stage.
        """
        if self._open.stop is not None and not self._protocol.hides and not self.session.plan.noised:
            raise self._open.stop  # elsewhere honest clients never refuse so, and one that does counts as dropped out
        replies = dict(sorted(self._open.accepted.items()))
        step = self._step(replies)
        if isinstance(step, Aggregate):
            return self._finish(step, replies)
        self._state, self.stage, outgoing = step
        self._begin(outgoing)
        return None

    @property
    def complete_stage(self) -> bool:
        """True if all parties that were asked have replied."""
        return self._open.replied >= set(self._open.outgoing)

    @property
    def opens(self) -> bool:
        """True in the stages after the upload, whose replies open the sum."""
        stages, upload = self.session.plan.stages, self._protocol.upload
        return upload in stages and self.stage in stages[stages.index(upload) + 1 :]

    @property
    def named(self) -> tuple[tuple[PartyId, ...], ...]:
        """By sum, the clients that were asked to open it, and remember it whether or not it was opened."""
        return self._protocol.server_names(self._state) if isinstance(self._protocol, SupportsReleases) else ()

    def freeze(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the exchange in progress as JSON values and tensors, secrets included; `thaw` restores it."""
        stage = self._open
        requests = {f"outgoing/{party}/{name}": v for party, own in stage.outgoing.items() for name, v in own.items()}
        # an array that several requests hold is written once, under the first of their names; `same` lists the others
        first = {id(value): name for name, value in reversed(requests.items())}
        values = {
            "stage": self.stage,
            "introduced": {str(party): began for party, began in self._introduced.items()},
            "sent": sorted(stage.sent),
            "replied": sorted(stage.replied),
            "stop": None if stage.stop is None else [type(stage.stop).__name__, str(stage.stop)],
            "asked": sorted(stage.outgoing),
            "refusals": {str(party): reason for party, reason in self.refusals.items()},
            "same": {name: first[id(value)] for name, value in requests.items() if first[id(value)] != name},
        }
        tensors = nest("protocol", pack(self._state)) | {name: requests[name] for name in first.values()}
        for party, reply in stage.accepted.items():
            tensors[f"accepted/{party}"] = from_bytes(reply.encode())
        return values, tensors

    def thaw(self, values: Mapping[str, Any], tensors: Tensors) -> None:
        """Replace the state of an exchange that was opened anew, with the same session and content, by a frozen one.

        Raises:
            KeyError, DataError: a field is missing.
        """
        self._state = restore(self._state, unnest("protocol", tensors))
        self.stage = values["stage"]
        self._introduced = {int(party): stage for party, stage in values["introduced"].items()}
        self.refusals = {int(party): reason for party, reason in values["refusals"].items()}
        everything = {**tensors, **{name: tensors[kept] for name, kept in values["same"].items()}}
        requests: dict[PartyId, dict[str, Array]] = {party: {} for party in values["asked"]}
        for name, value in unnest("outgoing", everything).items():
            party, _, own = name.partition("/")
            requests[int(party)][own] = value
        stop: RangeRefused | DivergenceError | None = None
        if (told := values.get("stop")) is not None:
            stop = RangeRefused(told[1]) if told[0] == RangeRefused.__name__ else DivergenceError(told[1])
        self._open = _Stage(requests, set(values["sent"]), set(values["replied"]), stop=stop)
        for party in values["asked"]:
            if (data := tensors.get(f"accepted/{party}")) is not None:
                self._open.accepted[party] = Message.decode(data.tobytes(), claimed_sender=party, stored=True)

    def _begin(self, outgoing: Outgoing) -> None:
        """Open a stage; a party's first request holds the exchange's header."""
        self._open = _Stage(outgoing)
        self._introduced = dict.fromkeys(outgoing, self.stage) | self._introduced

    def _encode(self, party: PartyId) -> bytes:
        """Encode one party's request. A repeated look-up gives the same bytes, and counts them once."""
        body: Mapping[str, Array] = self._open.outgoing[party]
        if party >= 0:  # a client, and no helper, such as the key holder of an encrypted sum
            content, body = self.content, nest("protocol", body)
            if self._introduced[party] == self.stage:
                body |= content.header.body()
            if self.stage == self._protocol.upload:
                body |= nest("broadcast", content.broadcast) | content.counted.body() | dict(content.commit(party))
        message = Message(self.session.run, self.session.round, self.stage, SERVER, party, body)
        if party in self._open.sent:
            return message.encode()
        self._open.sent.add(party)
        return self.log.sent(message)

    def _step(self, replies: dict[PartyId, Message]) -> tuple[Any, str, Outgoing] | Aggregate:
        """Make the server's step; a refused reply is dropped and the step is repeated from the same state.

        Where too few replies are left, the error names the first refusal, which may be the cause.
        """
        while True:
            try:
                return self._protocol.server_step(self._state, replies)
            except MessageRefused as error:
                if error.sender not in replies:
                    raise
                self.refusals[error.sender] = str(error)
                del replies[error.sender]
            except SurvivorsTooClose:
                raise  # enough clients are left: no refusal is the cause, and `SumRun.failed` leaves out some
            except TooFewSurvivors as error:
                if not self.refusals:
                    raise
                party, reason = next(iter(self.refusals.items()))
                more = f" (and {len(self.refusals) - 1} more)" if len(self.refusals) > 1 else ""
                raise TooFewSurvivors(f"{error}; party {party}: {reason}{more}") from error

    def _finish(self, aggregate: Aggregate, replies: Mapping[PartyId, Message]) -> ExchangeResult:
        """Decode a sum that was opened, undo the transforms, and note what the server learned in this exchange.

        Raises:
            ClientOut: a client sat out, so that the sum is noise.
        """
        protocol, plan = self._protocol, self.session.plan
        if isinstance(protocol, SupportsPipelining):
            self.prepared = protocol.server_carry(self._state, replies)
        if some_client_out(aggregate.total, plan):
            raise ClientOut(aggregate.survivors)
        self.refusals |= aggregate.left_out
        announced = protocol.announce(aggregate) if isinstance(protocol, SupportsVerification) else {}
        session, content, defense = self.session, self.content, self._defense
        total = defense.decode(aggregate.total, plan, aggregate.count)
        record = RoundRecord(
            round=session.round,
            kind=content.header.kind,
            broadcast=content.broadcast,
            cohort=session.cohort,
            survivors=aggregate.survivors,
            encoded=without_indicator_tensor(aggregate.total),
            step=without_indicator(plan).steps,
            total=total,
            released=defense.release(total, plan),
            distortion=defense.distortion(plan, aggregate.count),
            groups=aggregate.groups,
        )
        if self.log.keep:
            self.log.transcript.records.append(record)
        # the plan of any exchange of this kind, without this one's number
        return ExchangeResult(record, replace(plan, exchange=None), self.refusals, announced)
