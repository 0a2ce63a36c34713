"""Labels from the gradient of the last layer, whose outputs are the logits of a cross entropy.

For the mean over B rows, gb_c = mean_k p_kc - n_c / B and gW_c = mean_k (p_kc - [y_k = c]) e_k, e_k what enters it.
One row: the label's entry of gb is the only negative one (Zhao et al. 2020, iDLG). Several: gW_c / gb_c is about the
average of the e_k, which gives p, and from it n_c (Ma et al. 2023, iLRG).
"""

from __future__ import annotations

import numpy as np

from securefed.tensors import Array


def counts(rows: int, weight: Array, bias: Array | None, at_weight: Array, at_bias: Array | None) -> Array:
    """(classes,) how many of the rows have each label.

    Args:
        rows: B.
        weight, bias: mean gradients of the last layer (classes, width), (classes,).
        at_weight, at_bias: its parameters.
    Exact for one row. For several an estimate, the better the less the rows' embeddings differ.
    """
    weight = np.asarray(weight, np.float64)
    slopes = np.asarray(bias, np.float64) if bias is not None else _slopes(weight)
    if rows == 1:
        return np.asarray(np.eye(len(weight), dtype=np.int64)[int(np.argmin(slopes))])
    safe = np.where(np.abs(slopes) > 1e-12 * np.abs(slopes).max(initial=1e-300), slopes, np.inf)
    embeddings = weight / safe[:, None]
    logits = embeddings @ np.asarray(at_weight, np.float64).T + (0.0 if at_bias is None else np.asarray(at_bias))
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    p = np.diag(powers / powers.sum(axis=1, keepdims=True))
    return _round_to(rows * (p - slopes), rows)


def _slopes(weight: Array) -> Array:
    """Slopes up to a common factor from the weights alone: the part along the leading singular vectors."""
    u, s, _ = np.linalg.svd(weight, full_matrices=False)
    along = u[:, 0] * s[0]
    label = int(np.argmax(np.abs(along)))  # |p_y - 1| is the sum of the other entries
    return np.asarray(-along * np.sign(along[label]))


def _round_to(values: Array, total: int) -> Array:
    """Non-negative integers near `values` that sum to `total` (largest remainders)."""
    values = np.maximum(values, 0.0)
    values = values * (total / max(float(values.sum()), 1e-12))
    floor = np.floor(values).astype(np.int64)
    order = np.argsort(values - floor)[::-1]
    floor[order[: total - int(floor.sum())]] += 1
    return floor
