"""Open a sum from the members' shares although some are wrong, and name the members that sent them.

A polynomial's values at m points are a codeword of a Reed-Solomon code. Gao's decoder (2003) finds the polynomial of
degree c from m values of which (m - c - 1) / 2 may be wrong. The members' shares of all entries are wrong in the same
places, so one random combination of the entries is decoded; then every entry is compared, at every member.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securefed._sampling.random_stream import SecureRandomStream
from securefed._tensors import Array
from securefed.defenses._one_message.parameters import MODULUS
from securefed.defenses._one_message.ring import dot, uniform
from securefed.defenses._one_message.sharing import interpolated
from securefed.errors import TooFewSurvivors

Polynomial = list[int]
"""Coefficients in the field, the constant term first, without zeros at the end; empty for 0."""


def opened(points: Sequence[int], shares: Array, degree: int) -> tuple[Array, tuple[int, ...]]:
    """Reconstruct a vector from shares, some of which may be wrong.

    Args:
        points: the members' points.
        shares: their shares, int64 (members, entries).
        degree: c; up to (members - c - 1) / 2 wrong shares are corrected.

    Returns:
        The vector (entries,), and the points of the members whose shares were wrong.

    Raises:
        TooFewSurvivors: more shares are wrong than can be corrected.
    """
    weights = uniform(shares.shape[1], SecureRandomStream())
    combined = [int(value) for value in dot(weights, shares)]
    found = decode(points, combined, degree)
    if found is None:
        raise TooFewSurvivors(
            f"of {len(points)} members' shares more than {(len(points) - degree - 1) // 2} are wrong; the sum is not "
            "opened"
        )
    right = [k for k, x in enumerate(points) if value_of(found, x) == combined[k]]
    basis = right[: degree + 1]
    at, values = [points[k] for k in basis], shares[basis]
    wrong = tuple(x for k, x in enumerate(points) if not np.array_equal(interpolated(at, values, x), shares[k]))
    if len(wrong) > (len(points) - degree - 1) // 2:  # by chance 1 / q: the combination hid a wrong share
        raise TooFewSurvivors("the members' shares do not combine; the sum is not opened")
    return interpolated(at, values, 0), wrong


def decode(points: Sequence[int], values: Sequence[int], degree: int) -> Polynomial | None:
    """Find the polynomial of at most this degree that differs from the values in fewest places (Gao 2003, algorithm 1).

    Args:
        points: distinct points.
        values: values in the field, of which (points - degree - 1) / 2 may be wrong.
        degree: largest degree.

    Returns:
        The polynomial; `None` where every polynomial of this degree differs in more places.
    """
    vanishing: Polynomial = [1]
    for x in points:
        vanishing = _times(vanishing, [-x % MODULUS, 1])
    before, rest = vanishing, _interpolate(points, values)
    older: Polynomial = []
    newer: Polynomial = [1]
    while 2 * (len(rest) - 1) >= len(points) + degree + 1:  # degree of the remainder, by Euclid's algorithm
        quotient, following = _divide(before, rest)
        before, rest = rest, following
        older, newer = newer, _minus(older, _times(quotient, newer))
    found, remainder = _divide(rest, newer)
    return found if not remainder and len(found) <= degree + 1 else None


def value_of(polynomial: Polynomial, x: int) -> int:
    """Evaluate a polynomial."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % MODULUS
    return value


def _interpolate(points: Sequence[int], values: Sequence[int]) -> Polynomial:
    """Return the polynomial through all values (Newton's form, one point after the other)."""
    out: Polynomial = []
    basis: Polynomial = [1]
    for x, value in zip(points, values, strict=True):
        missing = (value - value_of(out, x)) * pow(value_of(basis, x), -1, MODULUS) % MODULUS
        out = _minus(out, [-missing * coefficient % MODULUS for coefficient in basis])
        basis = _times(basis, [-x % MODULUS, 1])
    return out


def _times(left: Polynomial, right: Polynomial) -> Polynomial:
    out = [0] * max(len(left) + len(right) - 1, 0)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            out[i + j] = (out[i + j] + a * b) % MODULUS
    return _trimmed(out)


def _minus(left: Polynomial, right: Polynomial) -> Polynomial:
    size = max(len(left), len(right))
    padded = zip(left + [0] * (size - len(left)), right + [0] * (size - len(right)), strict=True)
    return _trimmed([(a - b) % MODULUS for a, b in padded])


def _divide(numerator: Polynomial, denominator: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return quotient and remainder."""
    rest, inverse = list(numerator), pow(denominator[-1], -1, MODULUS)
    quotient = [0] * max(len(rest) - len(denominator) + 1, 0)
    for place in range(len(quotient) - 1, -1, -1):
        factor = rest[place + len(denominator) - 1] * inverse % MODULUS
        quotient[place] = factor
        for k, coefficient in enumerate(denominator):
            rest[place + k] = (rest[place + k] - factor * coefficient) % MODULUS
    return _trimmed(quotient), _trimmed(rest)


def _trimmed(polynomial: Polynomial) -> Polynomial:
    while polynomial and not polynomial[-1]:
        polynomial.pop()
    return polynomial
