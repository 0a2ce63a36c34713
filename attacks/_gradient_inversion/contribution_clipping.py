"""Simulate clipped contributions: what a client sends, scaled down to a public norm.

A contribution has one or several parts (`delta`; `dx` and `dc` in SCAFFOLD), each a copy of all parameters: weights,
and a bias. A block is the weights or the bias of a part. A clip replaces its blocks m by m min(1, norm / ||m||), with
||m|| the norm of all its blocks together. The contribution also holds a data-free part, which follows from what the
client received (momentum or a control variate). It is scaled too; `data_free_factors` estimates by how much. The
simulation of clients (`round_simulation`) applies the clips, with derivatives: a dual number is a vector with its
derivatives along several directions, called slopes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._tensors import Array
from securefed.attacks._gradient_inversion.dual_numbers import DualNumber

_TINY = 1e-300
"""Smallest divisor, in place of zero."""
_CONVERGED = 1e-14
"""Change of the factors, which are at most 1, at which Gauss-Newton ends: round-off."""
_MOST_ITERATIONS = 30
"""Most Gauss-Newton steps."""
_ABSENT = 1e-9
"""Norm, relative to the messages, below which the data-free part of a round counts as zero."""
_UNDETERMINED = 1e-5
"""Singular values below which least squares leaves a factor as it is."""


@dataclass(frozen=True)
class ContributionClip:
    """Blocks of a contribution that are scaled together by min(1, norm / ||blocks||).

    Attributes:
        blocks: pairs (part, where in its vector): the weights, the bias, or both.
        norm: largest L2 norm of the blocks together.
        beyond: (members,) squared norm of what the blocks hold outside the simulated coordinates; it counts in ||m||.
    """

    blocks: tuple[tuple[str, slice], ...]
    norm: float
    beyond: Array | float = 0.0

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the parts whose weights, and not only their bias, are clipped."""
        return tuple(part for part, where in self.blocks if where.start is None)

    def factors(self, values: Mapping[str, Array]) -> Array:
        """Return the factors (...) that scale contributions (..., parameters)."""
        squares = sum((np.sum(values[part][..., where] ** 2, axis=-1) for part, where in self.blocks), self.beyond)
        return np.minimum(1.0, self.norm / np.sqrt(np.maximum(squares, _TINY)))

    def __call__(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Clip contributions (..., parameters), arrays or dual numbers."""
        values = {part: v.value if isinstance(v, DualNumber) else v for part, v in sent.items()}
        factors = self.factors(values)
        out = dict(sent)
        # A clipped message is c m with c = norm / ||m||, so d(c m) = c dm + dc m with dc = -c <m, dm> / ||m||^2, where
        # ||m|| = norm / c.
        slope: Array | float = 0.0
        for part, where in self.blocks:  # <m, dm>
            if isinstance(sent[part], DualNumber):
                slope = slope + np.sum(sent[part].slopes[..., where] * values[part][..., where], axis=-1)
        slope = np.where(factors < 1.0, -(factors**3) / self.norm**2, 0.0) * slope  # dc
        for part, where in self.blocks:
            value = scaled(getattr(out[part], "value", out[part]), where, factors)
            if isinstance(sent[part], DualNumber):
                slopes = scaled(out[part].slopes, where, factors)
                slopes[..., where] += slope[..., None] * values[part][..., where]
                out[part] = DualNumber(value, slopes)
            else:
                out[part] = value
        return out


def clipped(sent: Mapping[str, Any], clips: Sequence[ContributionClip]) -> dict[str, Any]:
    """Apply all clips to contributions."""
    out = dict(sent)
    for clip in clips:
        out = clip(out)
    return out


def scaled(vectors: Array, where: slice, factors: Array | float) -> Array:
    """Return a copy of `vectors` with the entries at `where` multiplied by factors (...)."""
    factors = np.asarray(factors)
    shape = np.broadcast_shapes(vectors.shape[:-1], factors.shape)
    out = np.array(np.broadcast_to(vectors, (*shape, vectors.shape[-1])))
    out[..., where] *= factors[..., None]
    return out


def data_free_factors(rows: Array, known: Array, groups: Array, rank: int) -> Array:
    """Estimate how far clipping scaled down the known, data-free part of each round's messages.

    A clip turns the data-free part k_b of block b of a round's messages into s_g k_b, with an unknown factor s_g for
    the group g of blocks that it clips together. The rest of the messages are combinations of the clients' few rows, so
    that the stacked blocks, gap(s) = rows - sum_g s_g k_g, have a low rank. Gauss-Newton finds such an s: with U and V
    the leading left and right singular vectors of gap(s), matrices of the same rank near it agree with it to first
    order but for their columns in U's span and their rows in V's. So the change ds solves, by least squares,

        (I - U U^T) (gap(s) - sum_g ds_g k_g) (I - V^T V) = 0.

    A factor on which this does not depend stays 1.

    Args:
        rows: (blocks, outputs, features) weights of the sums, a block for each round and part.
        known: (blocks, outputs, features) their data-free parts k.
        groups: (blocks,) index of the factor of each block; -1 if it was not clipped.
        rank: largest rank of the rest, the number of the clients' rows.

    Returns:
        (groups,) factors between 0 and 1.
    """
    count = int(groups.max(initial=-1)) + 1
    out, features = np.ones(count), rows.shape[-1]
    sizes = np.linalg.norm(known, axis=(1, 2))
    present = sizes > _ABSENT * max(float(np.linalg.norm(rows)), _TINY)
    used = [g for g in range(count) if present[groups == g].any()]
    if not used or min(rows.shape[0] * rows.shape[1], features) <= rank:
        return out
    fixed = np.where((groups < 0)[:, None, None], known, 0.0)  # data-free parts that were not clipped
    columns = np.stack([np.where((groups == g)[:, None, None], known, 0.0) for g in used])  # k_g, zero in other blocks
    clear = rows[~present].reshape(-1, features)  # blocks without a data-free part show V at once, as a start
    left = np.zeros((rows.shape[0] * rows.shape[1], 0))
    right = np.linalg.svd(clear, full_matrices=False)[2][:rank] if len(clear) else np.zeros((0, features))
    lengths = np.linalg.norm(columns.reshape(len(used), -1), axis=1)
    s = np.ones(len(used))
    for _ in range(_MOST_ITERATIONS):
        gap = (rows - fixed - np.tensordot(s, columns, 1)).reshape(-1, features)
        outside = [_outside(one.reshape(-1, features), left, right).ravel() for one in (gap, *columns)]
        step = _least_squares(np.stack(outside[1:], axis=1) / lengths, outside[0]) / lengths
        s = s + step
        if np.abs(step).max() <= _CONVERGED:
            break
        gap = (rows - fixed - np.tensordot(s, columns, 1)).reshape(-1, features)
        left, _, right = np.linalg.svd(gap, full_matrices=False)
        left, right = left[:, :rank], right[:rank]
    out[used] = np.clip(s, 0.0, 1.0)
    return out


def _least_squares(matrix: Array, target: Array) -> Array:
    """Solve least squares without the directions of small singular values; columns have length 1 or less."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    kept = values > _UNDETERMINED
    return np.asarray(right[kept].T @ ((left.T @ target)[kept] / values[kept]))


def _outside(matrix: Array, left: Array, right: Array) -> Array:
    """Project a matrix off the column space of `left` (rows, r) and the row space of `right` (r, columns)."""
    matrix = matrix - left @ (left.T @ matrix)
    return np.asarray(matrix - (matrix @ right.T) @ right)
