"""Rows read off the gradient of the linear layer they enter, without a search.

For z = W x + b the gradients of one batch are gW = D^T X and gb = D^T 1, with D (B, out) the slopes d loss / d z. So

  one row:        gW = d x^T, gb = d: the ratio, by least squares over all outputs (Phong et al. 2017);
  ReLU:           gW = L R of rank B and D^T = L Q. ReLU cuts rows off from outputs, so L q has many zeros where q is a
                  column of Q: it is the null vector of any B - 1 rows of L at which its row is cut off (Dimitrov et
                  al. 2024, SPEAR), and where outputs that few rows reach tell q at once, nothing is searched for
                (`alone`). gb gives the lengths of the columns;
  any activation: the rows of gW span those of X, so that B coordinates each are left to be searched for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed.attacks.networks import alone
from securefed.tensors import Array

_ROUND_OFF = 10.0
_SPARE = 10
_SURE, _VAIN = 3, 30
"""How many times as long as the last discovery took nothing better may turn up before the set counts as complete."""
_ZEROS, _SHARE, _CROWD = 0.05, 0.5, 3
_MOST_ROWS = 24
_GLIMPSE, _SEEN = 64, 2
"""Outputs on which a direction is looked at first, and zeros there without which it is dropped."""
_FIRST_CHUNK, _CHUNK = 128, 2048


@dataclass(frozen=True)
class Entering:
    """Gradients of the layer that rows enter: weight (out, features), bias (out,) or `None`."""

    weight: Array
    bias: Array | None

    def factors(self, rows: int) -> tuple[Array, Array, Array]:
        """The leading singular triples, exact for a matrix of rank `rows` (Halko et al. 2011, algorithm 4.4)."""
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
        # Where to look is found in the message's own precision; orthonormal, it costs the weakest row no digits.
        probe, _ = np.linalg.qr(weight.T @ (weight @ probe))
        weight = weight.astype(np.float64)
        within, _ = np.linalg.qr(weight @ probe)
        inner, values, directions = np.linalg.svd(within.T @ weight, full_matrices=False)
        return within @ inner, values, directions

    def floor(self, values: Array, rows: int) -> float:
        """What rounding makes of singular values: the one after the rows' own, where there is one."""
        measured = float(values[rows]) if rows < len(values) else 0.0
        return _ROUND_OFF * max(measured, np.finfo(float).eps * float(values[0]))


def ratio(seen: Entering) -> Array | None:
    """(1, features) the row behind a gradient of one; `None` without a bias gradient."""
    if seen.bias is None or not np.any(seen.bias):
        return None
    bias = np.asarray(seen.bias, np.float64)
    return np.asarray((bias @ seen.weight / (bias @ bias))[None])


def span(seen: Entering, rows: int) -> Array:
    """(at most `rows`, features) orthonormal rows that span the batch's, those above rounding."""
    _, values, directions = seen.factors(rows)
    kept = int(np.sum(values[:rows] > seen.floor(values, rows)))
    return directions[: max(kept, 1)]


def separate(seen: Entering, rows: int, rng: np.random.Generator, *, trials: int = 100_000) -> Array | None:
    """(rows, features) all rows of a batch behind a ReLU layer, or `None` where they cannot be told apart.

    Args:
        rows: B; the layer must have more outputs than that.
        trials: null vectors tried at most; a row needs about 2^B / B^2 of them where half of its outputs are cut off.

    That these ARE the rows is likely, not certain: simulate what they would have sent.
    """
    if seen.bias is None or not 1 < rows <= min(_MOST_ROWS, seen.weight.shape[1]) or len(seen.weight) <= 2 * rows:
        return None
    left, values, right = seen.factors(rows)
    floor = seen.floor(values, rows)
    if values[rows - 1] <= floor:
        return None  # the rows are dependent, or their slopes are
    left, right = left[:, :rows] * values[:rows], right[:rows]
    alive = np.linalg.norm(left, axis=1) > floor
    left, bias = left[alive], np.asarray(seen.bias, np.float64)[alive]
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
        """(rows, rows) one direction a column, or `None`."""
        # A null vector is solved for with its last entry 1; in turned coordinates no entry of any direction is 0.
        turn, _ = np.linalg.qr(rng.normal(size=(self.rows, self.rows)))
        turned = self.left @ turn
        turned = turned / np.linalg.norm(turned, axis=1, keepdims=True)
        found: list[tuple[Array, Array]] = []  # direction, its zeros
        direct = alone.columns(self.left, self.noise)
        for q in () if direct is None else direct.T:
            zeros = np.abs(self.left @ q) <= 3.0 * self.tolerance
            if zeros.sum() >= self.needed:
                self._add(found, zeros)
        if len(found) == self.rows and (best := self._best(found)) is not None:
            return best
        sample = rng.permutation(len(self.left))[:_GLIMPSE]
        tried, changed, chunk = 0, 0, _FIRST_CHUNK
        while tried < trials and (len(found) < self.rows or tried < _VAIN * changed):
            tried, chunk = tried + chunk, min(2 * chunk, _CHUNK)
            picked = np.sort(rng.integers(0, len(turned), (chunk, self.rows - 1)), axis=1)
            parts = turned[picked[(np.diff(picked, axis=1) > 0).all(axis=1)]]
            # Outputs that one row alone reaches are parallel: without the tremor such systems would be singular.
            parts = parts + rng.normal(scale=1e-13, size=parts.shape)
            nulls = _null_vectors(parts) @ turn.T
            nulls /= np.linalg.norm(nulls, axis=1, keepdims=True)
            few = np.abs(nulls @ self.left[sample].T) <= 3.0 * self.tolerance
            nulls = nulls[few.sum(axis=1) >= _SEEN]
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
        """(rows, rows) the directions with most zeros, `None` where they depend on each other."""
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
        """Whether zeros lie within others but for the outputs that a mixture was made to vanish at."""
        return int(np.count_nonzero(one & ~other)) < self.rows


def _null_vectors(parts: Array) -> Array:
    """(k, n) vectors that each of (k, n - 1, n) sends to 0, their last entry 1; systems found singular are left out."""
    try:
        found = np.linalg.solve(parts[:, :, :-1], -parts[:, :, -1:])[..., 0]
    except np.linalg.LinAlgError:
        parts = parts[np.linalg.det(parts[:, :, :-1]) != 0.0]
        found = np.linalg.solve(parts[:, :, :-1], -parts[:, :, -1:])[..., 0]
    return np.concatenate([found, np.ones((len(found), 1))], axis=1)
