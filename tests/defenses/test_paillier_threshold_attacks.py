"""A server that deviates asks holders to open what it must not see; each attack succeeds with its check removed."""

import numpy as np
import pytest

from securefed import SERVER, Message, chain
from securefed.defenses import Session, threshold_paillier
from securefed.defenses._homomorphic import cipher, insecure_deal, threshold_cipher
from securefed.defenses._homomorphic import key_set as key_set_module
from securefed.defenses._homomorphic import threshold as threshold_module
from securefed.defenses._homomorphic.packing import Packing
from securefed.defenses._homomorphic.signed_uploads import decryption_request, product
from securefed.errors import AuthenticationError, ContradictionError, MalformedError, MessageRefused
from tests.defenses.paillier import LAYOUT, RUN, contribution

N, T, VICTIM = 5, 3, 4
KEYS = insecure_deal(T, N)
SCHEME = threshold_paillier(keys=KEYS)
DEFENCE = chain(SCHEME)
PLAN = DEFENCE.plan(LAYOUT, N)
ENCODED = {client: DEFENCE.encode(contribution(client), PLAN) for client in range(N)}


class Round:
    """All clients after their uploads, in the hands of a server that asks what it likes."""

    def __init__(self, *, scheme=SCHEME, number=0, plan=PLAN, run=RUN):
        self.scheme, self.session = scheme, Session(run, number, tuple(range(plan.clients)), plan)
        self.states, self.uploads = {}, {}
        for client in self.session.cohort:
            request = Message(run, number, "upload", SERVER, client, {})
            opened = scheme.client_open(self.session, client)
            self.states[client], self.uploads[client] = scheme.client_step(opened, request, ENCODED[client])

    def ask(self, holder, body, *, remember=True):
        request = Message(self.session.run, self.session.round, "decrypt", SERVER, holder, body)
        state, reply = self.scheme.client_step(self.states[holder], request, None)
        if remember:
            self.states[holder] = state
        return reply

    def open(self, uploads, holders, *, count, remember=True, bodies=None):
        """What the server makes of the answers of `holders` for the product of `uploads`."""
        shared = self.scheme.keys.shared
        body = decryption_request(uploads) if bodies is None else bodies
        answers = {holder: self.ask(holder, body, remember=remember)["answers"] for holder in holders}
        partials = {h: cipher.from_wire(rows, None, shared.public.plaintext_bytes, h) for h, rows in answers.items()}
        total = product(shared, {client: upload["ciphertexts"] for client, upload in uploads.items()})
        plaintexts = threshold_cipher.combine(shared, total, partials)
        return Packing.of(self.session.plan, 512).unpack(plaintexts, count, SERVER)


def assert_is(opened, encoded):
    for name, value in encoded.items():
        np.testing.assert_array_equal(opened[name], value)


def total(clients):
    return {name: sum(ENCODED[c][name] for c in clients) for name in ENCODED[0]}


def test_the_honest_request_is_answered():
    """Positive control of every refusal here."""
    whole = Round()
    assert_is(whole.open(whole.uploads, (0, 1, 2), count=N), total(range(N)))
    part = Round()
    assert_is(part.open({c: part.uploads[c] for c in (0, 2, 4)}, (0, 2, 4), count=3), total((0, 2, 4)))


# One client's ciphertexts


def test_one_upload_alone_is_refused():
    attack = Round()
    with pytest.raises(ContradictionError, match="1 uploads, decryption needs 3"):
        attack.ask(0, decryption_request({VICTIM: attack.uploads[VICTIM]}))


def zeros():
    """The server's own encryptions of nothing: plaintexts that unpack to the slots' zero offset."""
    empty = {name: np.zeros_like(value) for name, value in ENCODED[0].items()}
    return cipher.to_wire(cipher.encrypt(KEYS.shared.public, Packing.of(PLAN, 512).pack(empty)), 128)


def forged(attack):
    """The victim's upload among made-up ones under other clients' names."""
    uploads = {c: attack.uploads[c] | {"ciphertexts": zeros()} for c in (0, 1)}
    return uploads | {VICTIM: attack.uploads[VICTIM]}


def test_the_victims_upload_among_forged_ones_is_refused():
    attack = Round()
    with pytest.raises(AuthenticationError, match="client 0 is not signed"):
        attack.ask(2, decryption_request(forged(attack)))


def test_without_signatures_forged_uploads_open_the_victim(monkeypatch):
    """The control: with the signature check removed the attack succeeds."""
    monkeypatch.setattr("securefed.defenses._homomorphic.signed_uploads.check_signature", lambda *a: None)
    attack = Round()
    assert_is(attack.open(forged(attack), (2, 3, 4), count=3), ENCODED[VICTIM])


def test_a_holder_knows_its_own_upload_whatever_the_signatures(monkeypatch):
    monkeypatch.setattr("securefed.defenses._homomorphic.signed_uploads.check_signature", lambda *a: None)
    attack = Round()
    uploads = attack.uploads | {1: attack.uploads[2]}
    attack.ask(0, decryption_request(uploads))
    with pytest.raises(ContradictionError, match="another upload as this client's own"):
        attack.ask(1, decryption_request(uploads))


def test_the_victims_upload_under_several_names_is_refused():
    attack = Round()
    with pytest.raises(AuthenticationError):
        attack.ask(0, decryption_request(dict.fromkeys((1, 2, VICTIM), attack.uploads[VICTIM])))


@pytest.mark.parametrize("where", [{"number": 1}, {"run": "e" * 32}])
def test_uploads_of_another_exchange_or_run_are_refused(where):
    """Else one round's sum could be opened again in another, without one client."""
    old, new = Round(), Round(**where)
    with pytest.raises(AuthenticationError):
        new.ask(0, decryption_request(old.uploads))
    with pytest.raises(AuthenticationError):
        new.ask(0, decryption_request(new.uploads | {VICTIM: old.uploads[VICTIM]}))
    new.ask(0, decryption_request(new.uploads))  # positive control


# Two survivor sets


def test_a_second_survivor_set_is_refused_by_who_answered_and_the_others_are_too_few():
    attack = Round()
    everyone, without = attack.uploads, {c: attack.uploads[c] for c in range(N) if c != VICTIM}
    attack.open(everyone, (0, 1, 2), count=N)
    for holder in (0, 1, 2):
        with pytest.raises(ContradictionError):
            attack.ask(holder, decryption_request(without))
    partials = {}
    for holder in (3, 4):
        rows = attack.ask(holder, decryption_request(without))["answers"]
        partials[holder] = cipher.from_wire(rows, None, 64, holder)
    shared = KEYS.shared
    assert threshold_cipher.combine(shared, product(shared, _rows(without)), partials) is None


def _rows(uploads):
    return {client: body["ciphertexts"] for client, body in uploads.items()}


def test_if_holders_answered_twice_the_difference_is_the_victim():
    """The control: holders that forget having answered."""
    attack = Round()
    without = {c: attack.uploads[c] for c in range(N) if c != VICTIM}
    first = attack.open(attack.uploads, (0, 1, 2), count=N, remember=False)
    second = attack.open(without, (0, 1, 2), count=N - 1, remember=False)
    assert_is({name: first[name] - second[name] for name in first}, ENCODED[VICTIM])


def test_if_half_were_enough_disjoint_quorums_would_open_the_victim(monkeypatch):
    """The control of 2 t > N: with 2 of 4 each holder answers once, and still both sums open."""
    monkeypatch.setattr(key_set_module, "check_threshold", lambda t, n: None)
    monkeypatch.setattr(threshold_module, "check_threshold", lambda t, n: None)
    scheme = threshold_paillier(keys=insecure_deal(2, 4))
    attack = Round(scheme=scheme, plan=chain(scheme).plan(LAYOUT, 4))
    encoded = {c: chain(scheme).encode(contribution(c), attack.session.plan) for c in range(4)}
    assert all((encoded[c][k] == ENCODED[c][k]).all() for c in encoded for k in encoded[c])  # the plans agree on steps
    first = attack.open(attack.uploads, (0, 1), count=4)
    second = attack.open({c: attack.uploads[c] for c in range(3)}, (2, 3), count=3)
    assert_is({name: first[name] - second[name] for name in first}, ENCODED[3])


def test_one_corrupt_holder_of_three_in_five_suffices_as_the_plan_says():
    """2 t - N = 1 holder that answers twice for the server."""
    assert "the server with 1 of them" in PLAN.open_to
    attack = Round()
    without = {c: attack.uploads[c] for c in range(N) if c != VICTIM}
    corrupt = attack.states[2]
    whole = attack.open(attack.uploads, (0, 1, 2), count=N)
    attack.states[2] = corrupt  # it answers again
    rest = attack.open(without, (2, 3, 4), count=N - 1)
    assert_is({name: whole[name] - rest[name] for name in whole}, ENCODED[VICTIM])


def test_a_client_that_alters_its_upload_for_the_server_cancels_the_others_as_the_plan_says():
    """Not defended against: client 0 signs the inverse of clients 1 and 2 (here with its own signer)."""
    assert "one client that alters its upload" in PLAN.open_to
    attack = Round()
    shared, square = KEYS.shared, KEYS.shared.public.n**2
    others = product(shared, {c: attack.uploads[c]["ciphertexts"] for c in (1, 2)})
    shift = cipher.from_wire(zeros(), None, 128, 0)  # keeps the slots' offsets: three clients' worth in all
    altered = [pow(int(c), -1, square) * s * s * s % square for c, s in zip(others, shift, strict=True)]
    rows = cipher.to_wire(altered, 128)
    signature = threshold_module.sign(shared, KEYS.signers[0], attack.session, 0, rows)
    uploads = {0: {"ciphertexts": rows, "signature": signature}} | {c: attack.uploads[c] for c in (1, 2, VICTIM)}
    assert_is(attack.open(uploads, (1, 2, VICTIM), count=4), ENCODED[VICTIM])


# Malformed requests


def test_malformed_requests_are_refused_and_do_not_use_up_the_answer():
    attack = Round()
    good = decryption_request(attack.uploads)
    flipped = good["ciphertexts"].copy()
    flipped[0, 0, 0] ^= 1
    bad = {
        "no field": {},
        "unsigned": {k: v for k, v in good.items() if k != "signatures"},
        "more": good | {"more": np.zeros(1)},
        "descending": good | {"survivors": good["survivors"][::-1].copy()},
        "twice": good | {"survivors": np.array([0, 1, 1, 2, 3])},
        "not invited": good | {"survivors": np.array([0, 1, 2, 3, 9])},
        "negative": good | {"survivors": np.array([-1, 1, 2, 3, 4])},
        "floats": good | {"survivors": good["survivors"].astype(float)},
        "a survivor less": good | {"survivors": good["survivors"][:-1]},
        "a signature less": good | {"signatures": good["signatures"][:-1]},
        "short signatures": good | {"signatures": good["signatures"][:, :-1]},
        "flat": good | {"ciphertexts": good["ciphertexts"].reshape(N, -1)},
        "altered": good | {"ciphertexts": flipped},
        "empty": good | {"survivors": np.zeros(0, np.int64), "ciphertexts": good["ciphertexts"][:0]},
    }
    for name, body in bad.items():
        with pytest.raises(MessageRefused) as caught:
            attack.ask(0, body)
        assert caught.value.sender == SERVER, name
    assert attack.ask(0, good)
    with pytest.raises(ContradictionError):
        attack.ask(0, good)


def test_an_upload_of_an_invited_client_without_identity_is_refused_by_name():
    session = Session(RUN, 0, (0, 1, 2, 9), PLAN)
    uploads, states = {}, {}
    for client in (0, 1, 2):
        request = Message(RUN, 0, "upload", SERVER, client, {})
        states[client], uploads[client] = SCHEME.client_step(
            SCHEME.client_open(session, client), request, ENCODED[client]
        )
    whole = Message(RUN, 0, "decrypt", SERVER, 0, decryption_request(uploads))
    assert SCHEME.client_step(states[0], whole, None)  # positive control
    forged = Message(RUN, 0, "decrypt", SERVER, 0, decryption_request(uploads | {9: uploads[1]}))
    with pytest.raises(AuthenticationError, match="client 9 was dealt no identity") as caught:
        SCHEME.client_step(states[0], forged, None)
    assert caught.value.sender == SERVER


def test_a_signed_number_that_is_no_ciphertext_is_refused():
    attack = Round()
    rows = attack.uploads[1]["ciphertexts"].copy()
    rows[0] = 0
    signature = threshold_module.sign(KEYS.shared, KEYS.signers[1], attack.session, 1, rows)
    with pytest.raises(MalformedError, match="ciphertext 0 lies outside"):
        attack.ask(0, decryption_request(attack.uploads | {1: {"ciphertexts": rows, "signature": signature}}))
