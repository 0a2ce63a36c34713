"""Clients that forget everything between two messages but the bytes they froze: the same run, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from securefed import (
    SERVER,
    Dataset,
    InProcessTransport,
    LossyTransport,
    Message,
    PartyId,
    Public,
    Result,
    Server,
    Terms,
    chain,
)
from securefed._runtime.sum_run import new_run
from securefed._transports import Endpoint, HelperNode
from securefed.defenses import Defense, Identities, adaptive_clip, ckks, secure_aggregation, threshold_paillier
from securefed.defenses._base import without_indicator
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._homomorphic import InsecurePaillier, insecure_deal
from securefed.errors import MessageRefused, StorageError
from tests.combinations import REPRESENTATIVES, each_value, first_ones
from tests.contract.settings import CLIENTS, SETTINGS, data, make

CLEAR = chain(Quantise())
DEFENSES: dict[str, Callable[[], Defense]] = {
    "plain": lambda: CLEAR,
    "secure_aggregation": lambda: chain(secure_aggregation()),
    "pipelined": lambda: chain(secure_aggregation(pipelined=True)),
    "active": lambda: chain(secure_aggregation(identities=Identities.generate(CLIENTS), pipelined=True)),
    "verified": lambda: chain(secure_aggregation(verify=True)),
    "paillier": lambda: chain(InsecurePaillier()),
    "paillier_threshold": lambda: chain(threshold_paillier(keys=insecure_deal(3, CLIENTS))),
}


@dataclass
class Forgetful:
    """A client that lives for one message: made anew with its data, given the bytes, asked, frozen, dropped."""

    terms: Terms
    run: str
    client: int
    rows: Dataset
    frozen: bytes = b""
    sizes: list[int] = field(default_factory=list)

    def handle(self, message: Message) -> Message:
        node = self.terms.node(self.client, self.run, self.rows)
        if self.frozen:
            node.thaw(self.frozen)
        reply = node.handle(message)
        self.frozen = node.freeze()
        self.sizes.append(len(self.frozen))
        return reply


@dataclass
class ForgetfulHelper:
    """A key holder that lives for one message."""

    terms: Terms
    run: str
    frozen: bytes | None = None

    def handle(self, message: Message) -> Message:
        helper = self.terms.defense.aggregation.helper(self.terms.public.cohort, self.frozen)
        assert helper is not None
        reply = HelperNode(helper, self.run).handle(message)
        self.frozen = helper.freeze()
        return reply


def terms_of(name: str, defense: Defense, evaluate_every: int = 0) -> Terms:
    return Terms.of(make(name), Public.of(data()), defense, seed=3, evaluate_every=evaluate_every)


def server(terms: Terms, *, forget: bool, lose: Callable[[Message], bool] | None = None) -> Server:
    run = new_run()
    endpoints: dict[PartyId, Endpoint] = {}
    for client, rows in enumerate(data()):
        endpoints[client] = Forgetful(terms, run, client, rows) if forget else terms.node(client, run, rows)
    for party in terms.defense.aggregation.beside:
        endpoints[party] = (
            ForgetfulHelper(terms, run)
            if forget
            else HelperNode(terms.defense.aggregation.helper(terms.public.cohort), run)
        )
    return Server(terms, LossyTransport(InProcessTransport(endpoints), replies=lose), run=run)


def same(ours: Result, theirs: Result) -> None:
    assert [entry.survivors for entry in ours.history] == [entry.survivors for entry in theirs.history]
    for name, value in theirs.output.items():
        np.testing.assert_array_equal(ours.output[name], value)


def stages(result: Result) -> list[tuple[int, str]]:
    sent = (s.message for s in result.transcript.sent if s.message.sender == SERVER)
    return list(dict.fromkeys((message.round, message.stage) for message in sent))


def place(name: str) -> tuple[bool, int]:
    """Representatives first, then the first algorithm of each family, the second of each, and so on."""
    family, _, _ = name.partition("/")
    return name not in REPRESENTATIVES, [other for other in SETTINGS if other.startswith(f"{family}/")].index(name)


@pytest.mark.parametrize("name", first_ones(sorted(SETTINGS, key=place), 9))
def test_every_algorithm_under_secure_aggregation(name: str) -> None:
    """With a client lost at the upload now and then, so that tentative states are thawed to be forgotten too."""

    def lose(message: Message) -> bool:
        return message.stage == "upload" and message.sender == message.round % 3

    ours = server(terms_of(name, DEFENSES["secure_aggregation"]()), forget=True, lose=lose).run(3)
    same(ours, server(terms_of(name, CLEAR), forget=False, lose=lose).run(3))


@pytest.mark.parametrize(("name", "defense"), each_value(["optimization/scaffold", "personalized/flame"], DEFENSES))
def test_under_every_defence_with_evaluations(name: str, defense: str) -> None:
    layer = DEFENSES[defense]()
    ours = server(terms_of(name, layer, 2), forget=True).run(4, evaluate_every=2)
    theirs = server(terms_of(name, layer, 2), forget=False).run(4, evaluate_every=2)
    same(ours, theirs)
    assert ours.history[-1].metrics == theirs.history[-1].metrics
    assert stages(ours) == stages(theirs)  # what an exchange prepared for the next one is thawed as well


def test_an_adaptive_clip_and_a_lattice_go_on_too() -> None:
    """The lattice is approximate, with fresh noise a run: within the plan of the run that forgets nothing."""
    same(
        server(terms_of("optimization/dsgd", chain(adaptive_clip(0.5))), forget=True).run(3),
        server(terms_of("optimization/dsgd", chain(adaptive_clip(0.5))), forget=False).run(3),
    )
    terms = terms_of("optimization/dsgd", chain(ckks()))
    ours, theirs = (server(terms, forget=forget).run(1) for forget in (True, False))
    for tensor in without_indicator(ours.plan).tensors:
        a, b = (result.transcript.records[0].total[tensor.name] for result in (ours, theirs))
        assert float(np.abs(a - b).max()) <= 2 * tensor.error


def at_upload() -> tuple[Terms, str, Forgetful, list[Message]]:
    """A client of a run under secure aggregation, and the requests it was sent."""
    terms, seen = terms_of("optimization/scaffold", DEFENSES["secure_aggregation"]()), []
    run = new_run()
    endpoints: dict[PartyId, Endpoint] = {i: Forgetful(terms, run, i, rows) for i, rows in enumerate(data())}

    def note(message: Message) -> bool:
        seen.append(message)
        return False

    Server(terms, LossyTransport(InProcessTransport(endpoints), requests=note), run=run).run(1)
    mine: Any = endpoints[1]
    return terms, run, mine, [message for message in seen if message.receiver == 1]


def test_what_was_frozen_answers_nothing_twice() -> None:
    terms, run, client, asked = at_upload()
    node = terms.node(1, run, data()[1])
    node.thaw(client.frozen)
    for message in asked:
        assert node.handle(message).stage == "refusal", message.stage
    fresh = terms.node(1, run, data()[1])  # positive control: who forgot everything answers the first of them
    assert fresh.handle(asked[0]).stage == "keys"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"client": 2}, "of client 1, not of client 2"),
        ({"run": "0" * 32}, "of run"),
        ({"seed": 4}, "of terms"),
        ({"cut": 40}, "cannot be read"),
    ],
)
def test_the_state_of_somebody_else_is_refused(change: Mapping[str, Any], words: str) -> None:
    terms, run, client, _ = at_upload()
    terms.node(1, run, data()[1]).thaw(client.frozen)  # positive control
    terms = replace(terms, seed=change.get("seed", terms.seed))
    node = terms.node(change.get("client", 1), change.get("run", run), data()[1])
    before = node.state
    with pytest.raises(StorageError, match=words):
        node.thaw(client.frozen[: -change["cut"]] if "cut" in change else client.frozen)
    assert node.state is before


def test_a_resumed_run_takes_what_was_learned_and_nothing_of_the_exchange() -> None:
    terms, run, client, asked = at_upload()
    node = terms.node(1, new_run(), data()[1])
    node.thaw(client.frozen, resumes=run)
    with pytest.raises(StorageError, match="of run"):
        node.thaw(client.frozen, resumes="0" * 32)
    alive = terms.node(1, run, data()[1])
    alive.thaw(client.frozen)
    assert node.state.session is None and node.state.protocol is None and node.state.last_round == -1
    assert node.state.tentative_round == alive.state.tentative_round
    np.testing.assert_array_equal(node.state.memory, alive.state.memory)
    assert node.handle(asked[0]).stage == "refusal"  # another run's message
    with pytest.raises(MessageRefused):
        asked[0].check(run=node.run, round=0, stage="keys", sender=SERVER, receiver=1)
