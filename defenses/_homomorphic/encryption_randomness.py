"""Compute the randomness of Paillier ciphertexts: encryptions of zero, from secrets of the operating system.

    full     r^n mod n^2 for a uniform unit r: the scheme as published (Paillier 1999)
    half     h_n^e, h_n = h^n mod n^2, e uniform, half as long as n (Damgard, Jurik and Nielsen, DJN 2010, section 4)
    short    h_n^e with e of 400 bits for n of 2048, of 448 for 3072: shorter than in DJN, so a further assumption

n is the public modulus. A ciphertext is g^m (g = 1 + n the generator, m the plaintext) times an encryption of zero,
which is used once and discarded: two ciphertexts with the same one would show the difference of their plaintexts. h is
a part of the public key. Clients compute encryptions of zero before an upload, or ahead of time (`randomness_pool`);
the plan prints the assumption behind the kind that was chosen.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import Any, Final, Literal, get_args

import gmpy2

from securefed.defenses._homomorphic.keys import PublicKey
from securefed.errors import ConfigError

RandomnessKind = Literal["full", "half", "short"]
RANDOMNESS_KINDS: Final[tuple[RandomnessKind, ...]] = get_args(RandomnessKind)
_SHORT: Final = ((2048, 400), (3072, 448))
"""Longest modulus and length of the exponent. Generic attacks take about 2^(length / 2) steps: 2^200 and 2^224, far
beyond what factoring such a modulus takes. That no better attack exists on short exponents is the assumption."""
_WIDTH: Final[dict[RandomnessKind, int]] = {"half": 9, "short": 10}
"""Radix of the tables of powers, in bits. The tables take 55 MB and 40 MB at 2048 bits; filling them takes as
long as 500 and 1000 encryptions of zero. One bit more nearly doubles both, and saves a tenth of the products."""


def exponent_bits(bits: int, randomness: RandomnessKind) -> int:
    """Return the length of the secret exponent under a modulus of `bits` bits.

    For a modulus below 2048 bits (insecure anyway), `short` exponents have 400 bits.

    Raises:
        ConfigError: `short` for a modulus above 3072 bits, for which this library defines no length.
    """
    if randomness == "full":
        return bits
    if randomness == "half":
        return bits // 2
    for longest, length in _SHORT:
        if bits <= longest:
            return length
    raise ConfigError(
        f"randomness='short' is defined for a modulus of up to {_SHORT[-1][0]} bits; got {bits}: use randomness='half'"
    )


def check_randomness(name: str, bits: int, randomness: object) -> None:
    """Raise `ConfigError`, which begins with `name`, unless this kind of randomness exists for keys of `bits` bits."""
    if randomness not in RANDOMNESS_KINDS:
        raise ConfigError(f"{name}: randomness must be one of {', '.join(RANDOMNESS_KINDS)}; got {randomness!r}")
    exponent_bits(bits, randomness)


class FixedBasePowers:
    """Raises one base to many exponents modulo n^2, by a table of its powers in radix 2^w.

    base^e = prod_i T[i][e_i] with e = sum_i e_i 2^(w i) and T[i][j] = base^(j 2^(w i)): one product per digit and no
    squaring (fixed-base windowing, Menezes et al., Handbook of Applied Cryptography, algorithm 14.109). Residues are
    kept as a + b n with a, b < n: the product of two is then three products and two divisions of half the length,
    in three quarters of the time.

    Args:
        base: the base, below n^2.
        n: powers are computed modulo n^2.
        exponent_bits: length of the longest exponent.
        width: w, the bits of one digit; the last digit may be shorter.
    """

    def __init__(self, base: Any, n: Any, exponent_bits: int, width: int) -> None:
        self.n, self.exponent_bits, self.width = gmpy2.mpz(n), exponent_bits, width
        self._table = []
        step = _split(gmpy2.mpz(base), self.n)
        for left in range(exponent_bits, 0, -width):
            row = [(gmpy2.mpz(1), gmpy2.mpz(0)), step]
            for _ in range(2 ** min(width, left) - 2):
                row.append(_product(row[-1], step, self.n))
            self._table.append(row)
            step = _product(row[-1], step, self.n)

    def power(self, exponent: int) -> Any:
        """Compute base^exponent mod n^2 for 0 <= exponent < 2^exponent_bits."""
        result, n, width, mask = (gmpy2.mpz(1), gmpy2.mpz(0)), self.n, self.width, (1 << self.width) - 1
        for row in self._table:
            result = _product(result, row[exponent & mask], n)
            exponent >>= width
        low, high = result
        return low + high * n


def _split(value: Any, n: Any) -> tuple[Any, Any]:
    """Split value < n^2 into (a, b) with a + b n = value."""
    high, low = gmpy2.f_divmod(value, n)
    return low, high


def _product(left: tuple[Any, Any], right: tuple[Any, Any], n: Any) -> tuple[Any, Any]:
    """Multiply two split residues: (a + b n) (c + d n) = a c + (a d + b c) n (mod n^2)."""
    (a, b), (c, d) = left, right
    carry, low = gmpy2.f_divmod(a * c, n)
    return low, (a * d + b * c + carry) % n


@lru_cache(maxsize=4)
def power_table(n: int, base: int, randomness: RandomnessKind) -> FixedBasePowers:
    """Return the table of h_n = h^n mod n^2, made once per key, kind and process; the four last used are kept."""
    power = gmpy2.powmod(base, n, gmpy2.mpz(n) ** 2)
    return FixedBasePowers(power, n, exponent_bits(n.bit_length(), randomness), _WIDTH[randomness])


def compute_encryptions_of_zero(public: PublicKey, count: int, randomness: RandomnessKind) -> list[Any]:
    """Compute `count` fresh encryptions of zero, integers in [1, n^2), in this process."""
    n = public.n
    if randomness == "full":
        units = [_unit(n) for _ in range(count)]
        return list(gmpy2.powmod_base_list(units, n, gmpy2.mpz(n) ** 2)) if units else []
    powers = power_table(n, public.base, randomness)
    return [powers.power(secrets.randbits(powers.exponent_bits)) for _ in range(count)]


def _unit(n: int) -> Any:
    """Draw a uniform unit modulo n: a number without a common factor with n."""
    while True:
        r = gmpy2.mpz(secrets.randbelow(n))
        if gmpy2.gcd(r, n) == 1:
            return r
