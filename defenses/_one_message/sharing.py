"""Share a vector over the field among a committee, and prove to each member that the shares fit together.

Shamir's scheme: the j-th entry of the vector is the constant term of a random polynomial P_j of degree c, and member k
gets P_j(k), k = 1, ..., m. Any c shares are uniform; c + 1 determine the vector.

A dealer could give out values that lie on no polynomial of degree c. They would spoil the committee's sum, and make
honest members look as if they had falsified theirs. So the dealer also shares `TESTS` random entries M_t, and publishes
the polynomials

    T_t = M_t + sum_j rho_tj P_j,   rho from a hash of all encrypted shares (Fiat, Shamir 1986),

c + 1 coefficients each, and member k checks that its own shares satisfy T_t(k) = M_t(k) + sum_j rho_tj P_j(k). As M_t
is uniform, T_t tells nothing of the vector. If honest members' shares of some entry lie on no polynomial of degree c, a
random combination of them lies on one with probability 1 / q for each test: 2^-108 for each hash that the dealer tries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from securefed._sampling.random_stream import SecureRandomStream
from securefed._tensors import Array
from securefed.defenses._one_message.parameters import MODULUS
from securefed.defenses._one_message.ring import dot, public_uniform, residues, uniform

TESTS: Final = 2
MOST_MEMBERS: Final = 128
"""Horner's scheme multiplies elements of 54 bits by a point below 2^8, which fits 63 bits."""


def deal(secret: Array, degree: int, stream: SecureRandomStream) -> Array:
    """Draw the polynomials of a vector and of the tests' masks.

    Args:
        secret: the vector, int64 (entries,) in 0, ..., q - 1.
        degree: c.
        stream: secret randomness.

    Returns:
        Their coefficients, int64 (c + 1, entries + `TESTS`), the constant terms first.
    """
    entries = secret.size + TESTS
    drawn = uniform((degree + 1) * entries, stream).reshape(degree + 1, entries)
    drawn[0, : secret.size] = secret
    return drawn


def values_at(polynomials: Array, points: Sequence[int]) -> Array:
    """Evaluate polynomials at small points by Horner's scheme.

    Args:
        polynomials: coefficients, int64 (c + 1, entries), the constant terms first.
        points: from 0 to `MOST_MEMBERS`.

    Returns:
        The values, int64 (points, entries).
    """
    at = np.asarray(points, np.int64)[:, None]
    value = np.repeat(polynomials[-1:], len(points), axis=0)
    for row in polynomials[-2::-1]:
        value = residues(value * at + row)
    return value


def published_tests(polynomials: Array, seed: bytes) -> Array:
    """Compute the published polynomials T_t, int64 (`TESTS`, c + 1); `seed` is the hash of all encrypted shares."""
    vector, masks = polynomials[:, :-TESTS], polynomials[:, -TESTS:]
    weights = _weights(seed, vector.shape[1])
    return residues(masks.T + np.stack([dot(row, vector) for row in weights]))


def share_passes(share: Array, point: int, published: Array, seed: bytes) -> bool:
    """Tell whether a member's share satisfies the dealer's test.

    Args:
        share: int64 (entries + `TESTS`,).
        point: the member's point.
        published: what `published_tests` returned, as it arrived.
        seed: the hash of all encrypted shares.
    """
    if published.min() < 0 or published.max() >= MODULUS:
        return False
    combined = residues(share[-TESTS:] + dot(_weights(seed, share.size - TESTS), share[:-TESTS]))
    return bool(np.array_equal(values_at(published.T, [point])[0], combined))


def _weights(seed: bytes, entries: int) -> Array:
    return public_uniform(TESTS * entries, "low degree test", seed.hex()).reshape(TESTS, entries)


def lagrange(points: Sequence[int], at: int) -> list[int]:
    """Compute the weights by which values at `points` give the value at `at`."""
    weights = []
    for x in points:
        above, below = 1, 1
        for y in points:
            if y != x:
                above, below = above * (at - y) % MODULUS, below * (x - y) % MODULUS
        weights.append(above * pow(below, -1, MODULUS) % MODULUS)
    return weights


def interpolated(points: Sequence[int], values: Array, at: int) -> Array:
    """Interpolate vectors of values, int64 (points, entries), at another point."""
    weights = np.asarray(lagrange(points, at), np.int64)
    return dot(weights, values.T)
