"""Whatever is lost, altered, repeated or swapped, and whoever lies: the sum is exact, or a named refusal ends the run.

And over all exchanges of a schedule, members sign one set of clients for a source, and two sets in no exchange.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from securefed import Message
from securefed._runtime.sum_memory import SumMemory, SumRule
from securefed.defenses._one_message import ring
from securefed.defenses._one_message.parameters import MODULUS
from securefed.defenses._one_message.session import complaints_statement, opening_statement, signed
from securefed.errors import ClientDeclines, MessageRefused, TooFewSurvivors
from tests.defenses.one_message.play import CLIENTS, IDENTITIES, MEMBERS, STAGES, Play, check_exact, protocol
from tests.examples import examples

SCHEDULES = max(examples(30), settings.default.max_examples)  # `--hypothesis-profile nightly` asks for more
AGGREGATIONS = (protocol(), protocol(keep_uploads=True))
HAPPENS = ("lost", "a bit", "an older one", "swapped", "a lie")
LIAR = 2
"""The one member that may be corrupt."""


@dataclass(frozen=True)
class Event:
    """What happens to the message to or from one party at one stage of one exchange."""

    exchange: int
    stage: str
    party: int
    to_server: bool
    what: str
    salt: int


@dataclass
class Channel:
    """Carries the messages of one direction, and lets the events happen to them."""

    play: Any
    events: list[Event]
    to_server: bool
    older: dict[tuple[int, str], Message] = field(default_factory=dict)
    last: Message | None = None

    def __call__(self, message: Message) -> Message | None:
        party = message.sender if self.to_server else message.receiver
        arrived: Message | None = message
        for event in self.events:
            if (event.stage, event.party) == (message.stage, party) and arrived is not None:
                arrived = self.happens(event, arrived, party)
        self.older[party, message.stage] = message
        self.last = message
        return arrived

    def happens(self, event: Event, message: Message, party: int) -> Message | None:
        if event.what == "lost":
            return None
        if event.what == "an older one":
            return self.older.get((party, message.stage))
        if event.what == "swapped" and self.last is not None:
            return replace(self.last, sender=message.sender, receiver=message.receiver)
        if event.what == "a lie" and self.to_server and party == LIAR:
            return lie(self.play(), message, event.salt)
        if event.what == "a bit" and message.body:
            name = sorted(message.body)[event.salt % len(message.body)]
            value = np.array(message.body[name])
            flat = value.reshape(-1).view(np.uint8)
            if flat.size:
                flat[event.salt % flat.size] ^= 1 << (event.salt % 8)
            return replace(message, body={**message.body, name: value})
        return message


def lie(play: Play, message: Message, salt: int) -> Message:
    """Let the corrupt member complain of clients, or reveal a wrong share, under its signature."""
    own = play.clients[LIAR].member
    if message.stage == "check":
        complaints = ((np.arange(len(own.clients)) + salt) % 3 == 0).astype(np.uint8)
        statement = complaints_statement(own.exchange, LIAR, own.statements.tobytes(), complaints.tobytes())
        return replace(message, body={"complaints": complaints, "signature": signed(IDENTITIES, LIAR, statement)})
    if message.stage == "open":
        values = ring.from_bytes(message.body["share"].tobytes())
        values[salt % len(values)] = (values[salt % len(values)] + 1 + salt) % MODULUS
        share = ring.to_bytes(values)
        signature = signed(IDENTITIES, LIAR, opening_statement(own.chosen, LIAR, share))
        return replace(message, body={"share": np.frombuffer(share, np.uint8), "signature": signature})
    return message


EVENTS = st.lists(
    st.builds(
        Event,
        exchange=st.integers(0, 1),
        stage=st.sampled_from(STAGES),
        party=st.integers(0, CLIENTS - 1),
        to_server=st.booleans(),
        what=st.sampled_from(HAPPENS),
        salt=st.integers(0, 2**16),
    ),
    max_size=6,
)


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=["sum kept", "uploads kept"])
@settings(max_examples=SCHEDULES, deadline=None, suppress_health_check=list(HealthCheck))
@given(events=EVENTS)
def test_any_schedule_ends_in_the_exact_sum_or_a_named_refusal(aggregation: Any, events: list[Event]) -> None:
    memories = dict.fromkeys(MEMBERS, SumMemory())
    opened: set[tuple[int, ...]] = set()
    older: dict[bool, dict[tuple[int, str], Message]] = {True: {}, False: {}}
    for number in range(2):
        own = [event for event in events if event.exchange == number]
        play = Remembering(aggregation, number=number + 1, memories=memories)
        channels = {
            side: Channel(lambda play=play: play, [e for e in own if e.to_server is side], side, older[side])
            for side in (True, False)
        }
        play.request, play.reply = channels[False], channels[True]
        try:
            found = play.run()
        except (MessageRefused, TooFewSurvivors):
            continue
        check_exact(found, play.plan)
        assert len(found.survivors) >= play.plan.threshold
        opened.add(found.survivors)
        lied = any(e.what == "a lie" and e.party == LIAR for e in own)
        honest = set(MEMBERS) - {LIAR} - {event.party for event in own}
        assert not honest & set(found.left_out), (found.left_out, lied)
    assert len(opened) <= 1  # the same source in both exchanges


@dataclass
class Remembering(Play):
    """Members ask their memory before they sign, as in a federation."""

    memories: dict[int, SumMemory] = field(default_factory=dict)

    def answer(self, party: int, request: Message) -> Message | None:
        before = self.clients.get(party)
        reply = super().answer(party, request)
        release = self.releases.pop(party, None)
        if release is not None:
            try:
                self.memories[party] = self.memories[party].admitted("run", release, SumRule())
            except (MessageRefused, ClientDeclines) as error:
                self.clients[party] = before
                self.refused[party] = error  # type: ignore[assignment]
                return None
        return reply


def test_the_second_exchange_of_one_source_opens_the_same_set_or_none() -> None:
    """Without events both open; with a client lost in the second, the members refuse."""
    memories = dict.fromkeys(MEMBERS, SumMemory())
    for number in (1, 2):
        assert Remembering(protocol(), number=number, memories=memories).run().survivors == tuple(range(CLIENTS))
    lost = Remembering(protocol(), number=3, memories=memories)
    lost.reply = lambda m: None if (m.stage, m.sender) == ("upload", 7) else m
    with pytest.raises(TooFewSurvivors, match="0 members of the committee answered at stage 'confirm'"):
        lost.run()
    other = Remembering(protocol(), number=4, memories=memories, source=b"t" * 32)
    other.reply = lost.reply
    assert other.run().survivors == tuple(range(7))  # another base
