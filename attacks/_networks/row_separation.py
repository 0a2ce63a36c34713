"""Recover a batch's rows from the gradient of the linear layer that they enter, without optimisation.

For z = W x + b and B rows X, (B, features), the gradients are gW = D^T X and gb = D^T 1, where D, (B, out), holds the
slopes d loss / d z of each row's loss. The rows' order is not determined. `first_layer` calls this module, with the
number B of rows given. Three cases:

  one row:        gW = d x^T and gb = d; x is their ratio, by least squares over all outputs (Phong et al. 2017).
  ReLU after z:   gW = L R of rank B, with known L (out, B) and R (B, features), and D^T = L Q with an unknown Q (B, B).
                  A ReLU that is inactive for a row makes that row's slope 0, so L q has many zeros for each column q of
                  Q: q is the null vector of any B - 1 rows of L whose outputs are inactive for its row. Random sets of
                  B - 1 rows of L are tried, and null vectors with many further zeros are kept (Dimitrov et al. 2024,
                  SPEAR). They are the columns of Q up to their lengths, which follow from gb = D^T 1 = L Q lengths;
                  then D^T = L Q diag(lengths), and X = (Q diag(lengths))^-1 R.
  any activation: the rows of gW span those of X, so that only B coordinates of each row remain unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array

_ROUND_OFF = 10.0
"""Singular values below this multiple of the first one beyond the rank B, which rounding makes, count as noise."""
_OVERSAMPLING = 10
"""Further directions of the randomised range finder; Halko et al. recommend 5 to 10."""
_COMPLETE_AFTER, _GIVE_UP_AFTER = 3, 30
"""The search has found all directions when the trials reach this multiple of those at which the last direction was
found; with the second multiple it ends also where directions are dependent."""
_ZEROS = 0.05
"""Share of the outputs at which a direction must vanish, beyond those that it was solved for; at least 4 outputs."""
_SHARE = 0.2
"""A direction that vanishes at fewer outputs than this share of the best one is taken for a mixture of rows: a
combination of columns of Q, which vanishes only where all of them do. At .5, rows for which few outputs are inactive
are refused (FLAME, 3 and 6 digits behind 32 units: two batches that .2 and .1 find).
"""
_MOST_DIRECTIONS = 3
"""Directions that are kept, in multiples of B; further ones are mixtures of rows, and those with fewest zeros are
dropped.
"""
_MOST_ROWS = 24
"""Largest batch. About 2^B / B^2 trials find a row: 3e4 for 24 rows, 1e5 are made at most."""
_SAMPLE, _SAMPLE_ZEROS = 64, 2
"""Number of outputs on which a direction is tried first, and of zeros there below which it is dropped. It saves time
only: a direction with the needed share of zeros, `_ZEROS`, has about three among 64."""
_FIRST_CHUNK, _CHUNK = 128, 2048
"""Trials that are computed together at first, and at most."""


@dataclass(frozen=True)
class FirstLayerGradient:
    """Gradients of the layer that rows enter.

    Attributes:
        weight: gW, (out, features), up to a factor that the bias shares.
        bias: gb, (out,), or `None` where the layer has none.
    """

    weight: Array
    bias: Array | None

    def factors(self, rows: int) -> tuple[Array, Array, Array]:
        """Return the leading left singular vectors, values and right singular vectors (as rows) of the weight.

        They are exact for a matrix of rank `rows` (Halko et al. 2011, algorithm 4.4).
        """
        weight = np.asarray(self.weight)
        nonzero = weight.any(axis=0)  # columns of pixels that are 0 in all rows, such as margins, are left out
        if nonzero.all() or nonzero.sum() <= rows:
            return self._factors(weight, rows)
        left, values, inner = self._factors(weight[:, nonzero], rows)
        right = np.zeros((len(inner), weight.shape[1]))
        right[:, nonzero] = inner
        return left, values, right

    @staticmethod
    def _factors(weight: Array, rows: int) -> tuple[Array, Array, Array]:
        """Compute `factors` by a randomised range finder; of small matrices, all singular vectors and values."""
        width = rows + _OVERSAMPLING
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
    rank = int(np.sum(values[:rows] > observed.floor(values, rows)))
    return directions[: max(rank, 1)]


def separate(
    observed: FirstLayerGradient, rows: int, rng: np.random.Generator, *, trials: int = 100_000
) -> Array | None:
    """Return all rows (rows, features) of a batch behind a ReLU layer, or `None` where they cannot be separated.

    The result is likely, not certain: the caller should simulate what these rows would have sent.

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
    active = np.linalg.norm(left, axis=1) > floor
    left, bias = left[active], np.asarray(observed.bias, np.float64)[active]
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
    """The search for directions q, (rows,), with many zeros in L q: the columns of Q up to their lengths.

    Attributes:
        left: L, (outputs, rows).
        rows: B.
        noise: size of the rounding errors in L.
        tolerance: largest entry of L q that counts as zero.
        needed: number of zeros that a direction must have; it grows with the best direction found.
    """

    left: Array
    rows: int
    noise: float

    def __post_init__(self) -> None:
        typical = float(np.median(np.linalg.norm(self.left, axis=1)))
        self.tolerance = max(3.0 * self.noise, 1e-9 * typical)
        # More zeros than the outputs that the direction was made from, and than chance.
        self.needed = self.rows + max(4, int(_ZEROS * len(self.left)))

    def search(self, rng: np.random.Generator, trials: int) -> Array | None:
        """Return (rows, rows) with one direction in each column, or `None` where fewer are found.

        Args:
            rng: draws the sets of outputs.
            trials: most sets that are tried.
        """
        # A null vector is solved for with its last entry 1; after a random rotation no entry of a direction is 0.
        rotation, _ = np.linalg.qr(rng.normal(size=(self.rows, self.rows)))
        rotated = self.left @ rotation
        rotated = rotated / np.linalg.norm(rotated, axis=1, keepdims=True)
        directions: list[tuple[Array, Array]] = []  # direction, its zeros
        sample = rng.permutation(len(self.left))[:_SAMPLE]
        tried, trials_at_change, chunk = 0, 0, _FIRST_CHUNK
        while tried < trials and (len(directions) < self.rows or tried < _GIVE_UP_AFTER * trials_at_change):
            tried, chunk = tried + chunk, min(2 * chunk, _CHUNK)
            subsets = np.sort(rng.integers(0, len(rotated), (chunk, self.rows - 1)), axis=1)
            systems = rotated[subsets[(np.diff(subsets, axis=1) > 0).all(axis=1)]]  # sets without repeated outputs
            # Outputs that one row alone reaches are parallel: without this noise such systems would be singular.
            systems = systems + rng.normal(scale=1e-13, size=systems.shape)
            nulls = _null_vectors(systems) @ rotation.T
            nulls /= np.linalg.norm(nulls, axis=1, keepdims=True)
            sample_zeros = np.abs(nulls @ self.left[sample].T) <= 3.0 * self.tolerance
            nulls = nulls[sample_zeros.sum(axis=1) >= _SAMPLE_ZEROS]
            zeros = np.abs(nulls @ self.left.T) <= 3.0 * self.tolerance
            counts = zeros.sum(axis=1)
            for i in np.argsort(-counts):  # those with most zeros first
                if counts[i] < self.needed:
                    break
                trials_at_change = tried if self._add(directions, zeros[i]) else trials_at_change
                if len(directions) > _MOST_DIRECTIONS * self.rows:
                    directions = sorted(directions, key=lambda item: -np.count_nonzero(item[1]))[: self.rows]
                    self.needed = max(self.needed, int(np.count_nonzero(directions[-1][1])))
            if (
                len(directions) >= self.rows
                and tried >= _COMPLETE_AFTER * trials_at_change
                and (best := self._best(directions)) is not None
            ):
                return best
        return self._best(directions) if len(directions) >= self.rows else None

    def _best(self, directions: list[tuple[Array, Array]]) -> Array | None:
        """Return (rows, rows) the directions with most zeros, `None` where they depend on each other."""
        leading = sorted(directions, key=lambda item: -item[1].sum())[: self.rows]
        best = np.stack([q for q, _ in leading], axis=1)
        return best if np.linalg.cond(best) < 1e7 else None

    def _add(self, kept: list[tuple[Array, Array]], approximate_zeros: Array) -> bool:
        """Refine a direction on its approximate zeros and keep it, unless it is a mixture of rows.

        A mixture of rows k and l is zero where outputs are inactive for both: its zeros lie within those of k alone,
        except for the few outputs that it was solved for.

        Args:
            kept: the directions so far, each with its zeros (outputs,); changed in place.
            approximate_zeros: (outputs,) where the new direction vanishes.

        Returns:
            Whether the direction was kept.
        """
        if any(self._within(approximate_zeros, others) for _, others in kept):
            return False
        # The direction is the last right singular vector of L at these outputs; that of the R factor is the same.
        _, values, directions = np.linalg.svd(np.linalg.qr(self.left[approximate_zeros], mode="r"))
        direction = directions[-1]
        if self.rows > 1 and values[-2] <= 10.0 * self.tolerance * np.sqrt(np.count_nonzero(approximate_zeros)):
            return False  # these outputs are active for fewer rows, so that many directions vanish on them
        zeros = np.abs(self.left @ direction) <= self.tolerance
        if zeros.sum() < self.needed or any(self._within(zeros, others) for _, others in kept):
            return False
        kept[:] = [(q, others) for q, others in kept if not self._within(others, zeros)] + [(direction, zeros)]
        # All rows have about as many inactive outputs: a direction with far fewer zeros is a mixture.
        self.needed = max(self.needed, int(_SHARE * np.count_nonzero(zeros)))
        return True

    def _within(self, zeros: Array, others: Array) -> bool:
        """Return whether `zeros` lie within `others`, except for the outputs that a mixture was solved for."""
        return int(np.count_nonzero(zeros & ~others)) < self.rows


def _null_vectors(systems: Array) -> Array:
    """Return (k, n) null vectors of (k, n - 1, n) matrices, their last entry 1; singular systems are left out."""
    try:
        solutions = np.linalg.solve(systems[:, :, :-1], -systems[:, :, -1:])[..., 0]
    except np.linalg.LinAlgError:
        systems = systems[np.linalg.det(systems[:, :, :-1]) != 0.0]
        solutions = np.linalg.solve(systems[:, :, :-1], -systems[:, :, -1:])[..., 0]
    return np.concatenate([solutions, np.ones((len(solutions), 1))], axis=1)
