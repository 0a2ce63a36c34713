"""A server that says what it likes to one client: schedules of its deviations, and what the client shows of itself.

The victim is the library's own client node. All other clients are honest parties of the protocol that contribute zeros
and believe everything, so that a schedule gets as far as uploads. The server is the library's own coordinator, driven
from outside: a schedule says which exchange it opens, what it broadcasts, whom it claims to have counted, and what
happens to its messages to the victim on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any, Final

import numpy as np

from securefed import SERVER, Dataset, Layout, Message, Tensors, Terms, Transcript
from securefed._messages import REFUSAL
from securefed._persistence.packing import nest
from securefed._runtime.client import ClientNode
from securefed._runtime.client_state import ClientCommits
from securefed._runtime.exchange_context import CountedExchanges, tensors_digest
from securefed._runtime.exchange_header import EVALUATE, TRAIN, ExchangeHeader
from securefed._runtime.open_exchange import ExchangeContent, ExchangeResult, MessageLog, OpenExchange
from securefed._runtime.sum_facts import SumFacts, SumSchema
from securefed._runtime.sum_node import SumNode
from securefed._transports import HelperNode
from securefed.defenses import Defense
from securefed.errors import ConfigError, SecureFedError
from tests.contract.deviations import CLIENTS, DATA, PUBLIC, VICTIM, Ask, Event
from tests.defenses.secure_aggregation.faults import another_body, another_header

RUN: Final = "0123456789abcdef" * 2


class _AnyExchange:
    def check(self, last: Any, header: ExchangeHeader) -> Any:
        return header.round, int(header.kind == TRAIN), header.attempt


class _AnyCount(ClientCommits):
    def check(self, state: Any, message: Message, counted: int) -> None:
        """Believe everything."""

    def followed(self, message: Message, broadcast: Tensors) -> None:
        """Need no broadcast."""


class Partner(SumNode):
    """An honest party of the protocol that contributes zeros to whatever it is asked."""

    terms = "those of the battery"

    def __init__(self, facts: SumFacts, client: int) -> None:
        super().__init__(client, RUN, SumFacts(defense=facts.defense, schema=lenient(facts.schema)))
        self.exchanges = _AnyExchange()  # type: ignore[assignment]
        self._commits = _AnyCount(**vars(self._commits))

    def handle(self, message: Message) -> Message:
        begun = self.begin(message)
        if isinstance(begun, Message):
            return begun
        assert begun.state.header is not None
        zeros = {s.name: np.zeros(s.shape) for s in self._schema.layouts[begun.state.header.kind]}
        return self.finish(begun, (begun.state.committed, zeros))


def lenient(schema: SumSchema) -> SumSchema:
    """The same schema, which believes every broadcast."""

    class Lenient(type(schema)):  # type: ignore[misc]
        def check_broadcast(self, sender: int, broadcast: Tensors) -> None:
            """Believe everything."""

    return Lenient(**vars(schema))


class OldOrder(ClientNode):
    """The client as it was: it computes and encodes before it checks the request, and says by name what went wrong."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.exchanges = _AnyExchange()  # type: ignore[assignment]  # there was no schedule

    def _accept(self, state: Any, message: Message) -> Any:
        broadcast = {name[10:]: value for name, value in message.body.items() if name.startswith("broadcast/")}
        self._schema.broadcast.check(broadcast, where="broadcast")
        if state.header.kind == EVALUATE:
            raw = self.algorithm.evaluate(state.committed, broadcast)
        else:
            _, raw = self.algorithm.contribute(state.committed, broadcast, self._rng(1))
        state.session.plan.own.check(raw)
        self._defense.encode(raw, state.session.plan)
        return super()._accept(state, message)


@dataclass(frozen=True, kw_only=True)
class Told(SumFacts):
    """A sum without an algorithm, with what an honest server tells its clients."""

    told: Tensors

    @classmethod
    def of(cls, facts: SumFacts, told: Tensors, **changes: Any) -> Told:
        given = {field.name: getattr(facts, field.name) for field in fields(facts)}
        # the server may open evaluations, which a sum has not
        schema = replace(facts.schema, layouts={**facts.schema.layouts, EVALUATE: Layout(())})
        return cls(**{**given, "schema": schema, **changes}, told=told)


def terms_of(algorithm: Any, defense: Defense) -> Terms:
    """Terms with an evaluation after every round where that is allowed."""
    try:
        return Terms.of(algorithm, PUBLIC, defense, seed=3, evaluate_every=1)
    except ConfigError:
        return Terms.of(algorithm, PUBLIC, defense, seed=3)


# -------------------------------------------------------------------------------------------------------- worlds

Shown = tuple[Any, ...]


def shown(reply: Message, nbytes: int) -> Shown:
    """What a reply shows beside the contents of its fields; of a refusal these too."""
    fields = tuple((name, value.dtype.str, value.shape) for name, value in sorted(reply.body.items()))
    text: tuple[bytes, ...] = ()
    if reply.stage == REFUSAL:
        text = tuple(reply.body[name].tobytes() for name in ("name", "text"))  # its tag is random
    return reply.run, reply.round, reply.stage, reply.sender, reply.receiver, nbytes, fields, text


@dataclass
class Wire:
    """The transport of one world: it does to the victim's messages what the schedule says, and notes all replies."""

    nodes: Mapping[int, Any]
    seen: list[Shown] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)
    events: tuple[Event, ...] = ()
    instead: Tensors | None = None
    at_once: Tensors = field(default_factory=dict)
    requests: int = 0

    def begin(self, ask: Ask, instead: Tensors | None, at_once: Tensors) -> None:
        """An exchange. `instead`: the broadcast that the victim alone is told."""
        self.events, self.instead, self.at_once, self.requests = ask.events, instead, at_once, 0

    def exchange(self, outgoing: Mapping[int, bytes], timeout: float | None) -> Mapping[int, bytes]:
        out = {}
        for party, data in outgoing.items():
            message = Message.decode(data)
            if party == VICTIM:
                reply = self._to_victim(message)
                if reply is not None:
                    out[party] = reply
            elif party in self.nodes:
                out[party] = self.nodes[party].handle(message).encode()
        return out

    def _to_victim(self, message: Message) -> bytes | None:
        if self.instead is not None and message.stage == "upload":
            kept = {n: v for n, v in message.body.items() if not n.startswith("broadcast/")}
            message = replace(message, body=kept | nest("broadcast", self.instead))
        mine = [event for event in self.events if event.request == self.requests]
        self.requests += 1
        replies: list[bytes | None] = []
        for arrived in self._arrivals(message, mine):
            self.sent.append(arrived)
            replies.append(self.ask_victim(arrived))
        if any(event.what == "lost reply" for event in mine) or not replies:
            return None
        return replies[-1]

    def _arrivals(self, message: Message, events: list[Event]) -> Iterator[Message]:
        messages = [message]
        for event in events:
            if event.what == "lost request":
                messages = messages[:-1]
            elif event.what == "another header":
                messages = [another_header(m, event.salt) for m in messages]
            elif event.what == "another body":
                messages = [another_body(m, event.salt) for m in messages]
            elif event.what == "twice":
                messages = messages * 2
            elif event.what == "an older one before it" and self.sent:
                messages = [self.sent[event.salt % len(self.sent)], *messages]
            elif event.what == "upload at once":
                messages = [replace(message, stage="upload", body={**message.body, **self.at_once}), *messages]
        yield from messages

    def ask_victim(self, message: Message) -> bytes | None:
        """The victim's reply, noted; what it raises is noted too: then its process answers nothing.

        A victim behind another framework's messages tells in `wrapping` what these show beside the reply.
        """
        victim = self.nodes[VICTIM]
        try:
            reply = victim.handle(message)
        except Exception as error:
            self.seen.append(("raised", type(error).__name__, *getattr(victim, "wrapping", ())))
            return None
        data = reply.encode()
        self.seen.append((*shown(reply, len(data)), *getattr(victim, "wrapping", ())))
        return data


@cache
def _key(defense: Defense) -> bytes | None:
    """A key holder's key, made once: each world begins with a holder that has answered nothing."""
    helper = defense.aggregation.helper(CLIENTS)
    return None if helper is None else helper.freeze()


@dataclass
class World:
    """One run with the victim holding one of the two data sets."""

    terms: SumFacts
    data: Dataset
    node: Callable[..., Any] = ClientNode

    def __post_init__(self) -> None:
        terms = self.terms
        nodes: dict[int, Any] = {VICTIM: self.node(VICTIM, RUN, terms, self.data)} | {
            i: Partner(terms, i) for i in range(1, CLIENTS)
        }
        helper = terms.defense.aggregation.helper(CLIENTS, _key(terms.defense))
        if helper is not None:
            nodes[helper.party] = HelperNode(helper, RUN)
        self.wire = Wire(nodes)
        self.log, self.prepared = MessageLog(Transcript(RUN), keep=False), None

    def play(
        self, number: int, header: ExchangeHeader, broadcast: Tensors, counted: CountedExchanges, body: Tensors
    ) -> ExchangeResult | None:
        """One exchange to its end; `None` where it was void."""
        try:
            return self.exchange(number, header, broadcast, counted, body)
        except SecureFedError:
            return None

    def exchange(
        self, number: int, header: ExchangeHeader, broadcast: Tensors, counted: CountedExchanges, body: Tensors
    ) -> ExchangeResult:
        """One exchange to its end; what it precomputed is used by the next one."""
        content = ExchangeContent(header, broadcast, counted, lambda client: body)
        prepared, self.prepared = self.prepared, None
        exchange = OpenExchange(self.terms, number, content, self.log, None, prepared)
        try:
            result: ExchangeResult | None = None
            while result is None:
                for party, data in sorted(self.wire.exchange(dict(exchange.outgoing), None).items()):
                    exchange.receive(party, data)
                result = exchange.close_stage()
            return result
        finally:
            self.prepared = exchange.prepared

    def outside(self, number: int, stage: str, body: Tensors) -> None:
        """A message outside any exchange, to the victim."""
        self.wire.ask_victim(Message(RUN, number, stage, SERVER, VICTIM, body))


@dataclass
class Server:
    """A deviating server in both worlds at once: what it sends depends on nothing that only one of them showed."""

    terms: SumFacts
    worlds: tuple[World, World]
    number: int = 0
    round: int = 0
    attempt: int = 0
    last: Tensors = field(default_factory=dict)
    counted: dict[int, int] = field(default_factory=dict)
    announced: dict[int, tuple[Tensors, Tensors]] = field(default_factory=dict)

    @cached_property
    def honest(self) -> Tensors:
        if isinstance(self.terms, Told):
            return self.terms.told
        assert isinstance(self.terms, Terms)
        algorithm = self.terms.algorithm
        return algorithm.broadcast(algorithm.start(PUBLIC, np.random.default_rng(5)))

    def play(self, ask: Ask) -> None:
        """Do it in both worlds, and compare what they show."""
        number, broadcast = self._number(ask), self._broadcast(ask)
        if ask.stage == "exchange":
            self._exchange(ask, number, broadcast)
        else:
            body = nest("broadcast", broadcast) | {"commit/round": np.asarray(self._claim(ask), np.int64)}
            for world, told in zip(self.worlds, self._announcements(ask), strict=True):
                world.outside(number, ask.stage, body | told)
        self.number, self.last = max(self.number, number + 1), broadcast
        first, second = (world.wire.seen for world in self.worlds)
        assert first == second

    def _exchange(self, ask: Ask, number: int, broadcast: Tensors) -> None:
        header = self._opening(ask)
        claims = {
            client: self._claim(ask) if client == VICTIM else self.counted.get(client, -1) for client in header.cohort
        }
        needs = self.terms.schema.needs_outcome
        digest = tensors_digest(broadcast)
        counted = CountedExchanges.of(header.cohort, claims, dict.fromkeys(claims.values(), digest) if needs else None)
        instead = self._variant("scaled", ask.power + 1, ask.salt) if ask.split else None
        at_once = nest("broadcast", broadcast) | counted.body()
        ended = []
        for world, told in zip(self.worlds, self._announcements(ask), strict=True):
            world.wire.begin(ask, instead, at_once | told)
            ended.append(world.play(number, header, broadcast, counted, told))
        first, second = ended
        if first is None or second is None:
            self.attempt += 1
            return
        if ask.kind == TRAIN:
            self.round, self.attempt = max(self.round, header.round) + 1, 0
            self.counted |= dict.fromkeys(first.record.survivors, number)
            self.announced[number] = first.announced, second.announced

    def _number(self, ask: Ask) -> int:
        return {"next": self.number, "again": max(self.number - 1, 0), "jump": self.number + 9}[ask.number]

    def _opening(self, ask: Ask) -> ExchangeHeader:
        place = {
            "next": (self.round, self.attempt),
            "again": (max(self.round - 1, 0), 0),
            "a later round": (self.round + 3, 0),
            "the last attempt": (self.round, 7),
            "one attempt too many": (self.round, 8),
        }[ask.place]
        cohort = {
            "all": tuple(range(CLIENTS)), "one less": (VICTIM, 2), "without the victim": (1, 2),
            "a stranger": (VICTIM, 1, CLIENTS),
        }[ask.cohort]  # fmt: skip
        learned = self.terms.defense.start(self.terms.schema.layouts[TRAIN])
        if ask.salt % 3 == 0:
            learned = tuple(number * 2.0 ** (ask.power / 16) for number in learned)
        return ExchangeHeader(cohort, ask.kind, ask.doublings, learned, *place)

    def _claim(self, ask: Ask) -> int:
        true = self.counted.get(VICTIM, -1)
        return {
            "true": true, "never": -1, "the last exchange": self.number - 1, "an older one": max(true - 1, -1),
            "one to come": self.number + 5,
        }[ask.counted]  # fmt: skip

    def _announcements(self, ask: Ask) -> tuple[Tensors, Tensors]:
        """What follows from the sum that is said to have counted the victim; true ones differ, as the sums do."""
        both = self.announced.get(self._claim(ask))
        if both is None or not both[0]:
            both = next(iter(self.announced.values()), ({}, {}))
        if ask.announced == "nothing" or not both[0]:
            return {}, {}
        if ask.announced == "false":
            both = tuple({name: np.array(value) + 1 for name, value in one.items()} for one in both)  # type: ignore[assignment]
        return nest("commit/announced", both[0]), nest("commit/announced", both[1])

    def _broadcast(self, ask: Ask) -> Tensors:
        return self._variant(ask.broadcast, ask.power, ask.salt)

    def _variant(self, what: str, power: int, salt: int) -> Tensors:
        honest = {name: np.array(value) for name, value in self.honest.items()}
        rng = np.random.default_rng(salt)
        names = sorted(honest)
        name = names[salt % len(names)]
        value, scale = honest[name], 2.0 ** min(max(power, -1074), 1023)
        if value.dtype.kind != "f":  # a count of steps: a client would take as many
            scale = power % 4
        with np.errstate(all="ignore"):
            if what == "the last one" and self.last:
                return self.last
            if what in ("zeros", "scaled", "huge", "random", "negative"):
                return {n: self._spoiled(what, v, scale, rng).astype(v.dtype) for n, v in honest.items()}
            if what in ("nan", "infinity") and value.dtype.kind == "f":
                flat = value.reshape(-1)
                flat[salt % flat.size] = np.nan if what == "nan" else np.inf
            elif what == "another shape":
                honest[name] = np.concatenate([value.reshape(-1), value.reshape(-1)[:1]])
            elif what == "another type":
                honest[name] = value.astype(np.float32 if value.dtype == np.float64 else np.float64)
            elif what == "one missing":
                del honest[name]
            elif what == "one more":
                honest["more"] = value
            elif what == "one entry scaled":
                flat = value.reshape(-1)
                flat[salt % flat.size] = (flat[salt % flat.size] * scale).astype(value.dtype)
            elif what == "rank one" and value.ndim == 2:
                honest[name] = (np.outer(np.ones(len(value)), value[0]) * scale).astype(value.dtype)
        return honest

    @staticmethod
    def _spoiled(what: str, value: Any, scale: float, rng: np.random.Generator) -> Any:
        if value.dtype.kind != "f":  # a count of steps: small, or none
            return np.zeros_like(value) if what == "zeros" else value
        if what == "zeros":
            return np.zeros_like(value)
        if what == "huge":
            return np.full(value.shape, 1e300 if value.dtype == np.float64 else 1e37)
        if what == "random":
            return np.asarray(rng.normal(size=value.shape)) * scale
        return -value if what == "negative" else value * scale


def compare(
    terms: SumFacts, pair: tuple[str, str], schedule: list[Ask], node: Callable[..., Any] = ClientNode
) -> World:
    """Play `schedule` against the victim with either data set; raise `AssertionError` where they are told apart."""
    worlds = World(terms, DATA[pair[0]], node), World(terms, DATA[pair[1]], node)
    server = Server(terms, worlds)
    for ask in schedule:
        server.play(ask)
    return worlds[0]
