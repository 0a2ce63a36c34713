"""Deal keys for threshold decryption: any t of N share holders decrypt together, and fewer cannot.

An operator calls `deal` once, before the runs, and hands each client its own part (`KeySet.only`), which the client
gives to `threshold_paillier(keys=...)`. The encryption is Paillier's (`cipher`); `threshold_cipher` decrypts.

The dealer draws n = p q of safe primes p = 2 p' + 1, q = 2 q' + 1 and shares d = n^-1 mod m, m = p' q', by a random
polynomial f of degree t - 1 over Z_m with f(0) = d: holder i is given s_i = f(i + 1). The power d of a square mod n is
its n-th root: the squares form a group of order m, and n d = 1 mod m. By it a ciphertext c = (1 + x n) r^n mod n^2 of a
plaintext x opens: c mod n = r^n mod n, whose n-th root is r, and c / r^n = 1 + x n mod n^2. c mod n itself need not be
a square: holders raise an even power of it to their shares, and r follows from the root of that power
(`threshold_cipher.combine`). No holder learns d or m (Shoup, "Practical threshold signatures", EUROCRYPT 2000, section
3, with the public exponent n). To check its answers, every party receives v, which generates the squares mod n, and
v_i = v^s_i. `SharedKey.base` is v; `PublicKey.base` is another number, h, from which encryptions of zero are made.
Clients also get Ed25519 keys to sign their uploads with.

    secret             made by       known to              lives
    p, q, m, d, f      the dealer    the dealer            until the dealer's process ends; not in the result
    s_i                the dealer    holder i              as long as the keys: all exchanges of all runs
    Ed25519 key        the dealer    its client            as long as the keys

The dealer knows every secret: it is trusted to erase them. Keys are not generated in a distributed way, because the one
maintained package for that (tno.mpc.protocols.distributed_keygen 4.3, honest majority, semi-honest) generates no safe
primes and no verification keys, so answers could not be proven, and it needs its own network layer.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from secrets import randbelow
from typing import Any, TypeVar

import gmpy2
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefed._hyperparameters import check_integer
from securefed._messages import ClientId
from securefed.defenses._homomorphic.keys import PublicKey, djn_base, phe_library
from securefed.defenses._homomorphic.safe_primes import safe_prime
from securefed.errors import ConfigError


@dataclass(frozen=True)
class SharedKey:
    """The public part of the keys, which every party gets at set-up.

    Attributes:
        public: the key that encrypts; it holds n.
        threshold: t, the number of holders that decrypt together.
        base: v, a generator of the squares mod n.
        verifiers: v_i = v^s_i of holder i, against which its answers are proven; holders are the clients 0..N-1.
        identities: raw Ed25519 public keys by client, against which uploads are checked.
    """

    public: PublicKey
    threshold: int
    base: int
    verifiers: tuple[int, ...]
    identities: Mapping[ClientId, bytes]

    @property
    def holders(self) -> int:
        """Number N of share holders."""
        return len(self.verifiers)

    @cached_property
    def delta(self) -> int:
        """D = N!, times which Lagrange coefficients are integers: holders cannot divide modulo m (Shoup 2000)."""
        return int(gmpy2.fac(self.holders))

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 of all these values; signatures and proofs are bound to it."""
        public, size = self.public, self.public.plaintext_bytes
        digest = hashlib.sha256(f"{public.bits}|{self.threshold}|{self.holders}".encode())
        for number in (public.n, public.base, self.base, *self.verifiers):
            digest.update(int(number).to_bytes(size, "little"))
        for client, identity in sorted(self.identities.items()):
            digest.update(client.to_bytes(8, "little") + identity)
        return digest.digest()


@dataclass(frozen=True)
class KeySet:
    """The shared key and the secrets of those clients that live in this process.

    The key set of a deployed client holds its own secrets alone (`only`); that of a simulation holds all.

    Attributes:
        shared: the public part.
        shares: s_i by holder.
        signers: raw Ed25519 private keys by client.

    Raises:
        ConfigError: a modulus below 2048 bits; only `InsecureKeySet` admits one.
    """

    shared: SharedKey
    shares: Mapping[ClientId, int] = field(repr=False)
    signers: Mapping[ClientId, bytes] = field(repr=False)

    def __post_init__(self) -> None:
        if self.shared.public.bits < 2048 and not isinstance(self, InsecureKeySet):
            raise ConfigError(f"threshold keys have at least 2048 bits, not {self.shared.public.bits}")

    def __repr__(self) -> str:
        """Show the public part only, so that it reads the same at every party."""
        return f"{type(self).__name__}({self.shared.holders} holders, {self.shared.fingerprint.hex()})"

    def only(self, client: ClientId) -> KeySet:
        """Return the key set for this client alone; carry it over a confidential channel."""
        return type(self)(self.shared, _only(self.shares, client), _only(self.signers, client))


class InsecureKeySet(KeySet):
    """A key set whose modulus can be factored: for tests and quick simulations only."""


K = TypeVar("K", bound=KeySet)


def _only(secrets: Mapping[ClientId, Any], client: ClientId) -> dict[ClientId, Any]:
    """Return the client's own secret by its id; nothing where it has none."""
    return {client: secrets[client]} if client in secrets else {}


def deal(threshold: int, holders: int, *, clients: int | None = None, bits: int = 2048) -> KeySet:
    """Deal fresh keys, every random bit from the operating system; takes seconds at 2048 bits.

    Args:
        threshold: t, more than half of the holders: else two halves would open two sums whose difference is one
            client's contribution.
        holders: N, at most 64 (exponents grow by the 296 bits of 64!); clients 0..N-1 hold shares.
        clients: number of clients that get identities, at least N (default N).
        bits: length of n, a multiple of 64, at least 2048.

    Returns:
        The secrets of all clients; hand each client `only(client)` of it and keep nothing.

    Raises:
        ConfigError: a number outside these ranges.
    """
    return _deal(KeySet, threshold, holders, clients, bits)


def insecure_deal(threshold: int, holders: int, *, clients: int | None = None, bits: int = 512) -> InsecureKeySet:
    """Deal keys that can be factored, from 256 bits on; arguments as for `deal`."""
    return _deal(InsecureKeySet, threshold, holders, clients, bits)


def check_threshold(threshold: int, holders: int) -> None:
    """Raise `ConfigError` unless 2 <= t <= N <= 64 and 2 t > N, so that two sets of t holders have one in common."""
    check_integer("threshold", threshold, 2, note="(t of N holders)")
    check_integer("holders", holders, 2, note="(N)")
    if not 2 <= threshold <= holders <= 64:
        raise ConfigError(f"a threshold t of N holders fits 2 <= t <= N <= 64, not t = {threshold}, N = {holders}")
    if 2 * threshold <= holders:
        raise ConfigError(
            f"{threshold} of {holders}: two disjoint quorums could open two survivor sets, whose difference is one "
            f"client's contribution; use a threshold of at least {holders // 2 + 1}"
        )


def _deal(kind: type[K], threshold: int, holders: int, clients: int | None, bits: int) -> K:
    """Deal keys of this class; arguments and errors as of `deal`."""
    check_threshold(threshold, holders)
    if clients is not None:
        check_integer("clients", clients, holders, note="(the number of share holders, who are clients)")
    least = 256 if kind is InsecureKeySet else 2048
    check_integer("bits", bits, least, note="(of threshold keys)")
    if bits % 64 or bits < least:
        raise ConfigError(f"threshold keys have a multiple of 64 bits and at least {least}, not {bits}")
    p, q = safe_prime(bits // 2), safe_prime(bits // 2)
    while abs(p - q) >> max(bits // 2 - 100, 1) == 0:  # too close for FIPS 186-5, A.1.3, as for `keys.generate`
        q = safe_prime(bits // 2)
    n, m = p * q, (p // 2) * (q // 2)  # m = p' q', the order of the squares mod n
    # gcd(p - 1, q - 1) = 2 as p' and q' are different primes: as the base h of Damgard,
    # Jurik and Nielsen (2010) needs.
    coefficients = [gmpy2.invert(n, m), *(gmpy2.mpz(randbelow(int(m))) for _ in range(threshold - 1))]
    shares = {i: int(_evaluate(coefficients, i + 1, m)) for i in range(holders)}
    base = _square(n)
    verifiers = tuple(int(gmpy2.powmod(base, shares[i], n)) for i in range(holders))
    signers = {i: Ed25519PrivateKey.generate() for i in range(holders if clients is None else clients)}
    identities = {i: key.public_key().public_bytes_raw() for i, key in signers.items()}
    public = PublicKey(phe_library().PaillierPublicKey(int(n)), djn_base(n))
    shared = SharedKey(public, threshold, int(base), verifiers, identities)
    return kind(shared, shares, {i: key.private_bytes_raw() for i, key in signers.items()})


def _evaluate(coefficients: list[Any], x: int, modulus: Any) -> Any:
    """Evaluate a polynomial at x by Horner's rule; the constant term comes first."""
    value = gmpy2.mpz(0)
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % modulus
    return value


def _square(n: Any) -> Any:
    """Draw a generator of the squares mod n: a square other than 1 modulo p and modulo q, as their orders are prime."""
    while True:
        v = gmpy2.mpz(randbelow(int(n))) ** 2 % n
        if gmpy2.gcd(v, n) == 1 and gmpy2.gcd(v - 1, n) == 1:
            return v


class KeyDealer:
    """Deals keys once for each size and remembers them, for simulations. A copy has the same keys."""

    def __init__(self) -> None:
        self._dealt: dict[tuple[int, int, int, int], KeySet] = {}

    def keys(self, threshold: int, holders: int, clients: int, bits: int) -> KeySet:
        """Return the keys for these numbers, dealt at the first call."""
        sizes = (threshold, holders, clients, bits)
        with _DEALING:
            if sizes not in self._dealt:
                self._dealt[sizes] = deal(threshold, holders, clients=clients, bits=bits)
            return self._dealt[sizes]


_DEALING = threading.Lock()  # of the module, as a dealer that held one could not be copied or pickled
