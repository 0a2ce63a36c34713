"""What every registered defence must do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from securefed import catalogue
from securefed.defenses.base import Aggregation, Defense, Session, Transform, has_indicator, without_indicator
from securefed.defenses.compose import chain
from securefed.defenses.fixed_point import Quantise
from securefed.defenses.homomorphic import insecure_deal
from securefed.defenses.simulate import sum_once
from securefed.errors import PlanError, ProtocolError, TooFewSurvivors
from securefed.messages import SERVER, Aggregate, Message
from securefed.state import pack, restore
from securefed.tensors import Layout, TensorSpec

RNG = np.random.default_rng(5)
LAYOUT = Layout((TensorSpec("a", (3, 2), 2.0, 64), TensorSpec("b", (), 5.0, 32)))
VALUES = {i: {"a": RNG.uniform(-2, 2, (3, 2)), "b": RNG.uniform(-5, 5, ())} for i in range(5)}
NAMES = catalogue.defenses.names
# The DP defences add noise by design; their own tests check that. Here they run with little: sd .02.
# Threshold keys take seconds to deal, so the battery uses small ones, which their type calls insecure.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "dp": {"clip_norm": 20.0, "noise_multiplier": 1e-3},
    "ddp": {"clip_norm": 20.0, "noise_multiplier": 1e-3},
    "paillier_threshold": {"keys": insecure_deal(4, 5)},
}
NOISY = ("dp", "ddp")
NOISE = 0.2  # 7.7 standard deviations of the larger (`ddp` with all clients: sd .026), for 7 entries


def make(name: str) -> Defense:
    return catalogue.defenses.make(name, **ARGUMENTS.get(name, {}))


def test_the_registry_is_not_empty() -> None:
    assert len(NAMES) >= 5


@pytest.mark.parametrize("name", NAMES)
def test_it_satisfies_the_protocols_and_plans_in_words(name: str) -> None:
    defense = make(name)
    assert isinstance(defense.aggregation, Aggregation)
    assert all(isinstance(link, Transform) for link in defense.transforms)
    plan = defense.plan(LAYOUT, 5)
    assert plan.defense == defense.name
    assert plan.clients == 5
    assert plan.stages
    assert defense.aggregation.upload in plan.stages
    assert plan.upload_bytes >= LAYOUT.size * 4
    assert plan.open_to
    assert plan.assumptions
    assert plan.own.names == LAYOUT.names
    assert has_indicator(plan) is (name in ("secure_aggregation", "paillier", "paillier_threshold", "ckks"))
    assert all(t.max_clients >= 5 for t in plan.tensors)
    with pytest.raises(PlanError):
        defense.plan(LAYOUT, 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_sum_is_right_within_the_plan(name: str) -> None:
    defense = make(name)
    found = sum_once(defense, LAYOUT, VALUES)
    assert found.survivors == tuple(range(5))
    for tensor in without_indicator(defense.plan(LAYOUT, 5)).tensors:
        exact = sum(v[tensor.name] for v in VALUES.values())
        noise = NOISE if name in NOISY else 1e-12
        assert np.abs(found.total[tensor.name] - exact).max() <= tensor.error + noise


@pytest.mark.parametrize("name", NAMES)
def test_one_lost_upload_leaves_the_sum_of_the_others_and_all_lost_is_named(name: str) -> None:
    defense = make(name)
    found = sum_once(defense, LAYOUT, VALUES, drop=lambda stage, party: stage == "upload" and party == 2)
    assert found.survivors == (0, 1, 3, 4)
    np.testing.assert_allclose(
        found.total["a"], sum(v["a"] for i, v in VALUES.items() if i != 2), atol=NOISE if name in NOISY else 1e-8
    )
    with pytest.raises(TooFewSurvivors):
        sum_once(defense, LAYOUT, VALUES, drop=lambda stage, party: stage == "upload" and party >= 0)


@pytest.mark.parametrize("name", NAMES)
def test_states_survive_a_process_between_any_two_steps_and_steps_are_pure(name: str) -> None:
    """Every state is packed and restored after every step, and every server step is made twice."""
    defense = make(name)
    plan = defense.plan(LAYOUT, 5)
    protocol = defense.aggregation
    session = Session("ab" * 16, 3, tuple(range(5)), plan)
    clients = {i: protocol.client_open(session, i) for i in session.cohort}
    helper = protocol.helper(plan.clients)
    state, stage, outgoing = protocol.server_open(session)
    while True:
        replies: dict[int, Message] = {}
        for party, body in outgoing.items():
            request = Message(session.run, session.round, stage, SERVER, party, body)
            if helper is not None and party == helper.party:
                reply: Mapping[str, Any] = helper.handle(request)
            else:
                template = clients[party]
                encoded = defense.encode(VALUES[party], plan) if stage == protocol.upload else None
                new, reply = protocol.client_step(restore(template, pack(template)), request, encoded)
                clients[party] = restore(template, pack(new))
            replies[party] = Message(session.run, session.round, stage, party, SERVER, reply)
        restored = restore(state, pack(state))
        step = protocol.server_step(restored, dict(replies))
        again = protocol.server_step(restored, dict(replies))
        assert type(step) is type(again)
        if isinstance(step, Aggregate):
            assert isinstance(again, Aggregate)
            for tensor in LAYOUT.names:
                np.testing.assert_array_equal(step.total[tensor], again.total[tensor])
            break
        state, stage, outgoing = step
    quantised = chain(*(t for t in defense.transforms if not isinstance(t, Quantise)))
    decoded = defense.decode(step.total, plan, step.count)
    exact = sum(v["a"] for v in VALUES.values())
    np.testing.assert_allclose(decoded["a"], exact, atol=NOISE if name in NOISY else 1e-8)
    assert quantised.aggregation.name == "plain"


@pytest.mark.parametrize("name", NAMES)
def test_a_repeated_and_an_early_request_are_refused_by_name(name: str) -> None:
    defense = make(name)
    plan = defense.plan(LAYOUT, 5)
    protocol = defense.aggregation
    session = Session("ab" * 16, 3, tuple(range(5)), plan)
    state = protocol.client_open(session, 0)
    with pytest.raises(ProtocolError):
        protocol.client_step(state, Message(session.run, 3, "no such stage", SERVER, 0, {}), None)
    with pytest.raises(ProtocolError):
        protocol.client_step(state, Message(session.run, 3, "unmask", SERVER, 0, {}), None)
