"""Play one exchange of one message a client, with hooks that lose, alter or replace messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from securefed import SERVER, Aggregate, Layout, Message, TensorSpec
from securefed.defenses import Identities, Plan, Session, chain, one_message
from securefed.defenses._one_message import OneMessage
from securefed.defenses._plan import UploadContext
from securefed.errors import MessageRefused

RUN = "0123456789abcdef0123456789abcdef"
CLIENTS = 8
MEMBERS = tuple(range(6))
IDENTITIES = Identities.generate(CLIENTS)
LAYOUT = Layout((TensorSpec("w", (5,), 1.0, 32), TensorSpec("v", (2,), 3.0, 64)))
CONTEXT = b"c" * 32
STAGES = ("keys", "upload", "check", "confirm", "open")

Alter = Callable[[Message], Message | None]


def protocol(**options: Any) -> OneMessage:
    """Six members of whom one may be corrupt and one lost, among eight clients."""
    settings = {"committee": MEMBERS, "identities": IDENTITIES, "corrupt": 1, "lost": 1} | options
    return one_message(**settings)


def planned(aggregation: OneMessage, clients: int = CLIENTS) -> Plan:
    return chain(aggregation).plan(LAYOUT, clients)


def contribution(client: int, plan: Plan, seed: int = 0) -> dict[str, np.ndarray]:
    """Integers over the whole range of the plan."""
    rng = np.random.default_rng([seed, client])
    out = {}
    for tensor in plan.tensors:
        most = 0 if tensor.name == "out.indicator" else int(tensor.bound / tensor.step)
        out[tensor.name] = rng.integers(-most, most + 1, tensor.shape)
    return out


@dataclass
class Play:
    """One exchange, all parties in this process.

    Attributes:
        aggregation: the protocol.
        number: of the exchange.
        context: what clients were told, by client where they differ.
        request: changes a request on its way, or loses it.
        reply: changes a reply on its way, or loses it.
        out: clients that sit out.
        source: digest of what contributions are computed from.
    """

    aggregation: OneMessage = field(default_factory=protocol)
    number: int = 3
    context: Mapping[int, bytes] = field(default_factory=dict)
    request: Alter = lambda message: message
    reply: Alter = lambda message: message
    out: tuple[int, ...] = ()
    source: bytes = b"s" * 32
    clients: dict[int, Any] = field(default_factory=dict)
    refused: dict[int, MessageRefused] = field(default_factory=dict)
    replies: list[Message] = field(default_factory=list)
    releases: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plan = planned(self.aggregation)
        cohort = tuple(range(CLIENTS))
        self.session = Session(RUN, self.number, cohort, self.plan, CONTEXT)

    def run(self) -> Aggregate:
        """Return the sum; the errors of the server are raised, those of others stand in `refused`."""
        state, stage, outgoing = self.aggregation.server_open(self.session)
        while True:
            self.states = [*getattr(self, "states", []), state]
            arrived = {}
            for party, body in outgoing.items():
                request = self.request(Message(RUN, self.number, stage, SERVER, party, dict(body)))
                reply = None if request is None else self.answer(party, request)
                reply = None if reply is None else self.reply(reply)
                if reply is not None:
                    self.replies.append(reply)
                    arrived[party] = reply
            state, step = self.serve(state, arrived)
            if isinstance(step, Aggregate):
                return step
            state, stage, outgoing = step

    def serve(self, state: Any, arrived: dict[int, Message]) -> Any:
        """Make the server's step as its runtime does: uploads one by one, and without the replies that it refuses."""
        if state.stage == "upload":
            for party, reply in arrived.items():
                try:
                    state = self.aggregation.server_absorb(state, reply)
                except MessageRefused as error:
                    assert error.sender == party
                    self.refused[party] = error
            arrived = {}
        while True:
            try:
                return state, self.aggregation.server_step(state, arrived)
            except MessageRefused as error:
                if error.sender not in arrived:
                    raise
                self.refused[error.sender] = error
                del arrived[error.sender]

    def answer(self, party: int, request: Message) -> Message | None:
        before = self.clients.get(party)
        try:
            if before is None:
                session = replace(self.session, context=b"")  # a client does not know it before its upload
                before = self.aggregation.client_open(session, party)
            if request.stage == "upload":
                told = UploadContext(self.context.get(party, CONTEXT), self.source)
                accepted = self.aggregation.client_accept(before, request, told)
                encoded = None if party in self.out else contribution(party, self.plan)
                after, body = self.aggregation.client_upload(accepted, encoded)
            else:
                after, body = self.aggregation.client_step(before, request, None)
        except MessageRefused as error:
            self.refused[party] = error
            return None
        if (release := self.aggregation.client_releases(before, after)) is not None:
            self.releases[party] = release
        self.clients[party] = after
        return Message(RUN, self.number, request.stage, party, SERVER, body)


def check_exact(found: Aggregate, plan: Plan, seed: int = 0) -> None:
    """Assert that the sum is that of the survivors' contributions, to the bit."""
    for tensor in plan.tensors:
        expected = np.sum([contribution(client, plan, seed)[tensor.name] for client in found.survivors], axis=0)
        np.testing.assert_array_equal(found.total[tensor.name], expected)


def losing(stage: str, *parties: int) -> Alter:
    """Lose these parties' messages at this stage and after it."""
    late = STAGES[STAGES.index(stage) :]
    return lambda message: (
        None if message.stage in late and {message.sender, message.receiver} & set(parties) else message
    )


def changing(stage: str, parties: tuple[int, ...], change: Callable[[dict[str, Any]], None]) -> Alter:
    """Change the body of these parties' messages at this stage, on a copy."""

    def alter(message: Message) -> Message:
        if message.stage != stage or not {message.sender, message.receiver} & set(parties):
            return message
        body = {name: np.array(value) for name, value in message.body.items()}
        change(body)
        return replace(message, body=body)

    return alter


def reached(stage: str, aggregation: Any = None) -> tuple[Play, Any, dict[int, Any]]:
    """Play until the requests of a stage are ready; return the play, the server's state and the requests."""
    play = Play(aggregation or protocol())
    play.aggregation.server_open(play.session)
    state, at, outgoing = play.aggregation.server_open(play.session)
    while at != stage:
        arrived = {}
        for party, body in outgoing.items():
            reply = play.answer(party, Message(RUN, play.number, at, SERVER, party, dict(body)))
            assert reply is not None
            arrived[party] = reply
        _, (state, at, outgoing) = play.serve(state, arrived)
    return play, state, dict(outgoing)


def ask(play: Play, stage: str, party: int, body: Any) -> Message:
    """Ask a party; its refusal is raised."""
    play.refused.pop(party, None)
    reply = play.answer(party, Message(RUN, play.number, stage, SERVER, party, dict(body)))
    if reply is None:
        raise play.refused[party]
    return reply
