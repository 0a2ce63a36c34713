"""A server that tells clients different things: share holders do not open their uploads together, a key holder does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from securefed import SERVER, Layout, Message, TensorSpec, chain
from securefed.defenses import KeyHolder, Session, UploadContext, ckks, threshold_paillier
from securefed.defenses._homomorphic import InsecurePaillier, LatticeKeyHolder, cipher, insecure_deal, threshold_cipher
from securefed.defenses._homomorphic import signed_uploads as uploads_module
from securefed.defenses._homomorphic.packing import Packing
from securefed.defenses._homomorphic.signed_uploads import context, decryption_request, product
from securefed.defenses._homomorphic.threshold_server import read_answer
from securefed.errors import AuthenticationError
from tests.defenses.paillier import KEY, RUN, Exchange

N, T, VICTIM = 5, 3, 0
LAYOUT = Layout((TensorSpec("w", (12,), 2.0),))
SCHEME = threshold_paillier(keys=insecure_deal(T, N))
DEFENCE = chain(SCHEME)
PLAN = DEFENCE.plan(LAYOUT, N)
VALUE = np.random.default_rng(0).uniform(-2, 2, 12)
TRUE, ZEROS = b"the true broadcast".ljust(32), b"zeros".ljust(32)
NUMBERS = {c: DEFENCE.encode({"w": VALUE if c == VICTIM else np.zeros(12)}, PLAN) for c in range(N)}
"""A client that is told zeros contributes zeros: the sum is the contribution of the one that was told the truth."""


def opened(told):
    """The sum that the server has share holders open, all of them asked for all uploads as they came."""
    states, uploads = {}, {}
    for client in range(N):
        request = Message(RUN, 0, "upload", SERVER, client, {})
        state = SCHEME.client_open(Session(RUN, 0, tuple(range(N)), PLAN), client)
        state = SCHEME.client_accept(state, request, UploadContext(told[client], b""))
        states[client], uploads[client] = SCHEME.client_upload(state, NUMBERS[client])
    shared, partials = SCHEME.keys.shared, {}
    for holder in range(1, 1 + T):
        request = Message(RUN, 0, "decrypt", SERVER, holder, decryption_request(uploads))
        answers = SCHEME.client_step(states[holder], request, None)[1]["answers"]
        partials[holder] = cipher.from_wire(answers, None, shared.public.plaintext_bytes, holder)
    total = product(shared, {client: upload["ciphertexts"] for client, upload in uploads.items()})
    plaintexts = threshold_cipher.combine(shared, total, partials)
    return DEFENCE.decode(Packing.of(PLAN, 512).unpack(plaintexts, N, SERVER), PLAN, N)["w"]


def test_uploads_of_clients_that_were_told_different_things_are_not_opened_together(monkeypatch):
    different = dict.fromkeys(range(N), ZEROS) | {VICTIM: TRUE}
    with pytest.raises(AuthenticationError, match="the upload of client 0 is not signed by it") as refusal:
        opened(different)
    assert refusal.value.sender == SERVER
    np.testing.assert_allclose(opened(dict.fromkeys(range(N), TRUE)), VALUE, atol=1e-6)  # positive control
    bound = uploads_module.context
    monkeypatch.setattr(
        uploads_module, "context", lambda key, session, *rest: bound(key, replace(session, context=b""), *rest)
    )
    np.testing.assert_allclose(opened(different), VALUE, atol=1e-6)  # without the binding the victim is alone


def test_the_server_drops_a_client_that_was_told_something_else():
    run = Exchange(scheme=SCHEME, plan=PLAN, encoded=NUMBERS, contexts={3: TRUE})
    aggregate = run.run()
    assert aggregate.survivors == (0, 1, 2, 4)
    assert isinstance(run.refused[3], AuthenticationError)
    assert Exchange(scheme=SCHEME, plan=PLAN, encoded=NUMBERS).run().survivors == tuple(range(N))


def test_a_proof_is_bound_to_what_its_holder_was_told():
    run = Exchange(scheme=SCHEME, plan=PLAN, encoded=NUMBERS)
    run.run()
    shared, count = SCHEME.keys.shared, Packing.of(PLAN, 512).plaintexts
    request = next(m for m in run.recorded if m.stage == "decrypt" and m.sender == SERVER)
    answer = next(m for m in run.recorded if m.stage == "decrypt" and m.sender == request.receiver)
    asked = product(shared, dict(enumerate(request.body["ciphertexts"])))
    numbers, proof = read_answer(shared, answer.body, count, answer.sender)

    def proven(session):
        bound_to = context(shared, session, "decrypt", answer.sender)
        return threshold_cipher.verify(shared, answer.sender, asked, numbers, bound_to, proof)

    assert proven(run.session)  # positive control
    assert not proven(replace(run.session, context=TRUE))


@pytest.mark.parametrize(
    ("scheme", "holder"), [(InsecurePaillier(), lambda: KeyHolder(KEY)), (ckks(), LatticeKeyHolder)]
)
def test_a_key_holder_opens_uploads_of_clients_that_were_told_different_things_as_the_plan_says(scheme, holder):
    defense = chain(scheme)
    plan = defense.plan(LAYOUT, N)
    assert "clients that are sent different broadcasts do not notice it" in " ".join(plan.assumptions)
    encoded = {c: defense.encode({"w": VALUE if c == VICTIM else np.zeros(12)}, plan) for c in range(N)}
    run = Exchange(scheme=scheme, plan=plan, encoded=encoded, holder=holder(), contexts={VICTIM: TRUE})
    aggregate = run.run()
    assert aggregate.survivors == tuple(range(N))
    np.testing.assert_allclose(defense.decode(aggregate.total, plan, N)["w"], VALUE, atol=1e-6)


def test_a_state_keeps_what_it_was_told():
    """`Exchange` packs and restores it between request, upload and answer: a lost context would sign another."""
    run = Exchange(scheme=SCHEME, plan=PLAN, encoded=NUMBERS)
    run.run()
    assert {state.context for state in run.clients.values()} == {run.session.context}
