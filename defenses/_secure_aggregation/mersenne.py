"""Compute dot products modulo p = 2^61 - 1, without a Python step per entry.

The tags by which clients of secure aggregation check the sum that the server announces are such products
(`verification`). Smaller moduli 2^b - 1 are for tests: there the chance of an undetected change, 2^-60 at full size, is
large enough to be measured.

Both factors are cut into limbs: a = A_0 + A_1 2^21 + A_2 2^41 of at most 21 bits each, and x = sum_l X_l 2^(16 l) of 16
bits each. A product of limbs is below 2^37, so a sum of 2^15 of them is below 2^52: exact in float64, where NumPy
multiplies matrices fastest. One matrix product gives sum_j A_kj X_lj for all pairs (k, l), and their weighted sum, in
Python's integers, is the dot product.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from securefed._tensors import Array

BITS: Final = 61
CHUNK: Final = 1 << 15
"""Products of limbs in one float64 sum, which is then exact."""
_WORD_LIMBS: Final = ((0, 21), (21, 20), (41, 20))  # first bit and length: the lower 61 bits of a word
_VALUE_LIMB: Final = 16
_NARROW: Final = 2**31
"""Values from -2^31 to 2^31 - 1 need two limbs, others four."""


def dot(words: Array, values: Array, bits: int = BITS) -> int:
    """Compute sum_j a_j x_j mod (2^bits - 1).

    Args:
        words: a_j is the lower `bits` bits of a word (uint64).
        values: x_j (int64, signed), as many as words.
        bits: 61; smaller in tests, never larger.

    Returns:
        The product, from 0 to 2^bits - 2.
    """
    if bits < BITS:
        words = words & np.uint64(2**bits - 1)
    total = 0
    for start in range(0, values.size, CHUNK):
        total += _dot_chunk(words[start : start + CHUNK], values[start : start + CHUNK])
    return total % ((1 << bits) - 1)


def _dot_chunk(words: Array, values: Array) -> int:
    """Compute sum_j a_j x_j exactly, not reduced, for at most `CHUNK` entries; a_j is the lower 61 bits of a word."""
    left = np.empty((len(_WORD_LIMBS), values.size))
    for row, (first, length) in zip(left, _WORD_LIMBS, strict=True):
        row[:] = (words >> np.uint64(first)) & np.uint64(2**length - 1)
    narrow = values.min() >= -_NARROW and values.max() < _NARROW
    limbs = 2 if narrow else 4
    right = np.empty((limbs, values.size))
    for place in range(limbs - 1):
        right[place] = (values >> np.int64(_VALUE_LIMB * place)) & np.int64(2**_VALUE_LIMB - 1)
    right[-1] = values >> np.int64(_VALUE_LIMB * (limbs - 1))  # the highest limb has the sign
    products = left @ right.T  # [k, l] = sum_j A_kj X_lj
    return sum(
        int(products[row, place]) << (first + _VALUE_LIMB * place)
        for row, (first, _) in enumerate(_WORD_LIMBS)
        for place in range(limbs)
    )
