"""Labels from the gradient of the last layer, whose outputs are the logits of a cross entropy.

For the mean over B rows, gb_c = mean_k p_kc - n_c / B and gW_c = mean_k (p_kc - [y_k = c]) e_k, e_k what enters it.
One row: the label's entry of gb is the only negative one (Zhao et al. 2020, iDLG). Several: the mean of the e_k gives
p, and from it n_c (`label_counts`). All classes together tell it better than gW_c / gb_c class by class does (Ma et al.
2023, iLRG): there positive and negative terms cancel.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from securefed.attacks.label_counts import mean_entering, nearest_counts
from securefed.tensors import Array

_ROUND_OFF = 1e-3
"""Part of a row that rounding of the message may feign."""


def counts(rows: int, weight: Array, bias: Array | None, at_weight: Array, at_bias: Array | None) -> Array:
    """(classes,) how many of the rows have each label: the likeliest of `plausible`."""
    return next(plausible(rows, weight, bias, at_weight, at_bias))


def plausible(rows: int, weight: Array, bias: Array | None, at_weight: Array, at_bias: Array | None) -> Iterator[Array]:
    """All counts (classes,) that the gradient allows, nearest to the estimate first.

    Args:
        rows: B.
        weight, bias: mean gradients of the last layer (classes, width), (classes,).
        at_weight, at_bias: its parameters.
    One only, and exact, for one row; both of two classes without a bias, whose slopes are as large and of unknown sign.
    For several rows the first is the better the less their embeddings differ.
    """
    weight = np.asarray(weight, np.float64)
    slopes = np.asarray(bias, np.float64) if bias is not None else _slopes(weight)
    if rows == 1:
        order = np.argsort(slopes)
        yield from np.eye(len(weight), dtype=np.int64)[order[: 2 if bias is None and len(weight) == 2 else 1]]
        return
    mean = mean_entering(weight, slopes) if slopes.any() else np.zeros(weight.shape[1])
    logits = mean @ np.asarray(at_weight, np.float64).T + (0.0 if at_bias is None else np.asarray(at_bias))
    powers = np.exp(logits - logits.max())
    p = powers / powers.sum()
    least = np.maximum(np.ceil(-rows * slopes - _ROUND_OFF), 0).astype(np.int64)
    if bias is None or least.sum() > rows:  # slopes up to a factor, or of rows that do not count alike
        least = np.zeros_like(least)
    yield from nearest_counts(rows * (p - slopes), least, rows)


def _slopes(weight: Array) -> Array:
    """Slopes up to a common factor from the weights alone: the part along the leading singular vectors."""
    u, s, _ = np.linalg.svd(weight, full_matrices=False)
    along = u[:, 0] * s[0]
    label = int(np.argmax(np.abs(along)))  # |p_y - 1| is the sum of the other entries
    return np.asarray(-along * np.sign(along[label]))
