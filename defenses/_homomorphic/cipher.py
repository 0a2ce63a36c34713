"""Encrypt, add, check and decrypt big integers under Paillier; arithmetic by GMP.

Paillier, "Public-key cryptosystems based on composite degree residuosity classes", EUROCRYPT 1999, with g = 1 + n:
c = (1 + m n) z mod n^2, z an encryption of zero (`encryption_randomness`): a random n-th power, used once. Products of
ciphertexts modulo n^2 encrypt sums of plaintexts modulo n. Clients encrypt, the server multiplies, the key holder
decrypts (`paillier_protocol`); with threshold keys t clients decrypt together instead (`threshold_cipher`).

Not promised: constant time. An attacker that measures how long the key holder decrypts may learn its key.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gmpy2
import numpy as np

from securefed._messages import PartyId
from securefed._tensors import Array
from securefed.defenses._homomorphic.encryption_randomness import RandomnessKind
from securefed.defenses._homomorphic.keys import PrivateKey, PublicKey
from securefed.defenses._homomorphic.randomness_pool import RandomnessPool, encryptions_of_zero
from securefed.errors import MalformedError

Integers = Sequence[Any]
"""Integers of GMP (`gmpy2.mpz`)."""


def encrypt(
    public: PublicKey, plaintexts: Integers, randomness: RandomnessKind = "half", pool: RandomnessPool | None = None
) -> list[Any]:
    """Encrypt integers in [0, n) to integers in [1, n^2).

    Args:
        public: the key.
        plaintexts: the integers.
        randomness: how encryptions of zero are made: `full`, r^n of a random unit r; `half` and `short`, h^(n e) with h
            of the public key and a random e, half as long as n or shorter (`encryption_randomness`).
        pool: encryptions of zero that are ready are taken from it first.
    """
    count = len(plaintexts)
    fresh = encryptions_of_zero(public, count, randomness) if pool is None else pool.take(public, randomness, count)
    n = gmpy2.mpz(public.n)
    square = n * n
    # (1 + n)^m = 1 + m n (mod n^2), and 1 + m n < n^2 already.
    return [(1 + m * n) * r % square for m, r in zip(plaintexts, fresh, strict=True)]


def multiply(public: PublicKey, left: Integers, right: Integers) -> list[Any]:
    """Multiply ciphertexts position by position, which adds their plaintexts mod n."""
    square = gmpy2.mpz(public.n) ** 2
    return [a * b % square for a, b in zip(left, right, strict=True)]


def decrypt(private: PrivateKey, ciphertexts: Integers) -> list[Any]:
    """Decrypt to plaintexts in [0, n), by the Chinese remainder theorem (Paillier 1999, section 7)."""
    key = private.phe
    p, q = gmpy2.mpz(key.p), gmpy2.mpz(key.q)

    # m_p = L_p(c^(p-1) mod p^2) h_p mod p with L_p(u) = (u - 1) / p and h_p = L_p(g^(p-1) mod p^2)^-1 mod p, and
    # likewise for q; then m = m_p + p ((m_q - m_p) p^-1 mod q).
    def part(prime: Any, h: Any) -> list[Any]:
        square = prime * prime
        powers = power([c % square for c in ciphertexts], prime - 1, square)
        return [(u - 1) // prime * h % prime for u in powers]

    inverse = gmpy2.mpz(key.p_inverse)
    parts = zip(part(p, key.hp), part(q, key.hq), strict=True)
    return [m_p + p * ((m_q - m_p) * inverse % q) for m_p, m_q in parts]


def power(bases: Integers, exponent: Any, modulus: Any) -> list[Any]:
    """Compute base^exponent mod modulus for each base, on all cores: GMP powers lists without the interpreter's lock.

    Thread k takes the bases k, k + threads, ...
    """
    threads = min(os.cpu_count() or 1, len(bases))
    if threads <= 1:
        return [gmpy2.powmod(base, exponent, modulus) for base in bases]
    with ThreadPoolExecutor(threads) as pool:
        shares = pool.map(
            lambda start: gmpy2.powmod_base_list(bases[start::threads], exponent, modulus), range(threads)
        )
        out: list[Any] = [None] * len(bases)
        for start, share in enumerate(shares):
            out[start::threads] = share
    return out


def check(public: PublicKey, ciphertexts: Integers, sender: PartyId) -> None:
    """Raise `MalformedError` unless all lie in (0, n^2) and have no factor in common with n.

    Nothing more can be checked without the key: every such number decrypts to something, so an ALTERED one is not
    noticed here. That messages arrive unaltered rests on the authenticated channel. The error names `sender`.
    """
    n = gmpy2.mpz(public.n)
    square = n * n
    product = gmpy2.mpz(1)
    for position, c in enumerate(ciphertexts):
        if not 0 < c < square:
            raise MalformedError(sender, f"ciphertext {position} lies outside 1..n^2 - 1")
        product = product * c % n
    if gmpy2.gcd(product, n) != 1:  # a product is a unit where every factor is one
        raise MalformedError(sender, "a ciphertext has a factor in common with n")


def to_wire(values: Integers, size: int) -> Array:
    """Write integers below 256^size as a uint8 array of shape (count, size), little-endian."""
    data = b"".join(int(value).to_bytes(size, "little") for value in values)
    return np.frombuffer(data, dtype=np.uint8).reshape(len(values), size)


def from_wire(value: Array, count: int | None, size: int, sender: PartyId) -> list[Any]:
    """Read integers that `to_wire` wrote.

    Args:
        value: the array.
        count: how many integers there must be; `None` admits any number.
        size: bytes of each.
        sender: the party named in the error.

    Raises:
        MalformedError: no uint8 array of shape (count, size).
    """
    rows = value.shape[0] if value.ndim and count is None else count
    if value.dtype != np.uint8 or value.shape != (rows, size):
        wanted = f"({'any' if count is None else count}, {size})"
        raise MalformedError(sender, f"big integers are {value.dtype} of shape {value.shape}, not uint8 of {wanted}")
    data = value.tobytes()
    return [gmpy2.mpz(int.from_bytes(data[i : i + size], "little")) for i in range(0, len(data), size)]
