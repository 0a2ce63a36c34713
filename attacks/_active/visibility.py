"""Measure how unusual a broadcast looks to a client, by what any client can compute without its data.

A server that chooses its broadcasts, in order to read clients' rows, sends models that training would not reach. A
client may refuse broadcasts by these numbers, and its refusal shows nothing about its rows. The library itself refuses
nothing by them: a user's client calls `broadcast_signs` and sets the limits. None of the numbers proves that a server
deviates: honest training moves them too, and a server that knows the limits can stay within them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array, Tensors


@dataclass(frozen=True)
class BroadcastSigns:
    """Statistics of a broadcast that a client can compute; all are infinite where an entry is no finite number.

    Attributes:
        change: norm of the difference from the broadcast before, over the norm of that one; infinite after zeros, and
            where the two have no tensor in common.
        alike: mean size of the cosine between neighbouring rows of a matrix, of the matrix where it is largest; 1 where
            all rows look in one direction, about 1 / sqrt(width) where they are independent.
        largest: largest absolute entry.
    """

    change: float
    alike: float
    largest: float


def broadcast_signs(broadcast: Tensors, before: Tensors) -> BroadcastSigns:
    """Compare a broadcast with the one before it.

    Args:
        broadcast: the tensors that a client received.
        before: those that it received in the round before, or the initial model that the terms imply.
    """
    names = sorted(set(broadcast) & set(before))
    if not all(np.isfinite(value).all() for value in (*broadcast.values(), *before.values())):
        return BroadcastSigns(np.inf, np.inf, np.inf)
    moved = sum(float(np.sum((np.asarray(broadcast[n], float) - before[n]) ** 2)) for n in names)
    size = sum(float(np.sum(np.asarray(before[n], float) ** 2)) for n in names)
    return BroadcastSigns(
        change=(moved / size) ** 0.5 if size > 0 else (0.0 if names and moved == 0 else np.inf),
        alike=max((_alike(np.asarray(value, float)) for value in broadcast.values()), default=0.0),
        largest=max((float(np.abs(value).max(initial=0.0)) for value in broadcast.values()), default=0.0),
    )


def _alike(matrix: Array) -> float:
    """Return the mean size of the cosines between neighbouring rows; 0 for what is no matrix of several rows."""
    if matrix.ndim != 2 or min(matrix.shape) < 2:
        return 0.0
    lengths = np.linalg.norm(matrix, axis=1)
    rows = matrix[lengths > 0] / lengths[lengths > 0, None]
    return float(np.abs(np.sum(rows[1:] * rows[:-1], axis=1)).mean()) if len(rows) > 1 else 0.0
