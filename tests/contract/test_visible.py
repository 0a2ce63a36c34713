"""What messages show under every registered defence, whatever it hides: sizes, who took part, differences of sums."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pytest

from securefed import SERVER, Aggregate, Layout, Message, TensorSpec
from securefed import _catalogue as catalogue
from securefed.defenses import Defense, Session, chain, sum_once, threshold_paillier
from securefed.defenses._base import without_indicator
from securefed.defenses._homomorphic import InsecurePaillier, insecure_deal

LAYOUT = Layout((TensorSpec("a", (3, 2), 2.0, 64), TensorSpec("b", (), 5.0, 32)))
COHORT = tuple(range(5))
RNG = np.random.default_rng(6)
VALUES = {i: {"a": RNG.uniform(-2, 2, (3, 2)), "b": RNG.uniform(-5, 5, ())} for i in COHORT}
ZEROS = {i: {name: np.zeros_like(value) for name, value in VALUES[i].items()} for i in COHORT}
NAMES = catalogue.defenses.names
# Short keys, as those of the usual length take seconds; the lengths that are compared hang on both in the same way.
SHORT_KEYS: dict[str, Defense] = {
    "paillier": chain(InsecurePaillier(bits=512, randomness="short")),
    "paillier_threshold": chain(threshold_paillier(keys=insecure_deal(4, 5))),
}
EXACT = [name for name in NAMES if catalogue.defenses.make(name).aggregation.exact and name not in ("dp", "ddp")]


def make(name: str) -> Defense:
    return SHORT_KEYS.get(name) or catalogue.defenses.make(name)


Shown = list[tuple[str, int, bool, str, str, tuple[int, ...]]]


def shown(defense: Defense, values: dict[int, Any], layout: Layout = LAYOUT) -> Shown:
    """Of every message of one exchange: stage, party, direction, and each field's name, type and shape."""
    session = Session(secrets.token_hex(16), 0, COHORT, defense.plan(layout, len(COHORT)))
    protocol, plan, out = defense.aggregation, session.plan, []
    states = {client: protocol.client_open(session, client) for client in COHORT}
    helper = protocol.helper(plan.clients)
    state, stage, outgoing = protocol.server_open(session)
    while True:
        replies = {}
        for party, body in outgoing.items():
            request = Message(session.run, 0, stage, SERVER, party, body)
            if helper is not None and party == helper.party:
                reply = helper.handle(request)
            else:
                encoded = defense.encode(values[party], plan) if stage == protocol.upload else None
                states[party], reply = protocol.client_step(states[party], request, encoded)
            for to_server, fields in ((False, body), (True, reply)):
                out += [(stage, party, to_server, name, str(v.dtype), v.shape) for name, v in sorted(fields.items())]
            replies[party] = Message(session.run, 0, stage, party, SERVER, reply)
        step = protocol.server_step(state, replies)
        if isinstance(step, Aggregate):
            return out
        state, stage, outgoing = step


@pytest.mark.parametrize("name", NAMES)
def test_sizes_of_messages_depend_on_the_plan_alone(name: str) -> None:
    """Zeros, and values up to the bound; as a control, a layout of more entries is told apart."""
    defense = make(name)
    seen = shown(defense, VALUES)
    assert seen == shown(defense, ZEROS)
    shape = (2500, 2) if name == "ckks" else (40, 2)  # more entries than fit one ciphertext
    wider = Layout((TensorSpec("a", shape, 2.0, 64), TensorSpec("b", (), 5.0, 32)))
    assert seen != shown(defense, {i: {"a": np.zeros(shape), "b": np.zeros(())} for i in COHORT}, wider)


@pytest.mark.parametrize("name", NAMES)
def test_the_server_knows_who_is_in_the_sum(name: str) -> None:
    found = sum_once(make(name), LAYOUT, VALUES, drop=lambda stage, party: stage == "upload" and party == 3)
    assert found.survivors == (0, 1, 2, 4)


@pytest.mark.parametrize("name", EXACT)
def test_sums_over_different_survivors_of_the_same_values_subtract(name: str) -> None:
    defense = make(name)
    plan = defense.plan(LAYOUT, len(COHORT))
    all_, rest = (
        sum_once(defense, LAYOUT, VALUES, drop=lambda stage, party, lost=lost: stage == "upload" and party == lost)
        for lost in (None, 3)
    )
    for tensor in without_indicator(plan).tensors:
        alone = all_.total[tensor.name] - rest.total[tensor.name]
        np.testing.assert_allclose(alone, VALUES[3][tensor.name], atol=2 * tensor.error + 1e-12)


@pytest.mark.parametrize("name", ["secure_aggregation", "paillier", "ckks"])
def test_a_server_that_plays_all_other_clients_opens_the_one_left(name: str) -> None:
    """Clients without identities may all be the server's but one: it knows what those contribute, and subtracts."""
    defense = make(name)
    made_up = VALUES | {i: ZEROS[i] for i in COHORT if i != 1}
    for tensor in without_indicator(defense.plan(LAYOUT, len(COHORT))).tensors:
        found = sum_once(defense, LAYOUT, made_up).total[tensor.name]
        np.testing.assert_allclose(found, VALUES[1][tensor.name], atol=tensor.error + 1e-12)


@pytest.mark.parametrize("name", ["paillier", "ckks"])
def test_an_active_server_has_one_upload_opened_in_place_of_the_sum(name: str) -> None:
    """Why these plans call the server honest but curious: it replaces all uploads but one by encryptions of zero."""
    defense = make(name)
    session = Session(secrets.token_hex(16), 0, COHORT, defense.plan(LAYOUT, len(COHORT)))
    protocol, plan = defense.aggregation, session.plan
    holder = protocol.helper(plan.clients)
    assert holder is not None
    step: Any = protocol.server_open(session)
    while not isinstance(step, Aggregate):
        state, stage, outgoing = step
        replies = {}
        for party, body in outgoing.items():
            request = Message(session.run, 0, stage, SERVER, party, body)
            if party == holder.party:
                reply = holder.handle(request)
            else:  # the victim's own upload; the server encrypts what it likes under the public key
                encoded = defense.encode(VALUES[1] if party == 1 else ZEROS[party], plan)
                _, reply = protocol.client_step(protocol.client_open(session, party), request, encoded)
            replies[party] = Message(session.run, 0, stage, party, SERVER, reply)
        step = protocol.server_step(state, replies)
    opened = defense.decode(step.total, plan, step.count)
    for tensor in without_indicator(plan).tensors:
        np.testing.assert_allclose(opened[tensor.name], VALUES[1][tensor.name], atol=tensor.error + 1e-12)
