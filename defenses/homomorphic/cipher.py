"""Paillier encryption on big integers: encrypt, add, check, decrypt. Arithmetic by GMP.

Paillier, "Public-key cryptosystems based on composite degree residuosity classes", EUROCRYPT 1999, with g = 1 + n:
c = (1 + m n) * noise mod n^2. The noise is either r^n for a uniform unit r (`full`: the scheme as published, resting
on decisional composite residuosity), or h_n^r with h_n = h^n mod n^2 and r of half the length of n (`half`: DJN 2010,
section 4, which rests in addition on exponents of half length being indistinguishable from uniform ones).

Not promised: constant time. Who can time the key holder's decryptions may learn its key.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Literal

import gmpy2
import numpy as np

from securefed.defenses.homomorphic.keys import PrivateKey, PublicKey
from securefed.errors import MalformedError
from securefed.messages import PartyId
from securefed.tensors import Array

Noise = Literal["full", "half"]
Integers = Sequence[Any]
"""Integers of GMP (`gmpy2.mpz`)."""


class FixedBase:
    """Powers of one base modulo m, by a table of its multiples in radix 256.

    base^e = prod_i T[i][e_i] with e = sum_i e_i 256^i and T[i][j] = base^(j 256^i): one product a byte and no squaring
    (fixed-base windowing, Menezes et al., Handbook of Applied Cryptography, algorithm 14.109). At 2048-bit keys the
    table holds 128 x 256 numbers of 512 bytes: 18 MB, 0.2 s to fill.
    """

    def __init__(self, base: Any, modulus: Any, exponent_bytes: int) -> None:
        self.modulus, self.exponent_bytes = modulus, exponent_bytes
        self._table = []
        for _ in range(exponent_bytes):
            row = [gmpy2.mpz(1), base]
            for _ in range(254):
                row.append(row[-1] * base % modulus)
            self._table.append(row)
            base = row[-1] * base % modulus

    def power(self, exponent: bytes) -> Any:
        """base^e mod m; `exponent` is e, little-endian, `exponent_bytes` long."""
        result, modulus = gmpy2.mpz(1), self.modulus
        for row, digit in zip(self._table, exponent, strict=True):
            result = result * row[digit] % modulus
        return result


@lru_cache(maxsize=4)
def _fixed_base(n: int, base: int) -> FixedBase:
    """The table of h_n = h^n mod n^2, made once a key and process; the four newest keys' tables are kept."""
    square = gmpy2.mpz(n) ** 2
    return FixedBase(gmpy2.powmod(base, n, square), square, n.bit_length() // 16)


def noises(public: PublicKey, count: int, noise: Noise) -> list[Any]:
    """`count` encryptions of zero, by secrets of the operating system. May be made ahead of the values they hide."""
    n = public.n
    if noise == "half":
        table = _fixed_base(n, public.base)
        return [table.power(secrets.token_bytes(table.exponent_bytes)) for _ in range(count)]
    units = [_unit(n) for _ in range(count)]
    return list(gmpy2.powmod_base_list(units, n, gmpy2.mpz(n) ** 2)) if units else []


def _unit(n: int) -> Any:
    while True:
        r = gmpy2.mpz(secrets.randbelow(n))
        if gmpy2.gcd(r, n) == 1:
            return r


def encrypt(public: PublicKey, plaintexts: Integers, noise: Noise = "half") -> list[Any]:
    """Fresh ciphertexts of integers in [0, n)."""
    n = gmpy2.mpz(public.n)
    square = n * n
    fresh = noises(public, len(plaintexts), noise)
    # (1 + n)^m = 1 + m n (mod n^2), and 1 + m n < n^2 already.
    return [(1 + m * n) * r % square for m, r in zip(plaintexts, fresh, strict=True)]


def multiply(public: PublicKey, left: Integers, right: Integers) -> list[Any]:
    """Ciphertexts of the sums mod n of the plaintexts, position by position."""
    square = gmpy2.mpz(public.n) ** 2
    return [a * b % square for a, b in zip(left, right, strict=True)]


def decrypt(private: PrivateKey, ciphertexts: Integers) -> list[Any]:
    """Plaintexts in [0, n), by the Chinese remainder theorem (Paillier 1999, section 7)."""
    key = private.phe
    if not ciphertexts:
        return []
    p, q = gmpy2.mpz(key.p), gmpy2.mpz(key.q)

    # m_p = L_p(c^(p-1) mod p^2) h_p mod p with L_p(u) = (u - 1) / p, and likewise for q
    def part(prime: Any, h: Any) -> list[Any]:
        square = prime * prime
        powers = gmpy2.powmod_base_list([c % square for c in ciphertexts], prime - 1, square)
        return [(u - 1) // prime * h % prime for u in powers]

    # GMP works without the interpreter's lock, so the two primes share out over two cores.
    with ThreadPoolExecutor(max_workers=2) as pool:
        parts = list(pool.map(part, (p, q), (key.hp, key.hq)))
    inverse = gmpy2.mpz(key.p_inverse)
    return [m_p + p * ((m_q - m_p) * inverse % q) for m_p, m_q in zip(*parts, strict=True)]


def check(public: PublicKey, ciphertexts: Integers, sender: PartyId) -> None:
    """Raise `MalformedError` unless all lie in (0, n^2) and have no factor in common with n.

    This is all that can be told of a ciphertext from outside: every such number decrypts to something, so an
    ALTERED one is not noticed here. That messages arrive unaltered rests on the authenticated channel.
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
    """Integers as a uint8 array of shape (count, size), little-endian."""
    data = b"".join(int(value).to_bytes(size, "little") for value in values)
    return np.frombuffer(data, dtype=np.uint8).reshape(len(values), size)


def from_wire(value: Array, count: int | None, size: int, sender: PartyId) -> list[Any]:
    """Inverse of `to_wire`.

    Raises:
        MalformedError: no uint8 array of shape (count, size); a `count` of `None` admits any.
    """
    rows = value.shape[0] if value.ndim and count is None else count
    if value.dtype != np.uint8 or value.shape != (rows, size):
        wanted = f"({'any' if count is None else count}, {size})"
        raise MalformedError(sender, f"big integers are {value.dtype} of shape {value.shape}, not uint8 of {wanted}")
    data = value.tobytes()
    return [gmpy2.mpz(int.from_bytes(data[i : i + size], "little")) for i in range(0, len(data), size)]
