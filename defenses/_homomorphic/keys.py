"""Generate and check Paillier keys that admit short random exponents, held in the types of phe (python-paillier).

The key holder generates a key once for a run (`KeyHolder`); the server and each client check the public half that they
are sent (`PublicKey.from_body`). Of threshold keys (`key_set`) only the public half has these types.

Damgard, Jurik and Nielsen (DJN), "A generalization of Paillier's public-key system with applications to electronic
voting", Int. J. Inf. Secur. 9 (2010), section 4: n = p q with p = q = 3 (mod 4) and gcd(p - 1, q - 1) = 2; the public
key is (n, h) with h = -x^2 mod n for a random unit x (a number without a common factor with n). As -1 has Jacobi symbol
1 modulo such an n, h has it too, which is checked. phe's own keys do not ensure these congruences.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import gmpy2
import numpy as np

from securefed._extras import needed_for
from securefed._messages import PartyId
from securefed._persistence.packing import from_bytes
from securefed._tensors import Array, Tensors
from securefed.errors import ConfigError, DataError, MalformedError

if TYPE_CHECKING:
    from phe import PaillierPrivateKey, PaillierPublicKey

MODULUS, BASE = "modulus", "base"
_ROUNDS = 40
"""GMP tests a candidate by Baillie-PSW, which no known composite passes, and by 24 fewer Miller-Rabin rounds than this:
16, each of which a composite passes with probability 1/4 at most."""
_SMALL_PRIMES = gmpy2.primorial(2000)  # the product of all primes up to 2000


def phe_library() -> Any:
    """Import phe, an extra; `MissingExtraError` where it is not installed."""
    with needed_for("Paillier encryption"):
        import phe  # noqa: PLC0415

        return phe


@dataclass(frozen=True)
class PublicKey:
    """The key that encrypts: phe's public key and the DJN base.

    Attributes:
        phe: the modulus n, as phe's type, so that its tools read our ciphertexts.
        base: h = -x^2 mod n; an encryption of zero is (h^n)^r mod n^2 for a random exponent r.
    """

    phe: PaillierPublicKey
    base: int

    @property
    def n(self) -> int:
        """The modulus."""
        return int(self.phe.n)

    @property
    def bits(self) -> int:
        """Length of the modulus."""
        return self.n.bit_length()

    @property
    def plaintext_bytes(self) -> int:
        """Bytes of a plaintext on the wire."""
        return self.bits // 8

    @property
    def ciphertext_bytes(self) -> int:
        """Bytes of a ciphertext on the wire."""
        return self.bits // 4

    def to_body(self) -> dict[str, Array]:
        """Write the key as two arrays of `bits / 8` bytes each, whatever its value."""
        return {
            MODULUS: from_bytes(self.n.to_bytes(self.plaintext_bytes, "little")),
            BASE: from_bytes(int(self.base).to_bytes(self.plaintext_bytes, "little")),
        }

    @classmethod
    def from_body(cls, body: Tensors, bits: int, sender: PartyId) -> PublicKey:
        """Read a key of `bits` bits that `to_body` wrote, after every check that the public half of a key allows.

        Checked: sizes; n has exactly `bits` bits, is 1 mod 4, has no factor below 2000, is neither prime nor a perfect
        power; h is a unit other than +-1 with Jacobi symbol 1. NOT checked, because it cannot be without a proof by
        the key's maker: that n has two factors of equal size, and which parties know them.

        Raises:
            MalformedError: a check fails; it names `sender`.
        """
        if set(body) != {MODULUS, BASE}:
            raise MalformedError(sender, f"a public key holds {MODULUS!r} and {BASE!r}, not {sorted(body)}")
        for name, value in body.items():
            if value.dtype != np.uint8 or value.shape != (bits // 8,):
                raise MalformedError(sender, f"{name!r} is {value.dtype} of shape {value.shape}, not {bits // 8} bytes")
        n, base = (int.from_bytes(body[name].tobytes(), "little") for name in (MODULUS, BASE))
        if (fault := _fault(n, base, bits)) is not None:
            raise MalformedError(sender, f"public key: {fault}")
        return cls(phe_library().PaillierPublicKey(n), base)


@dataclass(frozen=True)
class PrivateKey:
    """The key that decrypts. Its text form shows nothing secret.

    Attributes:
        public: the public half.
        phe: the secret half, as phe's type.
    """

    public: PublicKey
    phe: PaillierPrivateKey = field(repr=False)

    def to_body(self) -> dict[str, Array]:
        """Write the whole key as arrays, secret primes in the clear. Inverse: `from_body`."""
        size = self.public.plaintext_bytes
        primes = {"p": self.phe.p, "q": self.phe.q}
        return self.public.to_body() | {n: from_bytes(int(v).to_bytes(size, "little")) for n, v in primes.items()}

    @classmethod
    def from_body(cls, body: Tensors) -> PrivateKey:
        """Read what `to_body` wrote; `DataError` for other arrays."""
        try:
            n, base, p, q = (int.from_bytes(body[name].tobytes(), "little") for name in (MODULUS, BASE, "p", "q"))
            phe = phe_library()
            public = phe.PaillierPublicKey(n)
            return cls(PublicKey(public, base), phe.PaillierPrivateKey(public, p, q))
        except (KeyError, ValueError) as error:
            raise DataError(f"no private key: {error}") from error


def generate(bits: int) -> PrivateKey:
    """Generate a fresh key; every random bit comes from the operating system.

    Args:
        bits: length of n, a multiple of 64.

    Raises:
        ConfigError: `bits` is no positive multiple of 64.
    """
    if bits < 64 or bits % 64:
        raise ConfigError(f"bits of a Paillier key must be a positive multiple of 64; got {bits}")
    while True:
        p, q = _prime(bits // 2), _prime(bits // 2)
        # FIPS 186-5, A.1.3: primes that lie close together are found by Fermat's method; they must differ by more than
        # 2^(bits / 2 - 100). The gcd is DJN's condition; 2 divides it always.
        apart = abs(p - q) >> max(bits // 2 - 100, 1)
        if apart and gmpy2.gcd(p - 1, q - 1) == 2:
            break
    n = p * q
    phe = phe_library()
    public = phe.PaillierPublicKey(int(n))
    return PrivateKey(PublicKey(public, djn_base(n)), phe.PaillierPrivateKey(public, int(p), int(q)))


def _prime(bits: int) -> Any:
    """Draw a random prime of exactly `bits` bits, 3 mod 4, its two highest bits set so that p q has 2 `bits` bits."""
    while True:
        candidate = gmpy2.mpz(secrets.randbits(bits) | (3 << (bits - 2)) | 3)
        if gmpy2.is_prime(candidate, _ROUNDS):
            return candidate


def djn_base(n: Any) -> int:
    """Draw h = -x^2 mod n for a random unit x (DJN, section 4)."""
    while True:
        x = gmpy2.mpz(secrets.randbelow(int(n)))
        base = -x * x % n
        if gmpy2.gcd(x, n) == 1 and base not in (1, n - 1):
            return int(base)


@lru_cache(maxsize=64)
def _fault(n: int, base: int, bits: int) -> str | None:
    """Say what is wrong with a public key, or `None`; remembered, as all clients of a simulation check the same one."""
    modulus = gmpy2.mpz(n)
    checks = {
        f"the modulus has {n.bit_length()} bits, not {bits}": n.bit_length() == bits,
        "the modulus is not 1 mod 4, so its primes are not 3 mod 4": n % 4 == 1,
        "the modulus has a factor below 2000": gmpy2.gcd(modulus, _SMALL_PRIMES) == 1,
        "the base is no unit other than 1 and -1": 1 < base < n - 1 and gmpy2.gcd(base, modulus) == 1,
    }
    for fault, fine in checks.items():
        if not fine:
            return fault
    if gmpy2.is_power(modulus) or gmpy2.is_prime(modulus):
        return "the modulus is a prime or a perfect power"
    return None if gmpy2.jacobi(base, modulus) == 1 else "the base's Jacobi symbol is not 1"
