"""Count the labels of a batch from the gradient of the last layer, whose outputs are the logits of a cross entropy.

For the mean over B rows, gb_c = mean_k p_kc - n_c / B and gW_c = mean_k (p_kc - [y_k = c]) e_k, e_k what enters it.
One row: the label's entry of gb is the only negative one (Zhao et al. 2020, iDLG). Several: the mean of the e_k gives
p, and from it n_c (`label_counts`). Ma et al. (2023, iLRG) take a p for each class at gW_c / gb_c, whose positive
and negative terms cancel the more, the larger the batch is.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from securefed._tensors import Array
from securefed.attacks._fitting.label_counts import mean_layer_input, minimum_counts, nearest_counts


def plausible_label_counts(rows: int, weight: Array, bias: Array, at_weight: Array, at_bias: Array) -> Iterator[Array]:
    """Yield all counts (classes,) that the gradient allows, nearest to the estimate first.

    Of one row there is one count, and it is exact. For several rows the estimate is the better, the less the inputs of
    the layer differ from row to row.

    Args:
        rows: B.
        weight: (classes, width) mean gradient of the layer's weight.
        bias: (classes,) mean gradient of its bias.
        at_weight: (classes, width) the weight.
        at_bias: (classes,) the bias.
    """
    if rows == 1:
        yield np.eye(len(bias), dtype=np.int64)[np.argmin(bias)]
        return
    mean = mean_layer_input(weight, bias) if bias.any() else np.zeros(weight.shape[1])
    logits = at_weight @ mean + at_bias
    powers = np.exp(logits - logits.max())
    least = minimum_counts(rows * bias)
    if least.sum() > rows:  # a gradient up to a factor, or of rows that do not count alike
        least = np.zeros_like(least)
    yield from nearest_counts(rows * (powers / powers.sum() - bias), least, rows)
