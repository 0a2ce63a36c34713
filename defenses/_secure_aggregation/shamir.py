"""Share secrets by Shamir's scheme over a prime field (Shamir 1979), several secrets of 32 bytes at once.

A client of secure aggregation shares two secrets of each exchange with its neighbours (`share_dealing`); the server
combines the shares that they reveal (`unmasking`).

Secret s is the constant term of a polynomial f of degree t - 1 with random coefficients; the holder at point x
has f(x), and s = sum_x w_x f(x) for any t points x, with Lagrange's weights at 0, w_x = prod_{y != x} y / (y - x) over
the other points y. Fewer than t shares are independent of s. All arithmetic is modulo the prime 2^255 - 19.
The polynomials of all secrets are evaluated together: each takes its own range of bytes (a lane) of one long integer,
wide enough for its values before they are reduced modulo the prime. So one product of long integers, computed by C
code, serves all lanes.

Not promised: constant time (Python integers). Nor is a wrong share detected here: it leads to a wrong secret, and the
caller compares the secret with a commitment that its owner published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gmpy2
import numpy as np

from securefed._tensors import Array
from securefed.defenses._secure_aggregation.primitives import KEY_BYTES, key_stream

_WIDE = 48  # bytes reduced to one field element: the bias is below 2^-128


@dataclass(frozen=True)
class PrimeField:
    """The integers modulo a prime, with sharing over them.

    Attributes:
        prime: a prime of at most 32 bytes.
    """

    prime: int

    def element(self, wide: bytes) -> bytes:
        """Reduce 48 uniform bytes to an element, in 32 bytes little-endian."""
        return (int.from_bytes(wide, "little") % self.prime).to_bytes(KEY_BYTES, "little")

    def coefficients(self, seed: bytes, count: int) -> list[int]:
        """Draw `count` field elements from the key stream of `seed`, 32 secret bytes that are used once."""
        stream = key_stream(seed).update(bytes(count * _WIDE))
        return [int.from_bytes(stream[i : i + _WIDE], "little") % self.prime for i in range(0, len(stream), _WIDE)]

    def split(self, secrets: Sequence[bytes], coefficients: Sequence[int], holders: int) -> Array:
        """Compute shares at the points 1..holders, uint8 of shape (holders, secrets, 32).

        Args:
            secrets: field elements, 32 bytes little-endian each.
            coefficients: (t - 1) * len(secrets) random field elements, each used once.
            holders: number of points.
        """
        degree = len(coefficients) // len(secrets)
        # A lane holds f(x) before reduction: degree + 1 terms below prime * holders^degree, rounded up to whole bytes.
        lane = (self.prime.bit_length() + (degree + 1) * holders.bit_length()) // 8 + 2
        rows = [[int.from_bytes(secret, "little") for secret in secrets]]
        rows += [list(coefficients[k * len(secrets) : (k + 1) * len(secrets)]) for k in range(degree)]
        # rows[k] holds the coefficients of x^k of all secrets; each row becomes one integer, the highest power first.
        packed = [sum(value << (8 * lane * k) for k, value in enumerate(row)) for row in reversed(rows)]
        out = bytearray()
        for x in range(1, holders + 1):
            value = 0
            for coefficient in packed:  # Horner
                value = value * x + coefficient
            out += self._lanes(value, lane, len(secrets))
        return np.frombuffer(bytes(out), np.uint8).reshape(holders, len(secrets), KEY_BYTES)

    def combine(self, points: Sequence[int], shares: Array) -> list[bytes]:
        """Reconstruct the secrets, 32 bytes each, from exactly t shares of every one.

        Fewer or wrong shares give wrong secrets and no error: the caller checks what it reconstructed.

        Args:
            points: t different points x, from 1.
            shares: the values at these points, uint8 (t, secrets, 32).
        """
        count = shares.shape[1]
        # A lane holds sum_x w_x f(x) before reduction: t products of 32 by 32 bytes.
        lane = 2 * KEY_BYTES + len(points).bit_length() // 8 + 1
        padded = np.zeros((len(points), count, lane), np.uint8)
        padded[:, :, :KEY_BYTES] = shares
        rows = [int.from_bytes(row.tobytes(), "little") for row in padded]
        total = sum(weight * row for weight, row in zip(self._weights(points), rows, strict=True))
        flat = self._lanes(total, lane, count)
        return [flat[k * KEY_BYTES : (k + 1) * KEY_BYTES] for k in range(count)]

    def _weights(self, points: Sequence[int]) -> list[int]:
        """Compute the Lagrange weights at 0."""
        weights = []
        for x in points:
            above, below = 1, 1
            for y in points:
                if y != x:
                    above, below = above * y, below * (y - x)
            weights.append(int(above * gmpy2.invert(below, self.prime) % self.prime))
        return weights

    def _lanes(self, value: int, lane: int, count: int) -> bytes:
        """Reduce each of the `count` lanes of `lane` bytes modulo the prime, to 32 bytes."""
        data = value.to_bytes(lane * count, "little")
        values = (int.from_bytes(data[k * lane : (k + 1) * lane], "little") % self.prime for k in range(count))
        return b"".join(v.to_bytes(KEY_BYTES, "little") for v in values)


FIELD = PrimeField(2**255 - 19)
"""Its elements take 32 bytes, as long as the X25519 keys that are shared. (Any prime of that size would do.)"""
