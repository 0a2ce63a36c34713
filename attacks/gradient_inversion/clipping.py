"""Clipped contributions: what a client sends, scaled down to a norm that everybody knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed.attacks.gradient_inversion.dual import Dual
from securefed.tensors import Array

_TINY = 1e-300
_SETTLED = 1e-14
_TURNS = 30
_NONE = 1e-9
_HIDDEN = 1e-5


@dataclass(frozen=True)
class Clip:
    """Blocks of a contribution that are scaled together by min(1, norm / ||blocks||).

    Attributes:
        blocks: (part, where in its vector): weights or bias, or all of it.
        norm: the largest L2 norm that leaves a client.
        beyond: (members,) squared norm of what the blocks hold outside the coordinates that are simulated.
    """

    blocks: tuple[tuple[str, slice], ...]
    norm: float
    beyond: Array | float = 0.0

    @property
    def weights(self) -> tuple[str, ...]:
        """Parts whose weights are clipped."""
        return tuple(part for part, where in self.blocks if where.start is None)

    def factors(self, values: Mapping[str, Array]) -> Array:
        """(...) of contributions (..., parameters)."""
        squares = sum((np.sum(values[part][..., where] ** 2, axis=-1) for part, where in self.blocks), self.beyond)
        return np.minimum(1.0, self.norm / np.sqrt(np.maximum(squares, _TINY)))

    def __call__(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Contributions (..., parameters), arrays or dual numbers, as they leave."""
        values = {part: v.value if isinstance(v, Dual) else v for part, v in sent.items()}
        factors = self.factors(values)
        out = dict(sent)
        slope: Array | float = 0.0
        for part, where in self.blocks:  # of the squares, halved
            if isinstance(sent[part], Dual):
                slope = slope + np.sum(sent[part].slopes[..., where] * values[part][..., where], axis=-1)
        # dc = -c <m, dm> / ||m||^2, and ||m|| = norm / c
        slope = np.where(factors < 1.0, -(factors**3) / self.norm**2, 0.0) * slope
        for part, where in self.blocks:
            value = scaled(getattr(out[part], "value", out[part]), where, factors)
            if isinstance(sent[part], Dual):
                slopes = scaled(out[part].slopes, where, factors)
                slopes[..., where] += slope[..., None] * values[part][..., where]
                out[part] = Dual(value, slopes)
            else:
                out[part] = value
        return out


def clipped(sent: Mapping[str, Any], clips: Sequence[Clip]) -> dict[str, Any]:
    """Contributions as they leave, after all clips."""
    out = dict(sent)
    for clip in clips:
        out = clip(out)
    return out


def scaled(vectors: Array, where: slice, factors: Array | float) -> Array:
    """A copy with the entries at `where` times factors (...)."""
    factors = np.asarray(factors)
    shape = np.broadcast_shapes(vectors.shape[:-1], factors.shape)
    out = np.array(np.broadcast_to(vectors, (*shape, vectors.shape[-1])))
    out[..., where] *= factors[..., None]
    return out


def shares(rows: Array, known: Array, groups: Array, rank: int) -> Array:
    """How much of the part that is not data is left: (groups,) the s for which `rows - s known` has the given rank.

    Under a clip the sum of what any client would have sent, k, arrives as s k with one unknown s a round; the rest are
    combinations of the clients' few rows. Gauss-Newton on the manifold of that rank: with U and V the first singular
    vectors, a change of s counts as far as it sticks out of both. Where nothing sticks out, s stays 1.

    Args:
        rows, known: (blocks, outputs, features) messages and k of each round and part.
        groups: (blocks,) which s a block has; -1 where nothing was clipped, so that it is 1.
    """
    count = int(groups.max(initial=-1)) + 1
    out, features = np.ones(count), rows.shape[-1]
    sizes = np.linalg.norm(known, axis=(1, 2))
    present = sizes > _NONE * max(float(np.linalg.norm(rows)), _TINY)
    used = [g for g in range(count) if present[groups == g].any()]
    if not used or min(rows.shape[0] * rows.shape[1], features) <= rank:
        return out
    fixed = np.where((groups < 0)[:, None, None], known, 0.0)
    columns = np.stack([np.where((groups == g)[:, None, None], known, 0.0) for g in used])
    clear = rows[~present].reshape(-1, features)
    left = np.zeros((rows.shape[0] * rows.shape[1], 0))
    right = np.linalg.svd(clear, full_matrices=False)[2][:rank] if len(clear) else np.zeros((0, features))
    lengths = np.linalg.norm(columns.reshape(len(used), -1), axis=1)
    s = np.ones(len(used))
    for _ in range(_TURNS):
        gap = (rows - fixed - np.tensordot(s, columns, 1)).reshape(-1, features)
        outside = [_outside(one.reshape(-1, features), left, right).ravel() for one in (gap, *columns)]
        step = _least(np.stack(outside[1:], axis=1) / lengths, outside[0]) / lengths
        s = s + step
        if np.abs(step).max() <= _SETTLED:
            break
        gap = (rows - fixed - np.tensordot(s, columns, 1)).reshape(-1, features)
        left, _, right = np.linalg.svd(gap, full_matrices=False)
        left, right = left[:, :rank], right[:rank]
    out[used] = np.clip(s, 0.0, 1.0)
    return out


def _least(matrix: Array, target: Array) -> Array:
    """Least squares without the directions in which the matrix, of columns of length 1 or less, is next to nothing."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    kept = values > _HIDDEN
    return np.asarray(right[kept].T @ ((left.T @ target)[kept] / values[kept]))


def _outside(matrix: Array, left: Array, right: Array) -> Array:
    """What is left of a matrix without the directions `left` (rows, r) and `right` (r, columns)."""
    matrix = matrix - left @ (left.T @ matrix)
    return np.asarray(matrix - (matrix @ right.T) @ right)
