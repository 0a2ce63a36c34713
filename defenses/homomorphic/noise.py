"""Paillier noise: encryptions of zero, by secrets of the operating system, made at once or ahead of time.

    full     r^n mod n^2 for a uniform unit r: the scheme as published (Paillier 1999)
    half     h_n^e, h_n = h^n mod n^2, e uniform, half as long as n (Damgard, Jurik and Nielsen, DJN 2010, section 4)
    short    h_n^e with e of 400 bits for n of 2048, of 448 for 3072: below what DJN analyse, so an assumption more

Every piece of noise hides one ciphertext and is forgotten.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections import deque
from functools import lru_cache
from typing import Any, Final, Literal, get_args

import gmpy2

from securefed.defenses.homomorphic.keys import PublicKey
from securefed.defenses.homomorphic.workers import shared
from securefed.errors import ConfigError

Noise = Literal["full", "half", "short"]
NOISES: Final[tuple[Noise, ...]] = get_args(Noise)
_SHORT: Final = ((2048, 400), (3072, 448))
_WIDTH: Final[dict[Noise, int]] = {"half": 9, "short": 10}
"""Radix of the tables in bits: 55 MB and 40 MB at 2048 bits, filled in the time of 500 and 1000 pieces of noise."""


def exponent_bits(bits: int, noise: Noise) -> int:
    """Length of the secret exponent under a modulus of `bits` bits; below 2048 (insecure anyway) `short` has 400.

    Raises:
        ConfigError: `short` for a modulus above 3072 bits, for which no length is settled.
    """
    if noise == "full":
        return bits
    if noise == "half":
        return bits // 2
    for longest, length in _SHORT:
        if bits <= longest:
            return length
    raise ConfigError(f"short noise is defined up to {_SHORT[-1][0]} bits, not {bits}; use noise='half'")


class FixedBase:
    """Powers of one base modulo n^2, by a table of its powers in radix 2^w.

    base^e = prod_i T[i][e_i] with e = sum_i e_i 2^(w i) and T[i][j] = base^(j 2^(w i)): one product a digit and no
    squaring (fixed-base windowing, Menezes et al., Handbook of Applied Cryptography, algorithm 14.109). Residues are
    kept as a + b n with a, b < n: the product of two is then three products and two divisions of half the length,
    in three quarters of the time.
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

    @property
    def products(self) -> int:
        """Modular products a power costs."""
        return len(self._table)

    def power(self, exponent: int) -> Any:
        """base^exponent mod n^2 for 0 <= exponent < 2^exponent_bits."""
        result, n, width, mask = (gmpy2.mpz(1), gmpy2.mpz(0)), self.n, self.width, (1 << self.width) - 1
        for row in self._table:
            result = _product(result, row[exponent & mask], n)
            exponent >>= width
        low, high = result
        return low + high * n


def _split(value: Any, n: Any) -> tuple[Any, Any]:
    """(a, b) with a + b n = value, for value < n^2."""
    high, low = gmpy2.f_divmod(value, n)
    return low, high


def _product(left: tuple[Any, Any], right: tuple[Any, Any], n: Any) -> tuple[Any, Any]:
    """(a + b n) (c + d n) = a c + (a d + b c) n (mod n^2)."""
    (a, b), (c, d) = left, right
    carry, low = gmpy2.f_divmod(a * c, n)
    return low, (a * d + b * c + carry) % n


@lru_cache(maxsize=4)
def table(n: int, base: int, noise: Noise) -> FixedBase:
    """The table of h_n = h^n mod n^2, made once a key, noise and process; the four newest are kept."""
    power = gmpy2.powmod(base, n, gmpy2.mpz(n) ** 2)
    return FixedBase(power, n, exponent_bits(n.bit_length(), noise), _WIDTH[noise])


def noises(public: PublicKey, count: int, noise: Noise) -> list[Any]:
    """`count` fresh encryptions of zero; by worker processes where they pay (`workers.pays`)."""
    if noise != "full" and (workers := shared(public.bits, exponent_bits(public.bits, noise), count)) is not None:
        return workers.noises(public, count, noise)
    return make(public, count, noise)


def make(public: PublicKey, count: int, noise: Noise) -> list[Any]:
    """`count` fresh encryptions of zero, made in this process."""
    n = public.n
    if noise == "full":
        units = [_unit(n) for _ in range(count)]
        return list(gmpy2.powmod_base_list(units, n, gmpy2.mpz(n) ** 2)) if units else []
    powers = table(n, public.base, noise)
    return [powers.power(secrets.randbits(powers.exponent_bits)) for _ in range(count)]


def _unit(n: int) -> Any:
    while True:
        r = gmpy2.mpz(secrets.randbelow(n))
        if gmpy2.gcd(r, n) == 1:
            return r


class Stock:
    """Noise made ahead of time, for a client that would otherwise wait: encryption is then one product a ciphertext.

    Guarantee: what `take` hands out has never been handed out before and never is again; a copy of a stock, a pickled
    one and the one in a forked process are empty. It lives in memory only.
    Not promised: that memory is wiped after use.
    """

    def __init__(self) -> None:
        self._ready: dict[tuple[int, int, Noise], deque[Any]] = {}
        self._lock = threading.Lock()
        _STOCKS.add(self)

    def __reduce__(self) -> tuple[type[Stock], tuple[()]]:
        return Stock, ()

    def prepare(self, public: PublicKey, noise: Noise, count: int) -> None:
        """Make noise until `count` pieces are ready under this key."""
        fresh = noises(public, max(count - self.ready(public, noise), 0), noise)
        with self._lock:
            self._ready.setdefault((public.n, public.base, noise), deque()).extend(fresh)

    def ready(self, public: PublicKey, noise: Noise) -> int:
        """Pieces that are ready under this key."""
        with self._lock:
            return len(self._ready.get((public.n, public.base, noise), ()))

    def take(self, public: PublicKey, noise: Noise, count: int) -> list[Any]:
        """`count` pieces: those that are ready, and the rest made now."""
        with self._lock:
            ready = self._ready.get((public.n, public.base, noise), deque())
            taken = [ready.popleft() for _ in range(min(count, len(ready)))]
        return taken + noises(public, count - len(taken), noise)

    def clear(self) -> None:
        """Forget everything."""
        self._lock = threading.Lock()  # in a forked process the old one may be held by a thread that is no more
        self._ready = {}


_STOCKS: weakref.WeakSet[Stock] = weakref.WeakSet()


def _clear_all() -> None:
    for stock in list(_STOCKS):
        stock.clear()


os.register_at_fork(after_in_child=_clear_all)
