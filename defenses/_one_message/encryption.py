"""Encrypt a contribution under a key that the committee holds in shares, and decrypt the sum of such uploads.

y = A s + e + scale x, block by block; A is derived from the exchange's digest. With S the sum of the clients' s, the
sum of the y is A S + (sum of e) + scale (sum of x), and the summed errors are below half the scale (`parameters`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from securefed._sampling.discrete_distributions import discrete_gaussian_draws
from securefed._sampling.random_stream import SecureRandomStream
from securefed._tensors import Array, Tensors
from securefed.defenses._one_message.parameters import DEVIATION, MODULI, MODULUS_BITS, Encoding
from securefed.defenses._one_message.plaintexts import Placing
from securefed.defenses._one_message.ring import (
    centred,
    joined,
    multiply,
    planes,
    product,
    public_uniform,
    residues,
    uniform,
)

PLANES: Final = ("low", "middle", "high")
"""Fields of an upload that hold y, and their types."""
PLANE_TYPES: Final[tuple[np.dtype[Any], ...]] = (np.dtype("<u4"), np.dtype("<u2"), np.dtype(np.uint8))


def draw_key(encoding: Encoding, stream: SecureRandomStream) -> Array:
    """Draw a client's s, int64 (n,), for one exchange."""
    return discrete_gaussian_draws(DEVIATION**2, encoding.degree, stream)


def encrypt(
    encoded: Tensors | None, placing: Placing, key: Array, exchange: bytes, stream: SecureRandomStream
) -> tuple[Array, ...]:
    """Encrypt a contribution; where there is none, return uniform elements, in the same time.

    Args:
        encoded: the contribution, int64 tensors in fixed point; `None` for a client that sits out.
        placing: where its entries stand.
        key: s.
        exchange: `exchange_digest`.
        stream: secret randomness.

    Returns:
        y modulo each prime of q, in the three parts of `ring.planes`, each of shape (primes, `Placing.size`).

    Raises:
        DataError, RangeRefused: as `Placing.place`.
    """
    nothing = np.zeros((), np.int64)
    zeros = {tensor.name: np.broadcast_to(nothing, tensor.shape) for tensor in placing.tensors}
    value = placing.place(zeros if encoded is None else encoded)
    error = discrete_gaussian_draws(DEVIATION**2, placing.size, stream)
    rows = np.empty((placing.encoding.primes, placing.size), np.int64)
    for row, q in enumerate(placing.encoding.moduli):
        rows[row] = _scaled(value, placing.encoding, q) + error
        rows[row] += product(public_polynomials(placing, exchange, row), key, q).reshape(-1)
        rows[row] += uniform(placing.size, stream, q) * np.int64(encoded is None)
        rows[row] = residues(rows[row], q)
    return planes(rows)


def _scaled(value: Array, encoding: Encoding, q: int) -> Array:
    """Multiply integers by the scale; modulo q where they have up to 64 bits."""
    if encoding.primes == 1:
        return np.asarray(value << np.int64(encoding.scale_bits))
    return multiply(residues(value, q), 1 << encoding.scale_bits, q)


def decrypt(totals: Sequence[Array], placing: Placing, key: Array, exchange: bytes) -> dict[str, Array]:
    """Decrypt a sum: int64 tensors by name.

    Args:
        totals: the sum of the y, in three parts.
        placing: where entries stand.
        key: S modulo the first prime, int64 (n,).
        exchange: `exchange_digest`.
    """
    encoding, rows = placing.encoding, []
    for row, q in enumerate(encoding.moduli):
        mask = product(public_polynomials(placing, exchange, row), centred(key), q).reshape(-1)
        low, middle, high = (part[row] for part in totals)
        rows.append(residues(joined(low, middle, high, q) - mask, q))
    half, bits = np.int64(1) << np.int64(encoding.scale_bits - 1), np.int64(encoding.scale_bits)
    if encoding.primes == 1:
        return placing.read((centred(rows[0]) + half) >> bits)
    upper, lower = _lifted(*rows)
    return placing.read((upper << (np.int64(MODULUS_BITS) - bits)) + ((lower + half) >> bits))


def _lifted(first: Array, second: Array) -> tuple[Array, Array]:
    """Return the integers from -q / 2 to q / 2 with these residues (Garner), as high * 2^54 + low, 0 <= low < 2^54."""
    q1, q2 = MODULI
    apart = residues(second - first, q2)
    times = centred(multiply(apart, pow(q1, -1, q2), q2), q2)  # the integer is first + q1 times
    width, mask = np.int64(27), np.int64(2**27 - 1)
    a1, a0 = np.int64(q1 >> 27), np.int64(q1 & (2**27 - 1))
    b1, b0 = times >> width, times & mask
    middle = a1 * b0 + a0 * b1
    low = a0 * b0 + first + ((middle & mask) << width)
    return a1 * b1 + (middle >> width) + (low >> np.int64(MODULUS_BITS)), low & np.int64(2**MODULUS_BITS - 1)


def public_polynomials(placing: Placing, exchange: bytes, row: int) -> Array:
    """Derive A modulo the prime of this row, int64 (blocks, n)."""
    q = placing.encoding.moduli[row]
    drawn = public_uniform(placing.size, "one message: A", exchange.hex(), row, q=q)
    return drawn.reshape(placing.blocks, placing.encoding.degree)


def added(totals: Sequence[Array], parts: Sequence[Array]) -> tuple[Array, ...]:
    """Return the running sums, uint64, with one upload's parts added."""
    if not totals:
        return tuple(part.astype(np.uint64) for part in parts)
    return tuple(total + part for total, part in zip(totals, parts, strict=True))


def taken_away(totals: Sequence[Array], parts: Sequence[Array]) -> tuple[Array, ...]:
    """Return the running sums without one upload's parts."""
    return tuple(total - part for total, part in zip(totals, parts, strict=True))
