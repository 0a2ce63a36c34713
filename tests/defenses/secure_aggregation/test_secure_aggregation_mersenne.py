"""Dot products modulo 2^61 - 1, beside Python's integers."""

from __future__ import annotations

import numpy as np
import pytest

from securefed.defenses._secure_aggregation.mersenne import BITS, CHUNK, dot

PRIME = 2**61 - 1
LEAST, MOST = -(2**63), 2**63 - 1


def exact(words, values, bits=BITS) -> int:
    return sum((int(a) & (2**bits - 1)) * int(x) for a, x in zip(words, values, strict=True)) % (2**bits - 1)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1])
@pytest.mark.parametrize(("least", "most"), [(-(2**31), 2**31 - 1), (-(2**31), 2**31), (LEAST, MOST)])
def test_it_equals_python_integers(size, least, most) -> None:
    rng = np.random.default_rng(size)
    words = rng.integers(0, 2**64 - 1, size, np.uint64, endpoint=True)
    values = rng.integers(least, most, size, np.int64, endpoint=True)
    values[:2] = (least, most)[: size and 2][: values[:2].size]
    assert dot(words, values) == exact(words, values)


@pytest.mark.parametrize("word", [0, 1, PRIME, 2**61, 2**64 - 1])
@pytest.mark.parametrize("value", [0, 1, -1, 2**31 - 1, -(2**31), 2**31, PRIME, 2 * PRIME, LEAST, MOST])
def test_extremes_over_a_whole_chunk_stay_exact(word, value) -> None:
    """The sums of limbs are largest here; an inexact one would show in the lowest digits."""
    words, values = np.full(CHUNK, word, np.uint64), np.full(CHUNK, value, np.int64)
    assert dot(words, values) == CHUNK * (word & PRIME) * value % PRIME


@pytest.mark.parametrize("bits", [5, 7, 31])
def test_smaller_moduli(bits) -> None:
    rng = np.random.default_rng(bits)
    words, values = rng.integers(0, 2**64 - 1, 999, np.uint64), rng.integers(LEAST, MOST, 999)
    assert dot(words, values, bits) == exact(words, values, bits)
