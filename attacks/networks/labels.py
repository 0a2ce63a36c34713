"""Labels from the gradient of the last layer, whose outputs are the logits of a cross entropy.

For the mean over B rows, gb_c = mean_k p_kc - n_c / B and gW_c = mean_k (p_kc - [y_k = c]) e_k, e_k what enters it.
One row: the label's entry of gb is the only negative one (Zhao et al. 2020, iDLG). Several: the mean of the e_k gives
p, and from it n_c (`label_counts`). Ma et al. (2023, iLRG) take a p for each class at gW_c / gb_c, of which positive
and negative terms cancel the more, the more rows there are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from securefed.attacks.label_counts import fewest, mean_entering, nearest_counts
from securefed.tensors import Array


def plausible(rows: int, weight: Array, bias: Array, at_weight: Array, at_bias: Array) -> Iterator[Array]:
    """All counts (classes,) that the gradient allows, nearest to the estimate first.

    Args:
        rows: B.
        weight, bias: mean gradients of the last layer (classes, width), (classes,).
        at_weight, at_bias: its parameters.
    One only, and exact, for one row. For several the first is the better the less what enters the layer differs.
    """
    if rows == 1:
        yield np.eye(len(bias), dtype=np.int64)[np.argmin(bias)]
        return
    mean = mean_entering(weight, bias) if bias.any() else np.zeros(weight.shape[1])
    logits = at_weight @ mean + at_bias
    powers = np.exp(logits - logits.max())
    least = fewest(rows * bias)
    if least.sum() > rows:  # a gradient up to a factor, or of rows that do not count alike
        least = np.zeros_like(least)
    yield from nearest_counts(rows * (powers / powers.sum() - bias), least, rows)
