"""Find the directions q for which L q has many zeros: how `row_separation` tells the rows of a batch apart.

There a gradient gives a known L (outputs, B) with D^T = L Q for an unknown Q (B, B), and each column of D^T is zero at
the outputs whose ReLU is inactive for one row. The search minimises sum_o |(L q)_o| over unit vectors q, which favours
zeros, by iteratively reweighted least squares from many starts (Qu, Sun and Wright 2014; as an attack on gradients:
SPEAR++, arXiv 2510.24200, which learns a dictionary). Two things make it work where only half of the entries are zero.
Most starts are drawn near the leading singular vectors of L, since the slopes of rows of one class resemble each other.
And once the direction of a row is known, the outputs that are inactive for it form a problem with B - 1 rows, whose
directions are right up to a multiple of the known one. It fails where outputs are few for the rows: figures stand in
docs/attacks-networks.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from securefed._tensors import Array

_ITERATIONS = 30
"""Reweighted least squares from each start. Of 20 batches of 12 and of 16 digits behind 200 outputs 15 iterations solve
6 and 0, 30 solve 18 and 4, 60 solve 16 and 5 in nearly twice the time."""
_WEIGHTS = 0.5
"""Power of the exponential variables that weigh the outputs."""
_BATCH = 32
"""Starts that are computed together."""
_TOGETHER = 1 << 12
"""Largest number of entries with which the systems of all starts are one product. At 200 entries one takes half the
time of one product a start, at 1600 three quarters, at 6400 as long, at 64,000 twice as long; the bits are the same."""
_DEFLATED = 0.8
"""Share of the batches that leave out a row that is already known; others find rows of which no start is near."""
_FLOOR_RANK = 4
"""Entries smaller than the (4 B)-th smallest, but at most a quarter of them, are treated alike in a reweighting: else a
chance zero, of infinite weight, would hold the search."""
_NEAR_ZERO = 1e-5
"""Entries of L q below this share of their root mean square are zeros before the direction is refined. At 1e-3 entries
that are small by chance are among them, and the refined direction is off."""
_COMPLETE_AFTER = 2
"""The search has found all directions when the starts reach this multiple of those at which the last was found."""
_ALIKE = 0.6
"""A set whose last direction has a smaller share of the median number of zeros may hold a mixture of two rows, which
has half of a row's zeros: the search goes on to its last start."""
_HOPELESS = 256
"""Starts without any direction after which the search ends: the layer's outputs are cut off by no ReLU."""
_ZEROS = 0.05
"""Share of the outputs at which a direction must vanish, beyond those that it was solved for; at least 4 outputs."""
_SHARE = 0.2
"""A direction that vanishes at fewer outputs than this share of the best one is taken for a mixture of rows. At .5 that
also refuses rows for which few outputs are inactive: of FLAME's messages of 3 and 6 digits behind 32 units, two batches
are then not separated that .2 and .1 separate.
"""


@dataclass
class SparseColumns:
    """The search for directions q, (rows,), with many zeros in L q: the columns of Q up to their lengths.

    Attributes:
        left: L, (outputs, rows).
        noise: size of the rounding errors in L.
        rows: B.
        tolerance: largest entry of L q that counts as zero.
        needed: number of zeros that a direction must have; it grows with the best direction found.
        found: the directions so far, each with its zeros (outputs,).
    """

    left: Array
    noise: float
    rows: int = field(init=False)
    tolerance: float = field(init=False)
    needed: int = field(init=False)
    found: list[tuple[Array, Array]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.rows = self.left.shape[1]
        typical = float(np.median(np.linalg.norm(self.left, axis=1)))
        self.tolerance = max(3.0 * self.noise, 1e-9 * typical)
        # More zeros than the outputs that the direction was made from, and than chance.
        self.needed = self.rows + max(4, int(_ZEROS * len(self.left)))

    def search(self, rng: np.random.Generator, starts: int) -> Array | None:
        """Return (rows, rows) with one direction in each column, or `None` where fewer are found.

        Args:
            rng: draws the starting points.
            starts: most starting points.
        """
        tried = starts_at_change = 0
        while tried < (starts if self.found else min(starts, _HOPELESS)):
            tried += _BATCH
            deflate = self.found and rng.random() < _DEFLATED
            for direction in self._deflated(rng) if deflate else self._free(rng):
                size = np.abs(self.left @ direction)
                near_zero = max(_NEAR_ZERO * np.sqrt(np.mean(size**2)), 3.0 * self.tolerance)
                if self._add(size <= near_zero):
                    starts_at_change = tried
            if tried >= _COMPLETE_AFTER * starts_at_change and (best := self._best(_ALIKE)) is not None:
                return best
        return self._best()

    def _free(self, rng: np.random.Generator) -> Array:
        """Return candidates (batch, rows) of all rows."""
        return _sparse_combinations(self.left, self.tolerance, rng)

    def _deflated(self, rng: np.random.Generator) -> Array:
        """Return candidates (batch, rows) among the rows other than one, drawn from those that are known."""
        known, inactive = self.found[int(rng.integers(len(self.found)))]
        candidates = _sparse_combinations(self.left[inactive], self.tolerance, rng)
        active = self.left[~inactive]
        # an output o at which L_o (q - a q_k) = 0 has a = L_o q / L_o q_k: the right a is the ratio of most outputs
        ratios = (candidates @ active.T) / (active @ known)
        multiples = [_most_frequent(values, max(8, len(values) // 10)) for values in ratios]
        return np.asarray(candidates - np.outer(multiples, known))

    def _best(self, alike: float = 0.0) -> Array | None:
        """Return (rows, rows) the directions with most zeros, `None` where they are too few or not independent.

        Args:
            alike: the last of them must have this share of the median number of zeros.
        """
        if len(self.found) < self.rows:
            return None
        leading = sorted(self.found, key=lambda item: -item[1].sum())[: self.rows]
        zeros = [int(where.sum()) for _, where in leading]
        if zeros[-1] < alike * np.median(zeros):
            return None
        best = np.stack([q for q, _ in leading], axis=1)
        return best if np.linalg.cond(best) < 1e7 else None

    def _add(self, approximate_zeros: Array) -> bool:
        """Refine a direction on its approximate zeros and keep it, unless it is a mixture of rows.

        A mixture of rows k and l is zero where outputs are inactive for both: its zeros lie within those of k alone,
        except for the few outputs that it was solved for.

        Args:
            approximate_zeros: (outputs,) where the new direction vanishes.

        Returns:
            Whether the direction was kept.
        """
        if approximate_zeros.sum() < self.rows or any(self._within(approximate_zeros, old) for _, old in self.found):
            return False
        # The direction is the last right singular vector of L at these outputs; that of the R factor is the same.
        _, values, directions = np.linalg.svd(np.linalg.qr(self.left[approximate_zeros], mode="r"))
        direction = directions[-1]
        if self.rows > 1 and values[-2] <= 10.0 * self.tolerance * np.sqrt(np.count_nonzero(approximate_zeros)):
            return False  # these outputs are active for fewer rows, so that many directions vanish on them
        zeros = np.abs(self.left @ direction) <= self.tolerance
        if zeros.sum() < self.needed or any(self._within(zeros, old) for _, old in self.found):
            return False
        self.found = [(q, old) for q, old in self.found if not self._within(old, zeros)] + [(direction, zeros)]
        # All rows have about as many inactive outputs: a direction with far fewer zeros is a mixture.
        self.needed = max(self.needed, int(_SHARE * np.count_nonzero(zeros)))
        return True

    def _within(self, zeros: Array, others: Array) -> bool:
        """Return whether `zeros` lie within `others`, except for the outputs that a mixture was solved for."""
        return int(np.count_nonzero(zeros & ~others)) < self.rows


def _sparse_combinations(matrix: Array, tolerance: float, rng: np.random.Generator) -> Array:
    """Minimise sum_o |(M q)_o| over unit vectors from `_BATCH` starts.

    Args:
        matrix: M, (outputs, columns); its rank may be smaller.
        tolerance: singular values up to this times sqrt(outputs) count as zero.
        rng: draws the starting points.

    Returns:
        (batch, columns) the combinations q.
    """
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    rank = max(1, int(np.sum(values > tolerance * np.sqrt(len(matrix)))))
    left = left[:, :rank]
    # Outputs count alike, whatever their size, up to random weights: these move the minima, so that rows which one
    # batch of starts cannot reach are reached by another.
    sizes = np.linalg.norm(left, axis=1, keepdims=True)
    left = left * rng.exponential(size=sizes.shape) ** _WEIGHTS / np.maximum(sizes, np.finfo(float).tiny)
    # Coordinates of a start decay along the singular vectors, over 1.5 of them to all.
    decay = np.exp(rng.uniform(np.log(1.5), np.log(max(rank, 2)), size=(_BATCH, 1)))
    points = rng.normal(size=(_BATCH, rank)) * np.exp(-np.arange(rank) / decay)
    for _ in range(_ITERATIONS):
        points = _reweighted_step(left, points / np.linalg.norm(points, axis=1, keepdims=True))
    return np.asarray(points @ (right[:rank] / values[:rank, None]))


def _reweighted_step(left: Array, points: Array) -> Array:
    """Return M^-1 p for each point p, where M = sum_o w_o l_o l_o^T and w_o = 1 / |l_o p|, with a floor under |l_o p|.

    It is a step of inverse iteration towards the unit vector of smallest p^T M p = sum_o w_o (l_o p)^2, which is
    sum_o |l_o p| where the weights are those of p itself.

    Args:
        left: the l_o, (outputs, rank).
        points: (batch, rank).
    """
    outputs, rank = left.shape
    sizes = np.abs(points @ left.T)
    # the floor's place among the sorted sizes: at least `rank`, as rank - 1 entries can be made 0 at will
    kept = min(max(rank, min(_FLOOR_RANK * rank, outputs // 4)), outputs - 1)
    floors = 0.5 * np.partition(sizes, kept, axis=1)[:, [kept]] + np.finfo(float).tiny
    weights = 1.0 / np.hypot(sizes, floors)
    weights /= weights.max(axis=1, keepdims=True)
    if left.size <= _TOGETHER:
        systems = left.T @ (weights[..., None] * left)
    else:
        systems = np.stack([left.T @ (row[:, None] * left) for row in weights])
    ridge = 1e-14 * np.trace(systems, axis1=1, axis2=2)  # keeps a system regular whose null vector is the direction
    systems += ridge[:, None, None] * np.eye(rank)
    return np.linalg.solve(systems, points[..., None])[..., 0]


def _most_frequent(values: Array, count: int) -> float:
    """Return the value around which the narrowest group of `count` values lies."""
    ordered = np.sort(values)
    count = min(count, len(ordered))
    widths = ordered[count - 1 :] - ordered[: len(ordered) - count + 1]
    first = int(np.argmin(widths))
    return float(np.median(ordered[first : first + count]))
