"""Whatever happens to whichever messages, and whoever lies: the sum is exactly right, or the round ends in a named
refusal; and the run goes on."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from securefed import SERVER, Aggregate, Message
from securefed._runtime.sum_memory import SumMemory, SumRule
from securefed.defenses import Identities, Plan, Session, secure_aggregation
from securefed.defenses._secure_aggregation import SecureAggregation
from securefed.errors import MessageRefused, TooFewSurvivors
from tests.defenses.secure_aggregation.faults import NETWORK, client_lies, server_lies
from tests.examples import examples

RUN = "0123456789abcdef0123456789abcdef"
IDENTITIES = Identities.generate(5)
VARIANTS = {
    "curious": secure_aggregation(),
    "curious, pipelined": secure_aggregation(pipelined=True),
    "active": secure_aggregation(identities=IDENTITIES),
    "active, pipelined": secure_aggregation(identities=IDENTITIES, pipelined=True),
}
SCHEDULES = max(examples(500), settings.default.max_examples)  # `--hypothesis-profile nightly` asks for more
STAGES = ("keys", "shares", "upload", "confirm", "unmask")
HAPPENS = (*NETWORK, "twice", "an older one", "swapped", "a lie")


@dataclass(frozen=True)
class Event:
    """What happens at one stage of one exchange to the message to or from one client."""

    exchange: int
    stage: str
    client: int
    to_server: bool
    what: str
    salt: int


@dataclass
class Run:
    """Honest parties, but for the events; each client asks its memory of sums before it replies, as in a federation.

    Attributes:
        memories: by client, what it remembers of the sums that it let out.
        released: by client, the survivors each contribution of it was released for.
        agreed: by exchange, the survivors that clients released shares for.
    """

    protocol: SecureAggregation
    plan: Plan
    cohort: tuple[int, ...]
    events: tuple[Event, ...]
    number: int = -1
    carried: Any = None
    clients: dict[int, Any] = field(default_factory=dict)
    sent: dict[tuple[int, int], Message] = field(default_factory=dict)
    memories: dict[int, SumMemory] = field(default_factory=dict)
    released: dict[int, dict[bytes, set[Any]]] = field(default_factory=dict)
    agreed: dict[int, set[Any]] = field(default_factory=dict)

    def exchange(self, values: dict[int, np.ndarray]) -> Aggregate | None:
        """The sum, compared with the true one; `None` where a named refusal ended the exchange."""
        self.number += 1
        self.session, carried, self.carried = Session(RUN, self.number, self.cohort, self.plan), self.carried, None
        state, stage, outgoing = self.protocol.server_resume(self.session, carried)
        try:
            while True:
                replies: dict[int, Message] = {}
                for client, body in outgoing.items():
                    request = Message(RUN, self.number, stage, SERVER, client, body)
                    for arrived in self._arrivals(request, state.channels.get(client, b""), client):
                        replies |= self._answer(client, arrived, values[client])
                for event in self._events(stage, to_server=True, what="swapped"):
                    pair = [event.client, self.cohort[(self.cohort.index(event.client) + 1) % len(self.cohort)]]
                    if set(pair) <= set(replies):
                        replies |= {pair[0]: replies[pair[1]], pair[1]: replies[pair[0]]}
                step, replies = self._serve(state, replies)
                if isinstance(step, Aggregate):
                    self.carried = self.protocol.server_carry(state, replies)
                    break
                state, stage, outgoing = step
        except (MessageRefused, TooFewSurvivors):
            return None
        if not any(e.what == "a lie" and not e.to_server and e.exchange == self.number for e in self.events):
            assert np.array_equal(step.total["w"], np.sum([values[client] for client in step.survivors], axis=0))
        assert len(step.survivors) >= self.plan.threshold
        return step

    def _events(self, stage, *, to_server, what=None, client=None):
        return [
            e
            for e in self.events
            if (e.exchange, e.stage, e.to_server) == (self.number, stage, to_server)
            and what in (None, e.what)
            and client in (None, e.client)
        ]

    def _arrivals(self, message: Message, secret: bytes, client: int) -> list[Message]:
        """What comes out at the other end; `secret` is the sender's, with which it may lie."""
        to_server = message.sender != SERVER
        older = self.sent.get((message.sender, message.receiver))
        self.sent[message.sender, message.receiver] = message
        arrived: list[Message] = [message]
        for event in self._events(message.stage, to_server=to_server, client=client):
            if event.what in NETWORK:
                arrived = [new for m in arrived if (new := NETWORK[event.what](m, event.salt)) is not None]
            elif event.what == "twice":
                arrived = arrived * 2
            elif event.what == "an older one":
                arrived = [] if older is None else [older]
            elif event.what == "a lie" and secret:
                lie = client_lies if to_server else server_lies
                arrived = [lie(m, secret, event.salt) for m in arrived[:1] if m is message] or arrived
        return arrived

    def _answer(self, client: int, request: Message, values: np.ndarray) -> dict[int, Message]:
        before = self.clients.get(client)
        if before is None:
            before = self.protocol.client_open(self.session, client)
        elif before.session.round != self.number:
            before = self.protocol.client_resume(self.session, client, before)
        try:
            after, body = self.protocol.client_step(
                before, request, {"w": values} if request.stage == "upload" else None
            )
            if (release := self.protocol.client_releases(before, after)) is not None:
                asked = replace(release, source=hashlib.sha256(values.tobytes()).digest())
                memory = self.memories.get(client, SumMemory())
                self.memories[client] = memory.admitted(RUN, asked, SumRule())
        except MessageRefused:
            return {}
        self.clients[client] = after
        if not after.stage:
            alive = tuple(request.body["alive"].tolist()) if "alive" in request.body else after.survivors
            self.agreed.setdefault(self.number, set()).add(alive)
            self.released.setdefault(client, {}).setdefault(values.tobytes(), set()).add(alive)
        reply = Message(RUN, self.number, request.stage, client, SERVER, body)
        arrivals = self._arrivals(reply, before.channel or after.channel, client)
        return {client: arrivals[-1]} if arrivals else {}

    def _serve(self, state: Any, replies: dict[int, Message]) -> tuple[Any, dict[int, Message]]:
        """As a federation's server: a refused reply is left out."""
        while True:
            try:
                return self.protocol.server_step(state, replies), replies
            except MessageRefused as refusal:
                if refusal.sender not in replies:
                    raise
                replies = {client: reply for client, reply in replies.items() if client != refusal.sender}


def values_of(cohort, seed):
    rng = np.random.default_rng(seed)
    return {client: rng.integers(-(2**24), 2**24, 2, np.int64) for client in cohort}


EVENTS = st.builds(
    Event,
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from(STAGES),
    st.integers(0, 4),
    st.booleans(),
    st.sampled_from(HAPPENS),
    st.integers(0, 2**16),
)


@pytest.mark.hypothesis
def test_any_schedule_sums_exactly_or_is_refused_by_name(net):
    """Schedules meet both ends: neither is rare."""
    outcomes: Counter[str] = Counter()

    @settings(max_examples=SCHEDULES, suppress_health_check=list(HealthCheck))
    @given(
        st.sampled_from(sorted(VARIANTS)),
        st.sampled_from([3, 3, 3, 4, 5]),
        st.lists(EVENTS, min_size=1, max_size=5),
        st.sampled_from(["repeat", "go on", "stop"]),
    )
    def schedules(variant, clients, events, then):
        outcomes["summed" if follow(net, variant, clients, events, then) else "refused"] += 1

    schedules()
    assert min(outcomes["summed"], outcomes["refused"]) > sum(outcomes.values()) / 20


def follow(net, variant, clients, events, then):
    """An exchange with events; then one that repeats its contributions, or has events of its own, and one without.

    Returns the first one's aggregate, or `None`.
    """
    protocol, cohort = VARIANTS[variant], tuple(range(clients))
    plan = net.plan(clients, (("w", (2,), 32),), identities=protocol.identities, pipelined=protocol.pipelined)
    run = Run(protocol, plan, cohort, tuple(event for event in events if event.client < clients))
    first = run.exchange(values_of(cohort, 0))
    if then == "repeat" or any(event.exchange == 1 for event in run.events):
        run.exchange(values_of(cohort, 0 if then == "repeat" else 1))
    if then == "go on":
        last = run.exchange(values_of(cohort, 2))
        if last is None or last.survivors != cohort:  # what was prepared under events is used once
            last = run.exchange(values_of(cohort, 3))
        assert last is not None
        assert last.survivors == cohort
    if protocol.identities is not None:
        for sets in run.agreed.values():
            assert len(sets) == 1
            assert len(next(iter(sets))) >= plan.threshold
        for contributions in run.released.values():
            assert all(len(sets) == 1 for sets in contributions.values())
    return first
