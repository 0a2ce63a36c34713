"""Draw safe primes for threshold keys: p = 2 q + 1 with q prime, so that squares other than 1 have the order q mod p.

The dealer draws two of them when a key is made (`key_set`), which happens once in the life of a key.
"""

from __future__ import annotations

import secrets
from functools import cache
from typing import Any, Final

import gmpy2
import numpy as np

from securefed._tensors import Array
from securefed.errors import ConfigError

_ROUNDS: Final = 40
"""GMP tests a candidate by Baillie-PSW, which no known composite passes, and by 24 fewer Miller-Rabin rounds than this:
16, each of which a composite passes with probability 1/4 at most."""
_WINDOW: Final = 1 << 17
"""Number of odd q that are sieved at a time; about one in 190 000 odd numbers of 1023 bits gives a safe prime."""


def safe_prime(bits: int) -> Any:
    """Draw a random safe prime of exactly `bits` bits whose two highest bits are set; takes seconds at 1024 bits.

    Windows of 2^17 odd q from a random start are sieved for small factors of q and of 2 q + 1, and what is left is
    tried in random order. p is 3 mod 4, as q is odd.

    Raises:
        ConfigError: fewer than 64 bits.
    """
    if bits < 64:
        raise ConfigError(f"a safe prime has at least 64 bits here, not {bits}")
    while True:
        start = gmpy2.mpz(secrets.randbits(bits - 1) | (3 << (bits - 3)) | 1)
        offsets = np.flatnonzero(_sieve(start))
        for offset in secrets.SystemRandom().sample(offsets.tolist(), len(offsets)):
            q = start + 2 * offset
            p = 2 * q + 1
            if not (_fermat(q) and _fermat(p)):
                continue
            if p.bit_length() == bits and gmpy2.is_prime(q, _ROUNDS) and gmpy2.is_prime(p, _ROUNDS):
                return p


def _fermat(n: Any) -> bool:
    """Test n to base 2: a prime passes, and nearly all composites fail, in one power."""
    return bool(gmpy2.powmod(2, n - 1, n) == 1)


def _sieve(start: Any) -> Array:
    """Mark the q = start + 2 i that have, like 2 q + 1, no odd prime factor below 2^16: bool (2^17,), by i.

    r divides q where i = -start / 2 mod r, and 2 q + 1 where q = (r - 1) / 2, i = ((r - 1) / 2 - start) / 2 mod r.
    """
    candidates = np.ones(_WINDOW, bool)
    for r in _small_primes():
        half = (r + 1) // 2  # the inverse of 2 mod r
        first = int(start % r)
        candidates[(-first * half) % r :: r] = False  # r divides q
        candidates[(((r - 1) // 2 - first) * half) % r :: r] = False  # r divides 2 q + 1
    return candidates


@cache
def _small_primes() -> tuple[int, ...]:
    """List the odd primes below 2^16, by Eratosthenes' sieve."""
    prime = np.ones(1 << 16, bool)
    for r in range(3, 1 << 8, 2):
        if prime[r]:
            prime[r * r :: r] = False
    return tuple(r for r in range(3, 1 << 16, 2) if prime[r])
