"""S from blocks (I - U U^T) S U that noise of known size, or a sum of unlike clients, has disturbed.

S U but for U^T S U, which is taken from the estimate itself, turn by turn, while S is shrunk by what the error may be
(`gram/shrinkage`). What no block shows, a multiple of I above all, comes out as small as S >= 0 allows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securefed.attacks.gram.shrinkage import NoisyProducts, shrunk
from securefed.tensors import Array

_TURNS, _STEPS = 30, 3
_FURTHER = 0.5
_NONE = np.zeros(0)


def from_blocks(starts: Sequence[Array], blocks: Sequence[Array], error: float, rows: int) -> Array:
    """S, of rank at most `rows`.

    Args:
        starts: U_k, orthonormal.      error: standard deviation of a block's entry, positive.
    """
    bases, seen = np.stack(starts), np.stack(blocks)
    errors = np.full(len(bases), error)
    inner, found = np.zeros((len(bases), bases.shape[2], bases.shape[2])), None
    for _ in range(_TURNS):
        completed = NoisyProducts(bases, seen + bases @ inner, errors, _NONE, _NONE)
        found = shrunk(completed, rows, start=found, steps=_STEPS, relax=False)
        now = bases.mT @ (found.gram @ bases)
        inner = now + _FURTHER * (now - inner)
    assert found is not None
    return found.gram
