"""Paillier on big integers: identities, phe as an oracle both ways, keys, and what is refused as no ciphertext."""

import gmpy2
import numpy as np
import phe
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.defenses._homomorphic import RandomnessPool, cipher, generate, keys
from securefed.defenses._homomorphic.encryption_randomness import RANDOMNESS_KINDS
from securefed.defenses._homomorphic.keys import PublicKey
from securefed.errors import ConfigError, MalformedError

SMALL = generate(512)


@pytest.fixture(scope="session")
def private():
    """A key of the least size that is allowed in earnest."""
    return generate(2048)


plaintexts = st.integers(0, SMALL.public.n - 1)


@pytest.mark.parametrize("randomness", RANDOMNESS_KINDS)
@given(m=plaintexts)
def test_decryption_inverts_encryption(randomness, m):
    assert cipher.decrypt(SMALL, cipher.encrypt(SMALL.public, [m], randomness)) == [m]


@given(a=plaintexts, b=plaintexts)
def test_product_of_ciphertexts_decrypts_to_the_sum_mod_n(a, b):
    left, right = cipher.encrypt(SMALL.public, [a], "half"), cipher.encrypt(SMALL.public, [b], "full")
    product = cipher.multiply(SMALL.public, left, right)
    assert cipher.decrypt(SMALL, product) == [(a + b) % SMALL.public.n]


@given(m=plaintexts, factor=st.integers(0, 2**64))
def test_power_of_a_ciphertext_decrypts_to_the_multiple_mod_n(m, factor):
    n = SMALL.public.n
    (c,) = cipher.encrypt(SMALL.public, [m])
    assert cipher.decrypt(SMALL, [gmpy2.powmod(c, factor, n * n)]) == [m * factor % n]


def test_extreme_plaintexts_and_an_empty_batch(private):
    n = private.public.n
    values = [0, 1, n // 2, n - 1]
    assert cipher.decrypt(private, cipher.encrypt(private.public, values)) == values
    for randomness in RANDOMNESS_KINDS:
        assert cipher.encrypt(private.public, [], randomness) == []
    assert cipher.decrypt(private, []) == []


@pytest.mark.parametrize("randomness", RANDOMNESS_KINDS)
def test_phe_opens_our_ciphertexts(private, randomness):
    values = [0, 1, 2**2000 + 12345, private.public.n - 1]
    for m, c in zip(values, cipher.encrypt(private.public, values, randomness), strict=True):
        assert private.phe.raw_decrypt(int(c)) == m


def test_we_open_phes_ciphertexts_under_its_own_key():
    # phe 1.5's own key, with a given r: the ciphertext is determined, (n + 1)^m r^n mod n^2.
    public, secret = phe.generate_paillier_keypair(n_length=512)
    ours = keys.PrivateKey(PublicKey(public, 2), secret)
    for m, r in ((0, 3), (1, 5), (2**300 + 7, 2**400 + 11), (public.n - 1, public.n - 2)):
        c = public.raw_encrypt(m, r_value=r)
        assert c == pow(public.n + 1, m, public.nsquare) * pow(r, public.n, public.nsquare) % public.nsquare
        assert cipher.decrypt(ours, [gmpy2.mpz(c)]) == [m]


def test_published_vectors():
    """n = 293 * 433, m = 10100, r = 74384.

    With g = n + 1: 935906717, from phe's own tests (`testRawEncryptDecryptRegression0`, phe 1.5). With the generator
    g = 6497955158: 848742150, from the tests of Google's encrypted-bigquery-client (`testEncryptDecryptRegression`);
    under another generator a plaintext opens to its multiple by the generator's own plaintext.
    """
    public = phe.PaillierPublicKey(126869)
    n, ours = public.n, keys.PrivateKey(PublicKey(public, 2), phe.PaillierPrivateKey(public, 293, 433))

    class Given(RandomnessPool):
        def take(self, public, randomness, count):
            return [gmpy2.powmod(74384, n, n * n)]

    assert cipher.encrypt(ours.public, [10100], "full", Given()) == [935906717]
    assert cipher.decrypt(ours, [gmpy2.mpz(935906717)]) == [10100]
    of_generator, of_message = cipher.decrypt(ours, [gmpy2.mpz(6497955158), gmpy2.mpz(848742150)])
    assert of_message == of_generator * 10100 % n


def test_phe_adds_to_a_ciphertext_of_ours(private):
    (c,) = cipher.encrypt(private.public, [40])
    total = phe.EncryptedNumber(private.public.phe, int(c)) + 2
    assert private.phe.decrypt(total) == 42


def test_keys_have_what_short_exponents_need(private):
    p, q, n = private.phe.p, private.phe.q, private.public.n
    assert p * q == n
    assert n.bit_length() == 2048
    assert p % 4 == q % 4 == 3
    assert gmpy2.gcd(p - 1, q - 1) == 2
    assert p.bit_length() == q.bit_length() == 1024
    assert abs(p - q) >> 924
    assert gmpy2.is_prime(p) and gmpy2.is_prime(q)
    base = private.public.base
    assert gmpy2.jacobi(base, n) == 1
    # -x^2 is a non-residue modulo both primes, as -1 is.
    assert gmpy2.jacobi(base, p) == gmpy2.jacobi(base, q) == -1


def test_two_keys_differ_and_hide_their_primes_from_repr():
    other = generate(512)
    assert other.public.n != SMALL.public.n
    assert str(other.phe.p) not in repr(other)


@pytest.mark.parametrize("bits", [0, -64, 32, 100, 2047])
def test_odd_key_sizes_are_refused(bits):
    with pytest.raises(ConfigError, match="multiple of 64"):
        generate(bits)


def _altered_keys():
    public = SMALL.public
    n, p = public.n, SMALL.phe.p
    size = public.plaintext_bytes

    def number(value):
        return np.frombuffer(int(value).to_bytes(size, "little"), np.uint8)

    body = public.to_body()
    prime = next(int(x) for x in _primes(512) if x % 4 == 1)
    square = next(int(x * x) for x in _primes(256))
    negative = next(x for x in range(2, 1000) if gmpy2.jacobi(x, n) == -1)
    return {  # the reason, and a body that fails for it alone (4 is a unit of Jacobi symbol 1 for every odd modulus)
        "has 512 bits, not|not 1 mod 4": {**body, "modulus": number(n - 1)},
        "not 1 mod 4": {"modulus": number(n - 2), "base": number(4)},
        "factor below 2000": {"modulus": number(3 * (n // 3 // 4 * 4 + 3)), "base": number(4)},
        "has 504 bits, not 512": {"modulus": number(n >> 8), "base": number(4)},
        "is a prime or": {"modulus": number(prime), "base": number(4)},
        "or a perfect power": {"modulus": number(square), "base": number(4)},
        "base is no unit": {**body, "base": number(0)},
        "no unit other than 1": {**body, "base": number(1)},
        "other than 1 and -1": {**body, "base": number(n - 1)},
        "the base is no unit": {**body, "base": number(n + 4)},
        "base is no unit other": {**body, "base": number(p)},
        "Jacobi symbol": {**body, "base": number(negative)},
        "holds 'modulus' and 'base', not \\['modulus'\\]": {"modulus": body["modulus"]},
        "'more'": {**body, "more": body["base"]},
        r"shape \(65,\)": {**body, "base": np.append(body["base"], np.uint8(0))},
        "int8 of": {**body, "base": body["base"].view(np.int8)},
        r"shape \(1, 64\)": {**body, "modulus": body["modulus"][None]},
    }


def _primes(bits):
    candidate = gmpy2.mpz(3 << (bits - 2))
    while True:
        candidate = gmpy2.next_prime(candidate)
        yield candidate


@pytest.mark.parametrize(("reason", "body"), _altered_keys().items())
def test_a_public_key_that_cannot_be_one_is_refused(reason, body):
    with pytest.raises(MalformedError, match=reason) as caught:
        PublicKey.from_body(body, 512, sender=-2)
    assert caught.value.sender == -2


def test_a_public_key_survives_the_wire():
    assert PublicKey.from_body(SMALL.public.to_body(), 512, sender=-2) == SMALL.public
    four = {**SMALL.public.to_body(), "base": np.frombuffer((4).to_bytes(64, "little"), np.uint8)}
    assert PublicKey.from_body(four, 512, sender=-2).base == 4  # positive control of the cases above
    with pytest.raises(MalformedError, match="not 128 bytes"):
        PublicKey.from_body(SMALL.public.to_body(), 1024, sender=-2)


def test_numbers_that_are_no_ciphertexts_are_refused():
    public, p = SMALL.public, SMALL.phe.p
    n = public.n
    good = cipher.encrypt(public, [1, 2, 3])
    cipher.check(public, good, sender=4)  # positive control
    cipher.check(public, [1, n * n - 1], sender=4)  # the extremes that are units
    for bad in (0, -1, n * n, n * n + 1, n, 5 * n, p, p * p, 7 * SMALL.phe.q):
        for position in range(4):
            with pytest.raises(MalformedError, match="ciphertext"):
                cipher.check(public, [*good[:position], gmpy2.mpz(bad), *good[position:]], sender=4)


@given(st.lists(st.integers(0, 2**128 - 1), max_size=5))
def test_big_integers_survive_the_wire(values):
    wire = cipher.to_wire(values, 16)
    assert wire.dtype == np.uint8
    assert wire.shape == (len(values), 16)
    assert cipher.from_wire(wire, len(values), 16, sender=0) == values
    assert cipher.from_wire(wire, None, 16, sender=0) == values


def test_wrong_shapes_and_types_on_the_wire_are_refused():
    wire = cipher.to_wire([1, 2, 3], 16)
    assert cipher.from_wire(wire, 3, 16, sender=0) == [1, 2, 3]  # positive control
    bad = [wire[:2], wire[:, :15], wire.reshape(-1), wire.view(np.int8), wire.astype(np.int64), wire[0, 0]]
    for value in bad:
        with pytest.raises(MalformedError):
            cipher.from_wire(np.asarray(value), 3, 16, sender=0)
    with pytest.raises(MalformedError):
        cipher.from_wire(np.asarray(np.uint8(1)), None, 16, sender=0)
