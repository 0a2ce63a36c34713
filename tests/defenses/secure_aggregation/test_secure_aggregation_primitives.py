"""Published vectors through our wrappers, secret sharing, and masks that cancel."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.defenses._secure_aggregation import mask_streams, masks, primitives
from securefed.defenses._secure_aggregation.primitives import FIELD, PrimeField
from securefed.errors import AuthenticationError, MalformedError

seeds = st.binary(min_size=32, max_size=32)


def test_x25519_of_rfc_7748_section_5_2():
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    expected = bytes.fromhex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552")
    assert primitives.agree(primitives.private_key(scalar), point, 0) == expected


def test_x25519_agreement_of_rfc_7748_section_6_1():
    alice = primitives.private_key(bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    bob = primitives.private_key(bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    alice_public = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    bob_public = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert primitives.public_bytes(alice) == alice_public
    assert primitives.public_bytes(bob) == bob_public
    assert primitives.agree(alice, bob_public, 0) == primitives.agree(bob, alice_public, 0) == shared


def test_public_keys_of_small_order_are_known_by_sight():
    """The seven encodings of RFC 7748, sec. 6.1 and 7, top bit ignored, are just those that no agreement accepts."""
    key, prime = primitives.private_key(bytes(range(32))), 2**255 - 19
    eights = [u for u in (int.from_bytes(e, "little") for e in primitives._SMALL_ORDER) if 1 < u < prime - 1]
    assert len(eights) == 2
    small = [0, 1, *eights, prime - 1, prime, prime + 1]
    for u in (*small, *(u + 2**255 for u in small)):
        for refuses in (lambda public: primitives.agree(key, public, 7), lambda p: primitives.check_order(p, 7)):
            with pytest.raises(MalformedError, match="from 7 refused: its public key has small order"):
                refuses(u.to_bytes(32, "little"))
    others = [*range(2, 30), *(u + 1 for u in eights), *(u - 1 for u in eights), *range(prime + 2, 2**255)]
    for u in (*others, *(u + 2**255 for u in others)):
        primitives.check_order(u.to_bytes(32, "little"), 7)
        assert any(primitives.agree(key, u.to_bytes(32, "little"), 7))


@pytest.mark.parametrize(
    ("secret", "salt", "info", "expected"),
    [
        (  # RFC 5869 A.1
            bytes([0x0B] * 22),
            bytes(range(13)),
            bytes(range(0xF0, 0xFA)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (  # RFC 5869 A.3: no salt, no info
            bytes([0x0B] * 22),
            None,
            b"",
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
)
def test_hkdf_of_rfc_5869(secret, salt, info, expected):
    assert primitives.hkdf(secret, info, 42, salt).hex() == expected


def test_aes_ctr_of_nist_sp_800_38a_f_5_1():
    key, counter = "2b7e151628aed2a6abf7158809cf4f3c", "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
    plain = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = (
        "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"
        "5ae4df3edbd5d35e5b4f09020db03eab1e031dda2fbe03d1792170a0f3009cee"
    )
    assert primitives.key_stream(bytes.fromhex(key + counter)).update(plain).hex() == cipher


def test_a_mask_stream_is_aes_in_counter_mode_from_two():
    key, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
    stream, zeros = mask_streams.mask_stream(key + nonce), bytes(100_003)
    parts = stream.update(zeros[:70_001]) + stream.update(zeros[70_001:])
    assert parts == primitives.key_stream(key + nonce + (2).to_bytes(4, "big")).update(zeros)
    assert parts != primitives.key_stream(key + nonce + (1).to_bytes(4, "big")).update(zeros)


@pytest.mark.parametrize("point", [0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 18, 2**255])
def test_keys_of_small_order_are_refused_by_name(point):
    key = primitives.private_key(secrets.token_bytes(32))
    with pytest.raises(MalformedError) as caught:
        primitives.agree(key, point.to_bytes(32, "little"), 7)
    assert caught.value.sender == 7
    assert primitives.agree(key, (9).to_bytes(32, "little"), 7) == primitives.public_bytes(key)


parts = st.lists(st.one_of(st.binary(max_size=4), st.text("ab1", max_size=4), st.integers(-2, 99)), max_size=4)


@given(parts, parts)
def test_labels_of_different_lists_differ(left, right):
    typed = [[(type(part), part) for part in side] for side in (left, right)]
    assert (primitives.label(*left) == primitives.label(*right)) == (typed[0] == typed[1])


def test_what_is_encrypted_opens_only_under_its_key_and_binding():
    key = secrets.token_bytes(32)
    sealed = primitives.encrypt_once(key, b"shares", b"from 1 to 2")
    assert primitives.decrypt_once(key, sealed, b"from 1 to 2", 1) == b"shares"
    flipped = bytes([sealed[0] ^ 1]) + sealed[1:]
    for attempt in [(secrets.token_bytes(32), sealed, b"from 1 to 2"), (key, flipped, b"from 1 to 2"),
                    (key, sealed, b"from 2 to 1"), (key, sealed[:3], b"from 1 to 2")]:  # fmt: skip
        with pytest.raises(AuthenticationError):
            primitives.decrypt_once(*attempt, 1)


@given(st.integers(1, 12), st.data())
def test_any_t_shares_give_the_secrets_back(threshold, data):
    holders = data.draw(st.integers(threshold, 20))
    values = data.draw(st.lists(st.integers(0, FIELD.prime - 1), min_size=1, max_size=3))
    hidden = [value.to_bytes(32, "little") for value in values]
    coefficients = FIELD.coefficients(secrets.token_bytes(32), (threshold - 1) * len(hidden))
    shares = FIELD.split(hidden, coefficients, holders)
    assert shares.shape == (holders, len(hidden), 32)
    rows = data.draw(st.permutations(range(holders)))[:threshold]
    assert FIELD.combine([row + 1 for row in rows], shares[list(rows)]) == hidden
    wrong = shares[list(rows)].copy()
    wrong[0, 0, 0] ^= 1
    assert FIELD.combine([row + 1 for row in rows], wrong)[0] != hidden[0]


def test_lanes_hold_the_largest_polynomial_and_the_largest_shares():
    """Every coefficient at the prime's top and a hundred holders: a lane that is too narrow would spill over."""
    top = FIELD.prime - 1
    for threshold in (2, 51, 100):
        shares = FIELD.split([top.to_bytes(32, "little")] * 2, [top] * (2 * (threshold - 1)), 100)
        expected = sum(top * 100**k for k in range(threshold)) % FIELD.prime
        assert [int.from_bytes(share.tobytes(), "little") for share in shares[99]] == [expected, expected]
    points = list(range(1, 101))
    full = np.full((100, 2, 32), 255, np.uint8)
    constant = (2**256 - 1) % FIELD.prime  # a constant polynomial: every point holds the secret
    assert FIELD.combine(points, full) == [constant.to_bytes(32, "little")] * 2


def test_fewer_than_t_shares_are_independent_of_the_secret():
    """Exhaustive in GF(13), t = 3: over all polynomials every two shares take each pair of values once, for any secret.

    The third share is the control: with it the distributions for different secrets do not even meet.
    """
    field = PrimeField(13)
    for rows in itertools.combinations(range(4), 2):
        seen = {}
        for secret in range(13):
            hidden = [secret.to_bytes(32, "little")]
            polynomials = [field.split(hidden, pair, 4) for pair in itertools.product(range(13), repeat=2)]
            seen[secret] = Counter(shares[list(rows)].tobytes() for shares in polynomials)
            assert set(seen[secret].values()) == {1}
            assert len(seen[secret]) == 13**2
        assert all(seen[secret] == seen[0] for secret in range(13))
    three = {
        secret: {
            field.split([secret.to_bytes(32, "little")], pair, 4)[:3].tobytes()
            for pair in itertools.product(range(13), repeat=2)
        }
        for secret in (0, 5)
    }
    assert not three[0] & three[5]


def test_coefficients_are_uniform_in_the_field():
    """Top byte of 4000 coefficients: 32 bins, chi-square with 31 degrees of freedom, 110 is its 1 - 1e-10 quantile."""
    values = FIELD.coefficients(secrets.token_bytes(32), 4000)
    assert max(values) < FIELD.prime

    def statistic(samples):
        counts = np.bincount([value * 32 // FIELD.prime for value in samples], minlength=32)
        return ((counts - 125) ** 2 / 125).sum()

    assert statistic(values) < 110
    assert statistic([value >> 1 for value in values]) > 110


@pytest.mark.parametrize("ring", [np.uint32, np.uint64])
@given(seed=seeds, size=st.sampled_from([0, 1, 3, 8191, 8192, 16385, 40000]))
def test_pair_masks_cancel_and_self_masks_come_off(ring, seed, size):
    low, high = masks.pair_mask(seed, b"exchange", 2, 5), masks.pair_mask(seed, b"exchange", 5, 2)
    own = masks.self_mask(seed, b"exchange", 2)
    assert (low.secret, low.sign) == (high.secret, -high.sign)
    assert own.secret != low.secret
    flat = np.arange(size, dtype=ring)
    masks.apply_masks([flat], [low, own])
    assert size < 3 or not np.array_equal(flat, np.arange(size, dtype=ring))
    masks.apply_masks([flat], [high])
    masks.apply_masks([flat], [own], remove=True)
    assert np.array_equal(flat, np.arange(size, dtype=ring))


def test_a_mask_is_the_key_stream_whatever_the_chunk():
    mask = masks.SignedMask(bytes(range(32)), 1)
    flat = np.zeros(50_001, np.uint32)
    masks.apply_masks([flat], [mask])
    seed = primitives.hkdf(mask.secret, primitives.label("mask", 4))
    assert flat.tobytes() == mask_streams.mask_stream(seed).update(bytes(200_004))


@pytest.mark.parametrize("sizes", [(40_000, 3, 0, 30_000), (1, 1, 2), (9,)])
def test_tensors_of_one_width_take_one_stream_one_part_after_the_other(sizes):
    """No part of it serves two tensors: laid end to end they are the stream, and those of another width have theirs."""
    mask = masks.SignedMask(bytes(range(32)), 1)
    flats, wide = [np.zeros(size, np.uint32) for size in sizes], np.zeros(10, np.uint64)
    masks.apply_masks([flats[0], wide, *flats[1:]], [mask])
    key = primitives.hkdf(mask.secret, primitives.label("mask", 4))
    nbytes = 4 * sum(sizes)
    expected = key[:nbytes] if nbytes <= 32 else mask_streams.mask_stream(key).update(bytes(nbytes))
    assert b"".join(flat.tobytes() for flat in flats) == expected
    key = primitives.hkdf(mask.secret, primitives.label("mask", 8))
    assert wide.tobytes() == mask_streams.mask_stream(key).update(bytes(80))
