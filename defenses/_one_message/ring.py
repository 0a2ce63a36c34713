"""Compute in the field Z_q and in the ring Z_q[X] / (X^n + 1), exactly, with NumPy.

q is a prime of 54 bits just below 2^54 (`parameters`), so 2^54 mod q is a small number. Products of two
elements have 108 bits. `multiply` takes the quotient from floating point and the remainder from wrapping 64-bit
integers: the quotient is off by 8 at most, and so the remainder by 8 q, which fits. `product` multiplies polynomials by
a Fourier transform of limbs, short enough for float64 to round to the right integer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from securefed._sampling.random_stream import SecureRandomStream, public_words
from securefed._tensors import Array
from securefed.defenses._one_message.parameters import MODULUS, MODULUS_BITS

_MASK: Final = np.int64(2**MODULUS_BITS - 1)
_BLOCKS: Final = 64
"""Polynomials in one transform: their limbs stay in a core's cache (32 to 128 are equally fast here, 8 and 512
slower)."""
_SMALL: Final = 2**11
"""Largest Euclidean norm of s with which two limbs of 27 bits are exact: by the usual bound on a transform of this
size, 2^-53 * 2^5 * |a| |s|, the error stays below 2^-4 with |a| = 2^27 sqrt(n), n = 4096."""
_LIMB: Final = 13
"""Bits of a limb of a longer s: with limbs of 18 bits of a, the same bound gives an error below 2^-5."""
BYTES: Final = 7
"""Bytes of an element on the wire."""


def residues(values: Array, q: int = MODULUS) -> Array:
    """Reduce int64 values of any sign to 0, ..., q - 1."""
    return np.asarray(np.remainder(values, np.int64(q)))


def centred(values: Array, q: int = MODULUS) -> Array:
    """Map 0, ..., q - 1 to the representatives of smallest absolute value."""
    return np.where(values > q >> 1, values - np.int64(q), values)


def multiply(left: Array, right: Array | int, q: int = MODULUS) -> Array:
    """Multiply elements of the field, one by one (int64 in 0, ..., q - 1); arrays broadcast."""
    a, b = np.asarray(left, np.int64), np.asarray(right, np.int64)
    quotient = (a.astype(np.float64) * b.astype(np.float64) * (1.0 / q)).astype(np.int64).view(np.uint64)
    with np.errstate(over="ignore"):
        rest = a.view(np.uint64) * b.view(np.uint64) - quotient * np.uint64(q)
    return residues(rest.view(np.int64), q)


def dot(weights: Array, values: Array) -> Array:
    """Compute sum_j weights_j values_..j in the field, over the last axis."""
    products = multiply(weights, values)
    # a sum of 512 residues of 54 bits fits 63 bits
    while products.shape[-1] > 1:
        width = products.shape[-1]
        starts = np.arange(0, width, 512)
        products = residues(np.add.reduceat(products, starts, axis=-1))
    return np.asarray(products[..., 0])


def uniform(count: int, stream: SecureRandomStream, q: int = MODULUS) -> Array:
    """Draw secret, uniform elements (int64) from the operating system's generator."""
    found = _below(stream.words(count + 1), q)
    while found.size < count:
        found = np.concatenate([found, _below(stream.words(16), q)])
    return found[:count]


def public_uniform(count: int, *context: str | int, q: int = MODULUS) -> Array:
    """Derive public, uniform elements (int64) from a context that all parties know."""
    spare = 16
    while True:
        values = _below(public_words(count + spare, *context), q)
        if values.size >= count:
            return values[:count]
        spare *= 16


def _below(words: Array, q: int) -> Array:
    """Keep the words whose lower 54 bits are an element: all but one in 2^36."""
    values = words.view(np.int64) & _MASK
    return np.asarray(values[values < q])


def shifted(values: Array, bits: int, q: int = MODULUS) -> Array:
    """Compute values * 2^bits mod q, not fully reduced, for |values| < 2^54: it is below 2^55 + 2^(18 + bits)."""
    low, fold = np.int64(MODULUS_BITS - bits), np.int64(2**MODULUS_BITS - q)
    return np.asarray((values >> low) * fold + ((values & np.int64(2 ** int(low) - 1)) << np.int64(bits)))


def product(public: Array, secret: Array, q: int = MODULUS) -> Array:
    """Multiply polynomials a by one polynomial s modulo X^n + 1.

    Args:
        public: the coefficients of the polynomials a, int64 (blocks, n) in 0, ..., q - 1.
        secret: the coefficients of s, int64 (n,), from -q / 2 to q / 2; small ones are faster.
        q: the prime.

    Returns:
        The products, int64 (blocks, n) in 0, ..., q - 1.
    """
    if float(np.linalg.norm(secret.astype(np.float64))) <= _SMALL:
        return _by_limbs(public, secret, 27, q)
    out = np.zeros(public.shape, np.int64)
    rest, place = secret, 0
    while rest.any():
        limb = rest & np.int64(2**_LIMB - 1)
        limb = np.where(limb >= 2 ** (_LIMB - 1), limb - 2**_LIMB, limb)  # centred, so that the last one has the sign
        part = _by_limbs(public, limb, 18, q)
        out = residues(out + multiply(part, pow(2, place, q), q), q)
        rest, place = (rest - limb) >> np.int64(_LIMB), place + _LIMB
    return out


def _by_limbs(public: Array, small: Array, width: int, q: int) -> Array:
    """Multiply by a polynomial of small coefficients: limbs of `width` bits of a, each by a Fourier transform."""
    spectrum = _forward(small.reshape(1, -1))
    out = np.empty(public.shape, np.int64)
    for start in range(0, len(public), _BLOCKS):
        part = public[start : start + _BLOCKS]
        total = np.zeros(part.shape, np.int64)
        for place in range(0, MODULUS_BITS, width):
            limb = (part >> np.int64(place)) & np.int64(2**width - 1)
            one = _backward(_forward(limb) * spectrum)
            total += one if place == 0 else residues(shifted(one, place, q), q)
        out[start : start + _BLOCKS] = residues(total, q)
    return out


def _forward(values: Array) -> Array:
    """Evaluate polynomials at the odd powers of a 2n-th root of unity, one of each conjugate pair (rows, n / 2)."""
    half = values.shape[1] // 2
    return np.fft.fft((values[:, :half] + 1j * values[:, half:]) * _twist(half), axis=1)


def _backward(spectrum: Array) -> Array:
    """Interpolate, the inverse of `_forward`, and round to integers (rows, n)."""
    half = spectrum.shape[1]
    folded = np.fft.ifft(spectrum, axis=1) * _twist(half).conj()
    out = np.empty((len(folded), 2 * half), np.int64)
    out[:, :half], out[:, half:] = np.rint(folded.real), np.rint(folded.imag)
    return out


@lru_cache(maxsize=2)
def _twist(half: int) -> Array:
    return np.asarray(np.exp(0.5j * np.pi * np.arange(half) / half))


def planes(values: Array) -> tuple[Array, Array, Array]:
    """Cut elements (flat) into 32 low, 16 middle and 8 high bits, as they travel: 7 bytes for each."""
    words = values.view(np.uint64)
    return (
        words.astype("<u4"),
        (words >> np.uint64(32)).astype("<u2"),
        (words >> np.uint64(48)).astype(np.uint8),
    )


def joined(low: Array, middle: Array, high: Array, q: int = MODULUS) -> Array:
    """Return the residues of what `planes` cut, or of sums of as many as 2^16 of each."""
    head = (high.astype(np.int64) << np.int64(16)) + middle.astype(np.int64)  # below 2^39 for sums
    return residues(shifted(head, 32, q) + low.astype(np.int64), q)


def to_bytes(values: Array) -> bytes:
    """Write elements, 7 bytes for each."""
    return b"".join(plane.tobytes() for plane in planes(np.ascontiguousarray(values).reshape(-1)))


def from_bytes(data: bytes | memoryview) -> Array:
    """Read what `to_bytes` wrote: int64, flat, reduced."""
    count = len(data) // BYTES
    return joined(
        np.frombuffer(data, "<u4", count),
        np.frombuffer(data, "<u2", count, 4 * count),
        np.frombuffer(data, np.uint8, count, 6 * count),
    )
