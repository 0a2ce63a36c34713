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
from securefed.attacks._networks.sparse_columns import SparseColumns

_ROUND_OFF = 10.0
"""Singular values below this multiple of the first one beyond the rank B, which rounding makes, count as noise."""
_OVERSAMPLING = 10
"""Further directions of the randomised range finder; Halko et al. recommend 5 to 10."""
_MOST_ROWS = 24
"""Largest batch. Behind 1024 outputs 24 digits are separated in 7 of 10 trials, in about 6 s of CPU."""


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


def separate(observed: FirstLayerGradient, rows: int, rng: np.random.Generator, *, starts: int = 4000) -> Array | None:
    """Return all rows (rows, features) of a batch behind a ReLU layer, or `None` where they cannot be separated.

    The result is likely, not certain: the caller should simulate what these rows would have sent.

    Args:
        observed: the layer's gradient.
        rows: B; the layer must have more outputs than twice that.
        rng: draws the starting points.
        starts: most starting points of the search; 16 rows behind 1024 outputs take about 300.
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
    # the second argument is the size of L's rounding errors, of which `floor` is a multiple
    Q = SparseColumns(left, floor / _ROUND_OFF).search(rng, starts) if len(left) > rows else None
    if Q is None:
        return None
    lengths = np.linalg.lstsq(left @ Q, bias, rcond=None)[0]  # gb = D^T 1 = L Q lengths
    if np.min(np.abs(lengths)) <= 1e-12 * np.max(np.abs(lengths)):
        return None
    return np.asarray(np.linalg.solve(Q * lengths, right))  # X = (Q lengths)^-1 R
