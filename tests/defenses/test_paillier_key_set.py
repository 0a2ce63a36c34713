"""Threshold keys: safe primes, shares of which t and no fewer determine the root, and what is refused."""

import copy
from itertools import combinations

import gmpy2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefed.defenses import KeySet, deal
from securefed.defenses._homomorphic import InsecureKeySet, insecure_deal
from securefed.defenses._homomorphic import key_set as key_set_module
from securefed.defenses._homomorphic.key_set import KeyDealer
from securefed.defenses._homomorphic.safe_primes import _sieve, _small_primes, safe_prime
from securefed.errors import ConfigError

KEYS = insecure_deal(3, 5, clients=7)


@pytest.mark.parametrize("bits", [64, 65, 128, 256])
def test_safe_primes_are_safe_and_have_their_two_highest_bits(bits):
    found = {safe_prime(bits) for _ in range(3)}
    assert len(found) == 3
    for p in found:
        assert p >> (bits - 2) == 3
        assert p % 4 == 3
        assert gmpy2.is_prime(p) and gmpy2.is_prime(p // 2)


def test_the_sieve_leaves_exactly_what_has_no_small_factor():
    start = gmpy2.mpz(2**200 + 12345)
    primorial = gmpy2.primorial(2**16) // 2
    left = _sieve(start)
    for i in range(3000):
        q = start + 2 * i
        assert bool(left[i]) == (gmpy2.gcd(q * (2 * q + 1), primorial) == 1)
    assert _small_primes()[:4] == (3, 5, 7, 11)
    assert _small_primes()[-1] == 65521


def test_tiny_safe_primes_are_refused():
    with pytest.raises(ConfigError, match="at least 64 bits"):
        safe_prime(32)


@pytest.fixture
def primes(monkeypatch):
    """The primes of the next deal, which no key set keeps."""
    drawn = []
    monkeypatch.setattr(key_set_module, "safe_prime", lambda bits: drawn.append(safe_prime(bits)) or drawn[-1])
    return drawn


def test_t_shares_determine_the_exponent_and_fewer_do_not(primes):
    keys = insecure_deal(3, 5)
    p, q = primes[-2:]
    n, m = p * q, (p // 2) * (q // 2)
    assert keys.shared.public.n == n
    exponent = gmpy2.invert(n, m)

    def at_zero(quorum):
        """Lagrange interpolation of f(0) mod m."""
        total = gmpy2.mpz(0)
        for i in quorum:
            weight = gmpy2.mpz(1)
            for j in quorum:
                if j != i:
                    weight = weight * (j + 1) * gmpy2.invert(j - i, m) % m
            total += weight * keys.shares[i]
        return total % m

    assert all(at_zero(quorum) == exponent for quorum in combinations(range(5), 3))
    assert all(at_zero(quorum) != exponent for quorum in combinations(range(5), 2))


def test_the_modulus_is_fit_for_djn_randomness_and_the_verifiers_fit_the_shares(primes):
    keys = insecure_deal(2, 3)
    p, q = primes[-2:]
    n, shared = p * q, keys.shared
    assert gmpy2.gcd(p - 1, q - 1) == 2
    assert p % 4 == q % 4 == 3
    assert gmpy2.jacobi(shared.public.base, p) == gmpy2.jacobi(shared.public.base, q) == -1
    assert gmpy2.jacobi(shared.base, p) == gmpy2.jacobi(shared.base, q) == 1  # v is a square,
    m = (p // 2) * (q // 2)
    assert all(gmpy2.powmod(shared.base, m // prime, n) != 1 for prime in (p // 2, q // 2))  # and generates them
    assert shared.verifiers == tuple(gmpy2.powmod(shared.base, keys.shares[i], n) for i in range(3))


def test_a_client_is_handed_its_own_secrets_alone():
    own = KEYS.only(2)
    assert isinstance(own, InsecureKeySet)
    assert own.shared == KEYS.shared
    assert set(own.shares) == set(own.signers) == {2}
    assert set(KEYS.only(6).shares) == set()  # a client that holds no share signs
    assert set(KEYS.only(6).signers) == {6}
    assert set(KEYS.only(9).shares) == set(KEYS.only(9).signers) == set()


def test_identities_fit_the_signers_and_secrets_are_not_shown():
    assert set(KEYS.shared.identities) == set(range(7))
    for client, raw in KEYS.signers.items():
        assert (
            Ed25519PrivateKey.from_private_bytes(raw).public_key().public_bytes_raw()
            == (KEYS.shared.identities[client])
        )
    shown = repr(KEYS)
    assert not any(str(share) in shown for share in KEYS.shares.values())
    assert not any(repr(signer) in shown for signer in KEYS.signers.values())


def test_the_fingerprint_tells_keys_apart():
    assert KEYS.shared.fingerprint == copy.copy(KEYS.shared).fingerprint
    assert KEYS.shared.fingerprint != insecure_deal(3, 5, clients=7).shared.fingerprint


@pytest.mark.parametrize(
    ("threshold", "holders", "says"),
    [
        (1, 1, "at least 2"),
        (6, 5, "fits 2 <= t"),
        (40, 65, "N <= 64"),
        (2, 4, "at least 3"),
        (2, 5, "disjoint quorums"),
    ],
)
def test_thresholds_that_two_quorums_could_meet_are_refused(threshold, holders, says):
    with pytest.raises(ConfigError, match=says):
        insecure_deal(threshold, holders)


@pytest.mark.parametrize("bits", [512, 1024, 2047, 2050])
def test_short_keys_are_refused_in_earnest(bits):
    with pytest.raises(ConfigError, match="at least 2048"):
        deal(2, 3, bits=bits)
    with pytest.raises(ConfigError, match="at least 2048 bits, not 512"):
        KeySet(KEYS.shared, {}, {})


def test_a_dealer_deals_once_and_its_copies_agree(monkeypatch):
    dealt = []
    monkeypatch.setattr(
        key_set_module, "deal", lambda t, n, *, clients, bits: dealt.append(n) or insecure_deal(t, n, clients=clients)
    )
    dealer = KeyDealer()
    keys = dealer.keys(2, 3, 3, 2048)
    assert dealer.keys(2, 3, 3, 2048) is keys
    assert copy.copy(dealer).keys(2, 3, 3, 2048) == keys  # by `__reduce__`, as worker processes get one
    assert dealt == [3]
    assert dealer.keys(3, 4, 4, 2048).shared.holders == 4


@pytest.mark.parametrize("clients", [0, -1, 2, 3.0, True])
def test_fewer_clients_than_share_holders_are_refused(clients):
    """Holders sign with their identities; 0 is no word for the default."""
    with pytest.raises(ConfigError, match=r"clients must be an integer of at least 3"):
        insecure_deal(2, 3, clients=clients, bits=256)
    assert sorted(insecure_deal(2, 3, clients=3, bits=256).signers) == [0, 1, 2]
