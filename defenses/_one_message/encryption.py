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
from securefed.defenses._one_message.parameters import DEGREE, DEVIATION
from securefed.defenses._one_message.plaintexts import Placing
from securefed.defenses._one_message.ring import centred, planes, product, public_uniform, residues, uniform

PLANES: Final = ("low", "middle", "high")
"""Fields of an upload that hold y, and their types."""
PLANE_TYPES: Final[tuple[np.dtype[Any], ...]] = (np.dtype("<u4"), np.dtype("<u2"), np.dtype(np.uint8))


def draw_key(stream: SecureRandomStream) -> Array:
    """Draw a client's s, int64 (n,), for one exchange."""
    return discrete_gaussian_draws(DEVIATION**2, DEGREE, stream)


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
        y, in the three parts of `ring.planes`.

    Raises:
        DataError, RangeRefused: as `Placing.place`.
    """
    nothing = np.zeros((), np.int64)
    zeros = {tensor.name: np.broadcast_to(nothing, tensor.shape) for tensor in placing.tensors}
    value = placing.place(zeros if encoded is None else encoded)
    value <<= np.int64(placing.encoding.scale_bits)
    value += discrete_gaussian_draws(DEVIATION**2, placing.size, stream)
    value += product(public_polynomials(placing, exchange), key).reshape(-1)
    value += uniform(placing.size, stream) * np.int64(encoded is None)
    return planes(residues(value))


def decrypt(total: Array, placing: Placing, key: Array, exchange: bytes) -> dict[str, Array]:
    """Decrypt a sum: int64 tensors by name.

    Args:
        total: the sum of the y, int64 (size,) in 0, ..., q - 1.
        placing: where entries stand.
        key: S modulo q, int64 (n,).
        exchange: `exchange_digest`.
    """
    mask = product(public_polynomials(placing, exchange), centred(key)).reshape(-1)
    scaled = centred(residues(total - mask))
    half = np.int64(1) << np.int64(placing.encoding.scale_bits - 1)
    return placing.read((scaled + half) >> np.int64(placing.encoding.scale_bits))


def public_polynomials(placing: Placing, exchange: bytes) -> Array:
    """Derive A, int64 (blocks, n)."""
    return public_uniform(placing.size, "one message: A", exchange.hex()).reshape(placing.blocks, DEGREE)


def added(totals: Sequence[Array], parts: Sequence[Array]) -> tuple[Array, ...]:
    """Return the running sums, uint64, with one upload's parts added."""
    if not totals:
        return tuple(part.astype(np.uint64) for part in parts)
    return tuple(total + part for total, part in zip(totals, parts, strict=True))


def taken_away(totals: Sequence[Array], parts: Sequence[Array]) -> tuple[Array, ...]:
    """Return the running sums without one upload's parts."""
    return tuple(total - part for total, part in zip(totals, parts, strict=True))
