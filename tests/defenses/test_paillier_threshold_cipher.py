"""Threshold decryption: any t answers open, fewer or wrong ones do not, and proofs tell which."""

from dataclasses import replace
from itertools import combinations

import gmpy2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.defenses._homomorphic import cipher, insecure_deal
from securefed.defenses._homomorphic import threshold_cipher as scheme
from securefed.defenses._homomorphic.threshold_cipher import combine, partial, prove, verify

KEYS = insecure_deal(3, 5)
KEY, SHARES = KEYS.shared, KEYS.shares
N = KEY.public.n
VALUES = [0, 1, 12345 << 300, N - 1]
CIPHERTEXTS = cipher.encrypt(KEY.public, VALUES)
ANSWERS = {i: partial(KEY, SHARES[i], CIPHERTEXTS) for i in range(5)}
CONTEXT = b"run, exchange, sender"


@pytest.mark.parametrize("quorum", list(combinations(range(5), 3)))
def test_any_t_holders_open(quorum):
    assert combine(KEY, CIPHERTEXTS, {i: ANSWERS[i] for i in quorum}) == VALUES


@pytest.mark.parametrize(("threshold", "holders"), [(2, 2), (2, 3), (4, 4), (7, 9)])
@pytest.mark.parametrize("randomness", ["full", "half", "short"])
def test_other_numbers_of_holders(threshold, holders, randomness):
    keys = insecure_deal(threshold, holders, bits=256)
    values = [7, keys.shared.public.n - 2]
    ciphertexts = cipher.encrypt(keys.shared.public, values, randomness)
    last = range(holders - threshold, holders)
    assert combine(keys.shared, ciphertexts, {i: partial(keys.shared, keys.shares[i], ciphertexts) for i in last}) == (
        values
    )


@given(a=st.integers(0, N - 1), b=st.integers(0, N - 1))
def test_a_product_opens_to_the_sum(a, b):
    product = cipher.multiply(KEY.public, cipher.encrypt(KEY.public, [a]), cipher.encrypt(KEY.public, [b]))
    assert combine(KEY, product, {i: partial(KEY, SHARES[i], product) for i in (1, 3, 4)}) == [(a + b) % N]


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_t_answers_open_nothing(count):
    assert combine(KEY, CIPHERTEXTS, {i: ANSWERS[i] for i in range(count)}) is None


def test_a_wrong_answer_opens_nothing():
    good = {i: ANSWERS[i] for i in range(3)}
    assert combine(KEY, CIPHERTEXTS, good) == VALUES  # positive control
    for wrong in (ANSWERS[3], [x + 1 for x in ANSWERS[2]], [*ANSWERS[2][:3], ANSWERS[2][3] * 4 % N], [0] * 4):
        assert combine(KEY, CIPHERTEXTS, good | {2: wrong}) is None


def test_the_root_that_is_found_is_the_product_of_the_randomness():
    """What the answers reveal besides the sum, as said in the module."""
    r, s = 3**50, 5**60
    square = N * N
    c = [gmpy2.mpz((1 + 4 * N) * pow(r, N, square) % square), gmpy2.mpz((1 + 5 * N) * pow(s, N, square) % square)]
    product = cipher.multiply(KEY.public, c[:1], c[1:])
    (m,) = combine(KEY, product, {i: partial(KEY, SHARES[i], product) for i in range(3)})
    assert m == 9
    assert (1 + m * N) * pow(r * s % N, N, square) % square == product[0]


# Proofs


def proof(holder=2, context=CONTEXT, answers=None, ciphertexts=CIPHERTEXTS):
    return prove(KEY, holder, SHARES[holder], ciphertexts, answers or ANSWERS[holder], context)


@pytest.mark.parametrize("holder", range(5))
def test_right_answers_are_proven(holder):
    assert verify(KEY, holder, CIPHERTEXTS, ANSWERS[holder], CONTEXT, proof(holder))


def test_a_proof_holds_for_its_own_statement_alone():
    good = proof()
    assert verify(KEY, 2, CIPHERTEXTS, ANSWERS[2], CONTEXT, good)  # positive control
    others = cipher.encrypt(KEY.public, VALUES)
    flipped = bytes([good.challenge[0] ^ 1, *good.challenge[1:]])
    statements = {
        "context": (2, CIPHERTEXTS, ANSWERS[2], b"another run", good),
        "holder": (1, CIPHERTEXTS, ANSWERS[2], CONTEXT, good),
        "ciphertexts": (2, others, ANSWERS[2], CONTEXT, good),
        "their order": (2, CIPHERTEXTS[::-1], ANSWERS[2][::-1], CONTEXT, good),
        "answers": (2, CIPHERTEXTS, ANSWERS[3], CONTEXT, good),
        "one answer": (2, CIPHERTEXTS, [*ANSWERS[2][:3], ANSWERS[2][3] + 1], CONTEXT, good),
        "challenge": (2, CIPHERTEXTS, ANSWERS[2], CONTEXT, replace(good, challenge=flipped)),
        "response": (2, CIPHERTEXTS, ANSWERS[2], CONTEXT, replace(good, response=good.response + 1)),
        "negative": (2, CIPHERTEXTS, ANSWERS[2], CONTEXT, replace(good, response=-good.response)),
        "huge": (2, CIPHERTEXTS, ANSWERS[2], CONTEXT, replace(good, response=good.response << 900)),
        "no unit": (2, CIPHERTEXTS, [0, *ANSWERS[2][1:]], CONTEXT, good),
    }
    for name, (holder, ciphertexts, answers, context, found) in statements.items():
        assert not verify(KEY, holder, ciphertexts, answers, context, found), name


@pytest.mark.parametrize("position", range(4))
def test_wrong_answers_cannot_be_proven_by_following_the_prover(position):
    """Answers of another exponent in one place, honestly hashed and proven with the right share."""
    wrong = list(ANSWERS[2])
    wrong[position] = wrong[position] * gmpy2.powmod(CIPHERTEXTS[position] % N, 2, N) % N
    assert not verify(KEY, 2, CIPHERTEXTS, wrong, CONTEXT, proof(answers=wrong))


def test_without_weights_two_wrong_answers_that_cancel_would_pass(monkeypatch):
    """Positive control of the small exponents: with equal weights the batch checks the product alone."""
    two = [CIPHERTEXTS[1]] * 2
    right = partial(KEY, SHARES[2], two)
    wrong = [right[0] * 9 % N, right[1] * gmpy2.invert(9, N) % N]
    assert not verify(KEY, 2, two, wrong, CONTEXT, proof(answers=wrong, ciphertexts=two))

    class Ones:
        def __init__(self, seed):
            pass

        def digest(self, size):
            return (b"\1" + bytes(15)) * (size // 16)

    monkeypatch.setattr(scheme.hashlib, "shake_256", Ones)
    assert verify(KEY, 2, two, wrong, CONTEXT, proof(answers=wrong, ciphertexts=two))


def test_a_sign_does_not_matter():
    """-x_i has the square of x_i: proven and combined alike."""
    turned = [-x % N for x in ANSWERS[2]]
    assert verify(KEY, 2, CIPHERTEXTS, turned, CONTEXT, proof(answers=turned))
    assert combine(KEY, CIPHERTEXTS, {0: ANSWERS[0], 1: ANSWERS[1], 2: turned}) == VALUES


def test_two_proofs_of_one_statement_differ_and_fit_their_field():
    first, second = proof(), proof()
    assert first.response != second.response
    assert max(first.response, second.response) < 1 << 8 * scheme.response_bytes(KEY.public.bits)
    largest = (N // 4) * (2**256 - 1) + 2 ** (KEY.public.bits + 512) - 1
    assert largest < 1 << 8 * scheme.response_bytes(KEY.public.bits)


def test_an_empty_batch_is_proven():
    assert combine(KEY, [], {0: [], 1: [], 2: []}) == []
    assert verify(KEY, 1, [], [], CONTEXT, prove(KEY, 1, SHARES[1], [], [], CONTEXT))
