"""Simulate clipped contributions: what a client sends, scaled down to a public norm.

A contribution has one or several parts (`delta`; `dx` and `dc` in SCAFFOLD), each one vector of all parameters:
first the weights, last the bias. A block is the weights or the bias of a part. A clip replaces its blocks m by
m min(1, norm / ||m||), with ||m|| the norm of all its blocks together.

The simulation of clients (`round_simulation`) applies the clips to vectors (..., parameters), which are arrays or, with
their derivatives, a `DualArray`.

A contribution is a combination of the client's rows plus a data-free summand, which the attacker knows before clipping:
it follows from what the client received (momentum or a control variate). The clip scales both by one factor, which
depends on the rows and is unknown; `data_free_factors` estimates it from the observed sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._tensors import Array

_TINY = 1e-300
"""Smallest divisor, in place of zero."""
_CONVERGED = 1e-14
"""Change of the factors, which are at most 1, at which Gauss-Newton ends: round-off."""
_MOST_ITERATIONS = 30
"""Most Gauss-Newton steps."""
_ABSENT = 1e-9
"""Norm, relative to the messages, below which a data-free summand counts as zero."""
_UNDETERMINED = 1e-5
"""Singular values below which least squares does not move a factor; those of columns of length 1 or less."""


@dataclass(frozen=True)
class ContributionClip:
    """Blocks of a contribution that are scaled together by min(1, norm / ||blocks||).

    Attributes:
        blocks: pairs (part, where in its vector): the weights, slice(None, k), the bias, slice(k, None), or both.
        norm: largest L2 norm of the blocks together.
        beyond: (members,) squared norm of what the blocks hold outside the coordinates that are simulated, where the
            attack searches for the rows within a subspace; it counts in ||m||.
    """

    blocks: tuple[tuple[str, slice], ...]
    norm: float
    beyond: Array | float = 0.0

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the parts whose weights, and not only their bias, are clipped."""
        return tuple(part for part, where in self.blocks if where.start is None)  # a bias begins behind the weights

    def factors(self, values: Mapping[str, Any]) -> Any:
        """Return the factors (...) that scale contributions (..., parameters)."""
        squares = sum(
            (np.sum(np.square(values[part][..., where]), axis=-1) for part, where in self.blocks), self.beyond
        )
        return np.minimum(1.0, self.norm / np.sqrt(np.maximum(squares, _TINY)))

    def __call__(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Clip contributions (..., parameters), arrays or dual ones."""
        factors, out = self.factors(sent), dict(sent)
        for part, where in self.blocks:  # a part may have two blocks, weights and bias: `out` holds the first's result
            out[part] = scaled(out[part], where, factors)
        return out


def clipped(sent: Mapping[str, Any], clips: Sequence[ContributionClip]) -> dict[str, Any]:
    """Apply all clips to contributions."""
    out = dict(sent)
    for clip in clips:
        out = clip(out)
    return out


def scaled(vectors: Any, where: slice, factors: Any) -> Any:
    """Return `vectors` with the entries at `where` multiplied by factors (...)."""
    inside = np.zeros(vectors.shape[-1], bool)
    inside[where] = True
    return vectors * np.where(inside, factors[..., None], 1.0)


def data_free_factors(rows: Array, known: Array, groups: Array, rank: int) -> Array:
    """Estimate how far clipping scaled down the known, data-free summand of each round's messages.

    Only weights are used: the messages are stacked into one matrix, rows, a block of (outputs, features) for each round
    and part. With k_g the data-free summands of the blocks that clip g scales, zero in the other blocks, and an unknown
    factor s_g, the rest of the messages

        gap(s) = rows - (data-free summands that no clip scales) - sum_g s_g k_g

    has combinations of the clients' few rows as its rows, so its rank is low at the right s. Gauss-Newton finds it. Let
    U and V^T hold the leading left and right singular vectors of gap(s). A matrix of that rank changes, to first order,
    only by A V^T + U B with any A and B, which vanishes between the projections below. So the change ds solves, by
    least squares,

        (I - U U^T) (gap(s) - sum_g ds_g k_g) (I - V V^T) = 0.

    A factor on which this does not depend stays 1.

    Args:
        rows: (blocks, outputs, features) weights of the observed sums.
        known: (blocks, outputs, features) their data-free summands before clipping.
        groups: (blocks,) index of the clip that scaled each block; -1 if none did.
        rank: largest rank of the rest, the number of the clients' rows.

    Returns:
        (clips,) factors between 0 and 1.
    """
    count = int(groups.max(initial=-1)) + 1
    out, features = np.ones(count), rows.shape[-1]
    sizes = np.linalg.norm(known, axis=(1, 2))
    present = sizes > _ABSENT * max(float(np.linalg.norm(rows)), _TINY)
    used = [g for g in range(count) if present[groups == g].any()]
    if not used or min(rows.shape[0] * rows.shape[1], features) <= rank:
        return out
    fixed = np.where((groups < 0)[:, None, None], known, 0.0)  # data-free summands that no clip scales
    own = np.stack([groups == g for g in used]).astype(float)  # (used, blocks) whether clip g scales the block
    lengths = np.sqrt(own @ sizes**2)
    clear = rows[~present].reshape(-1, features)  # blocks without a data-free summand show V at once, as a start
    left = np.zeros((rows.shape[0] * rows.shape[1], 0))  # U; nothing is known of it at first. `right` is V^T
    right = np.linalg.svd(clear, full_matrices=False)[2][:rank] if len(clear) else np.zeros((0, features))
    s = np.ones(len(used))
    for _ in range(_MOST_ITERATIONS):
        gap = (rows - fixed - (s @ own)[:, None, None] * known).reshape(-1, features)
        step = _step(gap, known, left, right, own / lengths[:, None]) / lengths
        s = s + step
        if np.abs(step).max() <= _CONVERGED:
            break
        gap = (rows - fixed - (s @ own)[:, None, None] * known).reshape(-1, features)
        left, _, right = np.linalg.svd(gap, full_matrices=False)
        left, right = left[:, :rank], right[:rank]
    out[used] = np.clip(s, 0.0, 1.0)
    return out


def _step(gap: Array, known: Array, left: Array, right: Array, scaled_by: Array) -> Array:
    """Solve the projected equations for the change of the factors, without the directions of small singular values.

    The data-free summand of a clip is zero outside its own blocks. So with L the projection of its blocks off V, and
    L_b the part in block b, the products of two projected summands are

        <(I - U U^T) L_g, (I - U U^T) L_h> = [g = h] ||L_g||^2 - <U^T L_g, U^T L_h>,

    and no projected summand, as large as all messages, is formed. Their matrix has the squared singular values of the
    equations; it decides only in which directions a factor moves, and how far at once. Where the steps end does not
    depend on its rounding.

    Args:
        gap: (rows of all blocks, features) what the factors of now leave.
        known: (blocks, outputs, features) the data-free summands.
        left: (rows of all blocks, r) U.
        right: (r, features) V^T.
        scaled_by: (clips, blocks) for each clip 1 over the length of its summands at its own blocks, 0 at others.
    """
    outside = _outside(gap, left, right).reshape(known.shape)
    beside = known - (known @ right.T) @ right  # L
    of_blocks = left.reshape(*known.shape[:2], -1).transpose(0, 2, 1) @ beside  # (blocks, r, features) U_b^T L_b
    within = scaled_by @ of_blocks.reshape(len(known), -1)
    squares = np.sum(beside**2, axis=(1, 2))
    values, axes = np.linalg.eigh(np.diag(scaled_by**2 @ squares) - within @ within.T)
    kept = values > _UNDETERMINED**2
    slope = scaled_by @ np.sum(beside * outside, axis=(1, 2))
    return np.asarray(axes[:, kept] @ ((axes[:, kept].T @ slope) / values[kept]))


def _outside(matrix: Array, left: Array, right: Array) -> Array:
    """Project a matrix off the column space of `left` (rows, r) and the row space of `right` (r, columns)."""
    matrix = matrix - left @ (left.T @ matrix)
    return np.asarray(matrix - (matrix @ right.T) @ right)
