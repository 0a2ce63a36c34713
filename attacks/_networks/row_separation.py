"""Recover rows from the gradient of the first linear layer, without optimisation.

For z = W x + b the gradients of one batch are gW = D^T X and gb = D^T 1, with D (B, out) the slopes d loss / d z. So

  one row:        gW = d x^T, gb = d: the ratio, by least squares over all outputs (Phong et al. 2017);
  ReLU:           gW = L R of rank B and D^T = L Q. ReLU cuts rows off from outputs, so L q has many zeros where q is a
                  column of Q: it is the null vector of any B - 1 rows of L at which its row is cut off (Dimitrov et
                  al. 2024, SPEAR). gb gives the lengths of the columns;
  any activation: the rows of gW span those of X, so that only B coordinates of each row remain unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array

_ROUND_OFF = 10.0
"""Singular values below this many times the first one that rounding makes are noise."""
_SPARE = 10
"""Further directions of the randomised range finder; Halko et al. recommend 5 to 10."""
_SURE, _VAIN = 3, 30
"""Trials without a better direction, in units of those until the last one, after which the set counts as complete, and
after which an incomplete set is given up."""
_ZEROS = 0.05
"""Share of the outputs at which a direction must vanish, beyond those that it was solved for; at least 4 outputs."""
_SHARE = 0.2
"""A direction that vanishes at fewer outputs than this share of the best one mixes rows. At .5 rows that are seldom cut
off are refused (FLAME, 3 and 6 digits behind 32 units: two batches that .2 and .1 find)."""
_CROWD = 3
"""Directions that are kept, in units of the rows: more are mixtures of rows, and the worst are dropped."""
_MOST_ROWS = 24
"""About 2^B / B^2 trials find a row: 3e4 for 24 rows, 1e5 are made at most."""
_SAMPLE, _SAMPLE_ZEROS = 64, 2
"""Outputs on which a direction is tried first, and the zeros there without which it is dropped; it saves time only."""
_FIRST_CHUNK, _CHUNK = 128, 2048
"""Trials that are computed together at first, and at most."""


@dataclass(frozen=True)
class FirstLayerGradient:
    """Gradients of the layer that rows enter.

    Attributes:
        weight: (out, features).
        bias: (out,), or `None` where the layer has none.
    """

    weight: Array
    bias: Array | None

    def factors(self, rows: int) -> tuple[Array, Array, Array]:
        """Return the leading singular triples, exact for a matrix of rank `rows` (Halko et al. 2011, algorithm 4.4)."""
        weight = np.asarray(self.weight)
        reached = weight.any(axis=0)  # images have margins
        if reached.all() or reached.sum() <= rows:
            return self._factors(weight, rows)
        left, values, inner = self._factors(weight[:, reached], rows)
        right = np.zeros((len(inner), weight.shape[1]))
        right[:, reached] = inner
        return left, values, right

    @staticmethod
    def _factors(weight: Array, rows: int) -> tuple[Array, Array, Array]:
        width = rows + _SPARE
        if 3 * width >= min(weight.shape):
            return np.linalg.svd(weight.astype(np.float64), full_matrices=False)
        probe = np.random.default_rng(0).normal(size=(weight.shape[1], width)).astype(weight.dtype)
        # The range is found in the message's own precision; its basis is orthonormal, so no row loses digits.
        probe, _ = np.linalg.qr(weight.T @ (weight @ probe))
        weight = weight.astype(np.float64)
        within, _ = np.linalg.qr(weight @ probe)
        inner, values, directions = np.linalg.svd(within.T @ weight, full_matrices=False)
        return within @ inner, values, directions

    def floor(self, values: Array, rows: int) -> float:
        """Return the size of singular values that rounding makes, measured after those of the rows where possible."""
        measured = float(values[rows]) if rows < len(values) else 0.0
        return _ROUND_OFF * max(measured, np.finfo(float).eps * float(values[0]))


def ratio(observed: FirstLayerGradient) -> Array | None:
    """Return the row (1, features) behind the gradient of one row; `None` without a bias gradient."""
    if observed.bias is None or not np.any(observed.bias):
        return None
    bias = np.asarray(observed.bias, np.float64)
    return np.asarray((bias @ observed.weight / (bias @ bias))[None])


def row_space(observed: FirstLayerGradient, rows: int) -> Array:
    """Return orthonormal rows (at most `rows`, features) that span those of the batch, as far as rounding allows."""
    _, values, directions = observed.factors(rows)
    kept = int(np.sum(values[:rows] > observed.floor(values, rows)))
    return directions[: max(kept, 1)]


def separate(
    observed: FirstLayerGradient, rows: int, rng: np.random.Generator, *, trials: int = 100_000
) -> Array | None:
    """Return all rows (rows, features) of a batch behind a ReLU layer, or `None` where they cannot be separated.

    The result is likely, not certain: simulate what these rows would have sent.

    Args:
        observed: the layer's gradient.
        rows: B; the layer must have more outputs than twice that.
        rng: draws the trials.
        trials: most null vectors; a row needs about 2^B / B^2 of them where half of its outputs are cut off.
    """
    if (
        observed.bias is None
        or not 1 < rows <= min(_MOST_ROWS, observed.weight.shape[1])
        or len(observed.weight) <= 2 * rows
    ):
        return None
    left, values, right = observed.factors(rows)
    floor = observed.floor(values, rows)
    if values[rows - 1] <= floor:
        return None  # the rows are dependent, or their slopes are
    left, right = left[:, :rows] * values[:rows], right[:rows]
    alive = np.linalg.norm(left, axis=1) > floor
    left, bias = left[alive], np.asarray(observed.bias, np.float64)[alive]
    columns = _Columns(left, rows, floor / _ROUND_OFF)
    Q = columns.search(rng, trials) if len(left) > rows else None
    if Q is None:
        return None
    lengths = np.linalg.lstsq(left @ Q, bias, rcond=None)[0]  # gb = D^T 1 = L Q lengths
    if np.min(np.abs(lengths)) <= 1e-12 * np.max(np.abs(lengths)):
        return None
    return np.asarray(np.linalg.solve(Q * lengths, right))  # X = (Q lengths)^-1 R


@dataclass
class _Columns:
    """The search for directions q with many zeros in L q, L (outputs, rows)."""

    left: Array
    rows: int
    noise: float

    def __post_init__(self) -> None:
        typical = float(np.median(np.linalg.norm(self.left, axis=1)))
        self.tolerance = max(3.0 * self.noise, 1e-9 * typical)
        # More zeros than the outputs that the direction was made from, and than chance.
        self.needed = self.rows + max(4, int(_ZEROS * len(self.left)))

    def search(self, rng: np.random.Generator, trials: int) -> Array | None:
        """Return (rows, rows) with one direction in each column, or `None`."""
        # A null vector is solved for with its last entry 1; after a random rotation no entry of a direction is 0.
        turn, _ = np.linalg.qr(rng.normal(size=(self.rows, self.rows)))
        turned = self.left @ turn
        turned = turned / np.linalg.norm(turned, axis=1, keepdims=True)
        found: list[tuple[Array, Array]] = []  # direction, its zeros
        sample = rng.permutation(len(self.left))[:_SAMPLE]
        tried, changed, chunk = 0, 0, _FIRST_CHUNK
        while tried < trials and (len(found) < self.rows or tried < _VAIN * changed):
            tried, chunk = tried + chunk, min(2 * chunk, _CHUNK)
            picked = np.sort(rng.integers(0, len(turned), (chunk, self.rows - 1)), axis=1)
            parts = turned[picked[(np.diff(picked, axis=1) > 0).all(axis=1)]]
            # Outputs that one row alone reaches are parallel: without this noise such systems would be singular.
            parts = parts + rng.normal(scale=1e-13, size=parts.shape)
            nulls = _null_vectors(parts) @ turn.T
            nulls /= np.linalg.norm(nulls, axis=1, keepdims=True)
            few = np.abs(nulls @ self.left[sample].T) <= 3.0 * self.tolerance
            nulls = nulls[few.sum(axis=1) >= _SAMPLE_ZEROS]
            zeros = np.abs(nulls @ self.left.T) <= 3.0 * self.tolerance
            counts = zeros.sum(axis=1)
            for i in np.argsort(-counts):
                if counts[i] < self.needed:
                    break
                changed = tried if self._add(found, zeros[i]) else changed
                if len(found) > _CROWD * self.rows:
                    found = sorted(found, key=lambda item: -np.count_nonzero(item[1]))[: self.rows]
                    self.needed = max(self.needed, int(np.count_nonzero(found[-1][1])))
            if len(found) >= self.rows and tried >= _SURE * changed and (best := self._best(found)) is not None:
                return best
        return self._best(found) if len(found) >= self.rows else None

    def _best(self, found: list[tuple[Array, Array]]) -> Array | None:
        """Return (rows, rows) the directions with most zeros, `None` where they depend on each other."""
        most = sorted(found, key=lambda item: -item[1].sum())[: self.rows]
        best = np.stack([q for q, _ in most], axis=1)
        return best if np.linalg.cond(best) < 1e7 else None

    def _add(self, found: list[tuple[Array, Array]], rough: Array) -> bool:
        """Refine a direction on its zeros and keep it, unless it mixes rows.

        A mixture of rows k and l is zero where both are cut off: its zeros lie within those of k alone, but for the few
        outputs that it was solved for.
        """
        if any(self._within(rough, known) for _, known in found):
            return False
        _, values, directions = np.linalg.svd(np.linalg.qr(self.left[rough], mode="r"))
        direction = directions[-1]
        if self.rows > 1 and values[-2] <= 10.0 * self.tolerance * np.sqrt(np.count_nonzero(rough)):
            return False  # outputs of fewer rows, parallel: many directions vanish on them
        zeros = np.abs(self.left @ direction) <= self.tolerance
        if zeros.sum() < self.needed or any(self._within(zeros, known) for _, known in found):
            return False
        found[:] = [(q, known) for q, known in found if not self._within(known, zeros)] + [(direction, zeros)]
        # All rows are cut off about as often: what vanishes on far fewer outputs mixes rows.
        self.needed = max(self.needed, int(_SHARE * np.count_nonzero(zeros)))
        return True

    def _within(self, one: Array, other: Array) -> bool:
        """Return whether zeros lie within others, but for the outputs that a mixture was solved for."""
        return int(np.count_nonzero(one & ~other)) < self.rows


def _null_vectors(parts: Array) -> Array:
    """Return (k, n) null vectors of (k, n - 1, n) matrices, their last entry 1; singular systems are left out."""
    try:
        found = np.linalg.solve(parts[:, :, :-1], -parts[:, :, -1:])[..., 0]
    except np.linalg.LinAlgError:
        parts = parts[np.linalg.det(parts[:, :, :-1]) != 0.0]
        found = np.linalg.solve(parts[:, :, :-1], -parts[:, :, -1:])[..., 0]
    return np.concatenate([found, np.ones((len(found), 1))], axis=1)
