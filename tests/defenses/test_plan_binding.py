"""A server that tells clients different plans, so that one contribution drowns the others in the sum.

What opens an exchange is the server's to say, client by client: how often the range was doubled, and which clips were
learned. A client with a range 2^20 times as wide adds next to nothing to the integers; so does one with a huge clip.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest

from securefed import SERVER, Aggregate, Dataset, Federation, Layout, Message, TensorSpec, chain
from securefed.algorithms import SSI
from securefed.defenses import (
    ChainStage,
    Identities,
    Plan,
    Session,
    Transform,
    adaptive_clip,
    gaussian,
    secure_aggregation,
    skellam,
    threshold_paillier,
)
from securefed.defenses._base import plan_digest
from securefed.defenses._homomorphic import cipher, insecure_deal, threshold_cipher
from securefed.defenses._homomorphic import signed_uploads as uploads_module
from securefed.defenses._homomorphic.packing import Packing
from securefed.defenses._homomorphic.signed_uploads import decryption_request, product
from securefed.defenses._secure_aggregation import session as session_module
from securefed.errors import AuthenticationError, SecureFedError

RUN = "0123456789abcdef" * 2
N, VICTIM = 5, 0
LAYOUT = Layout((TensorSpec("w", (12,), 2.0),))
VALUES = {client: np.random.default_rng(client).uniform(-2, 2, 12) for client in range(N)}
IDENTITIES = Identities.generate(N)


def sessions(defense, victim, others):
    """By client, the exchange as the server opens it there; each opening is what `Defense.plan` takes."""
    plans = {client: defense.plan(LAYOUT, N, **(victim if client == VICTIM else others)) for client in range(N)}
    return {client: Session(RUN, 0, tuple(range(N)), plan) for client, plan in plans.items()}


def summed(defense, victim, others):
    """What the server makes of an exchange under secure aggregation, its refusals included."""
    told = sessions(defense, victim, others)
    protocol = defense.aggregation
    clients = {client: protocol.client_open(session, client) for client, session in told.items()}
    step = protocol.server_open(told[VICTIM])
    while not isinstance(step, Aggregate):
        state, stage, outgoing = step
        replies = {}
        for client, body in outgoing.items():
            encoded = defense.encode({"w": VALUES[client]}, told[client].plan) if stage == "upload" else None
            request = Message(RUN, 0, stage, SERVER, client, body)
            clients[client], answer = protocol.client_step(clients[client], request, encoded)
            replies[client] = Message(RUN, 0, stage, client, SERVER, answer)
        step = protocol.server_step(state, replies)
    return defense.decode(step.total, told[VICTIM].plan, step.count)["w"]


def opened(defense, victim, others):
    """What the server makes of all uploads under threshold Paillier, which the first holders open for it."""
    told, scheme = sessions(defense, victim, others), defense.aggregation
    states, uploads = {}, {}
    for client, session in told.items():
        encoded = defense.encode({"w": VALUES[client]}, session.plan)
        request = Message(RUN, 0, "upload", SERVER, client, {})
        states[client], uploads[client] = scheme.client_step(scheme.client_open(session, client), request, encoded)
    shared, partials = scheme.keys.shared, {}
    for holder in range(1, 1 + shared.threshold):
        request = Message(RUN, 0, "decrypt", SERVER, holder, decryption_request(uploads))
        answers = scheme.client_step(states[holder], request, None)[1]["answers"]
        partials[holder] = cipher.from_wire(answers, None, shared.public.plaintext_bytes, holder)
    total = product(shared, {client: upload["ciphertexts"] for client, upload in uploads.items()})
    plan = told[VICTIM].plan
    plaintexts = threshold_cipher.combine(shared, total, partials)
    return defense.decode(Packing.of(plan, 512).unpack(plaintexts, N, SERVER), plan, N)["w"]


def error(found, scale=1.0):
    """Of the victim's contribution, in the sum as the server has it."""
    return float(np.linalg.norm(found * scale - VALUES[VICTIM]) / np.linalg.norm(VALUES[VICTIM]))


RANGES = {"range_doublings": 0}, {"range_doublings": 20}
CLIPS = {"learned": (100.0,)}, {"learned": (1e12,)}
MASKED = [
    (chain(secure_aggregation(identities=IDENTITIES)), RANGES, 1.0),
    (chain(adaptive_clip(0.5), gaussian(1.0), secure_aggregation(identities=IDENTITIES)), CLIPS, 100.0),
    (chain(adaptive_clip(0.5), gaussian(1.0), secure_aggregation(identities=IDENTITIES, pipelined=True)), CLIPS, 100.0),
]
OPENED = [
    (chain(threshold_paillier(keys=insecure_deal(3, N))), RANGES, 1.0),
    (chain(adaptive_clip(0.5), gaussian(1.0), threshold_paillier(keys=insecure_deal(3, N))), CLIPS, 100.0),
]


@pytest.mark.parametrize(("defense", "told", "scale"), MASKED)
def test_secure_aggregation_does_not_sum_over_different_plans(defense, told, scale, monkeypatch):
    with pytest.raises(SecureFedError, match="tag of its 'keys' message does not match"):
        summed(defense, *told)
    fair = summed(defense, told[0], told[0])  # the positive control: told alike, the sum is everybody's
    np.testing.assert_allclose(fair * scale, sum(VALUES.values()), atol=1e-3)
    monkeypatch.setattr(session_module, "plan_digest", lambda plan: b"")
    assert error(summed(defense, *told), scale) < 1e-3  # without the check the victim's contribution is alone


@pytest.mark.parametrize(("defense", "told", "scale"), OPENED)
def test_share_holders_do_not_open_uploads_under_different_plans(defense, told, scale, monkeypatch):
    with pytest.raises(AuthenticationError, match="the upload of client 0 is not signed by it"):
        opened(defense, *told)
    fair = opened(defense, told[0], told[0])
    np.testing.assert_allclose(fair * scale, sum(VALUES.values()), atol=1e-3)
    monkeypatch.setattr(uploads_module, "plan_digest", lambda plan: b"")
    assert error(opened(defense, *told), scale) < 1e-3


def test_every_number_of_a_plan_moves_its_digest_and_its_words_do_not():
    plans = [
        chain(secure_aggregation()).plan(LAYOUT, N),
        chain(secure_aggregation()).plan(LAYOUT, N + 1),
        chain(secure_aggregation()).plan(LAYOUT, N, range_doublings=1),
        chain(secure_aggregation(4)).plan(LAYOUT, N),
        chain(secure_aggregation(verify=True)).plan(LAYOUT, N),
        chain(adaptive_clip(0.5), secure_aggregation()).plan(LAYOUT, N),
        chain(adaptive_clip(0.5), secure_aggregation()).plan(LAYOUT, N, learned=(1 + 2**-52,)),
        chain(adaptive_clip(0.5), gaussian(1.0), secure_aggregation()).plan(LAYOUT, N),
        chain(adaptive_clip(0.5), gaussian(2.0), secure_aggregation()).plan(LAYOUT, N),
        chain(adaptive_clip(0.5), skellam(2.0), secure_aggregation()).plan(LAYOUT, N),
    ]
    assert len({plan_digest(plan) for plan in plans}) == len(plans)
    measured = replace(
        plans[4],
        clients=np.int64(N),
        verified=np.True_,
        tensors=tuple(
            replace(
                t,
                shape=tuple(map(np.int64, t.shape)),
                bound=np.float64(t.bound),
                ring=np.int32(t.ring),
                step=np.float64(t.step),
            )
            for t in plans[4].tensors
        ),
    )
    assert plan_digest(measured) == plan_digest(plans[4])  # numbers of NumPy are numbers
    told = Session(RUN, 3, (0, 1, 2), plans[0].assume("Something."))
    assert plan_digest(told.plan) == plan_digest(plans[0])


@dataclass(frozen=True)
class Counted(Transform):
    """A transform that changes nothing and notes each plan that is derived with it."""

    planned: list[int] = field(default_factory=list, hash=False, compare=False)
    name: ClassVar[str] = "counted"
    stage: ClassVar[ChainStage] = ChainStage.SPARSIFY

    def plan(self, plan: Plan) -> Plan:
        self.planned.append(plan.clients)
        return plan


def test_rounds_of_the_same_numbers_share_one_plan_and_one_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, digested, write = Counted(), [], json.dumps
    clients = [Dataset(np.random.default_rng(i).uniform(size=(20, 6))) for i in range(4)]
    federation = Federation(SSI(rank=2), clients, chain(counted, secure_aggregation()))
    federation.run(1)
    before = len(counted.planned)
    monkeypatch.setattr(json, "dumps", lambda value, **how: digested.append(value) or write(value, **how))
    federation.run(3)
    assert len(counted.planned) == before
    assert not [numbers for numbers in digested if isinstance(numbers, tuple)]  # as `Plan._digest` hashes them


def test_other_numbers_give_other_plans_and_few_are_kept() -> None:
    defense = chain(adaptive_clip(0.5), gaussian(1.0), secure_aggregation())
    first = defense.plan(LAYOUT, N)
    assert defense.plan(LAYOUT, N) is first
    others = [defense.plan(LAYOUT, N + 1), defense.plan(LAYOUT, N + 2)]
    others += [defense.plan(LAYOUT, N, learned=(2.0**-power,)) for power in range(1, 20)]
    assert len({plan_digest(plan) for plan in (first, *others)}) == len(others) + 1
    assert defense.plan(LAYOUT, N, learned=(2.0**-3,)) == others[4]  # derived again, long after
    assert len(defense._plans) == 8
    assert plan_digest(first.numbered("ab" * 16, 3)) == plan_digest(replace(first))
    wider = chain(secure_aggregation()).plan(LAYOUT, N, range_doublings=1)
    assert wider.tensors[0].bound == 2 * chain(secure_aggregation()).plan(LAYOUT, N).tensors[0].bound
