"""Count the labels of a batch from the gradient of the last layer, whose outputs are the logits of a cross entropy.

Gradient inversion (`module_inversion`) calls this where the labels are not known, and fits rows for the likeliest
labels first; the audit of a training loop compares the likeliest counts with the true ones. For one row the label's
entry of the bias's gradient is the only negative one (Zhao et al. 2020, iDLG). For several, the probabilities at the
mean of what enters the layer stand in for those of all rows (`label_counts` has the formula). Ma et al. (2023, iLRG)
instead compute them for each class at a quotient of sums with terms of both signs, which cancel more in larger batches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from securefed._tensors import Array
from securefed.attacks._fitting.label_counts import mean_layer_input, minimum_counts, nearest_counts

_LEAST = 1e-12
"""Smallest divisor of a gradient."""


def plausible_label_counts(
    rows: int, weight: Array, bias: Array, at_weight: Array, at_bias: Array, *, scaled: bool = False
) -> Iterator[Array]:
    """Yield all counts n (classes,) that the gradient allows, nearest to the estimate first.

    For one row there is one vector of counts, and it is exact. For several rows the estimate is better, the less the
    inputs of the layer differ from row to row.

    Args:
        rows: B.
        weight: (classes, width) mean gradient of the layer's weight.
        bias: (classes,) mean gradient of its bias.
        at_weight: (classes, width) weight at which the gradient was computed.
        at_bias: (classes,) bias at which the gradient was computed.
        scaled: whether both gradients are s times as large, with one unknown s, 0 < s <= 1, as a clip leaves them. Then
            gb_c = s (p_c - n_c / B) is at most s p_c, with equality where a class has no row, so that the largest
            gb_c / p_c estimates s. Where all classes have rows it is too small.
    """
    if rows == 1:
        yield np.eye(len(bias), dtype=np.int64)[np.argmin(bias)]
        return
    # a gradient of zeros shows nothing of the inputs
    mean_input = mean_layer_input(weight, bias) if bias.any() else np.zeros(weight.shape[1])
    logits = at_weight @ mean_input + at_bias
    exponentials = np.exp(logits - logits.max())
    probabilities = exponentials / exponentials.sum()
    if scaled:
        bias = bias / np.clip(np.max(bias / np.maximum(probabilities, _LEAST)), _LEAST, 1.0)
    lower_bound = minimum_counts(rows * bias)  # n_c >= -B gb_c, as probabilities are positive
    if lower_bound.sum() > rows:  # no mean gradient: it was scaled, or its rows have unequal weights
        lower_bound = np.zeros_like(lower_bound)
    yield from nearest_counts(rows * (probabilities - bias), lower_bound, rows)
