"""Where a sequence ends, from its last terms: reduced rank extrapolation (Mesina 1977; Eddy 1979)."""

from __future__ import annotations

import numpy as np

from securefed._tensors import Array

_FLOOR = 1e-8
"""Differences of this part of the largest are round-off."""


def limit(terms: Array) -> Array:
    """(entries,) limit of (terms, entries), not all alike, that converge linearly, in terms - 2 modes or fewer.

    The affine combination of terms whose change to the same of the terms that follow is least, and then those: exact
    where each difference is a fixed matrix times the one before.
    """
    left, sizes, _ = np.linalg.svd(np.diff(terms, axis=0), full_matrices=False)
    weights = left @ (left.sum(axis=0) / (sizes**2 + (_FLOOR * sizes[0]) ** 2))
    return np.asarray(weights @ terms[1:] / weights.sum())
