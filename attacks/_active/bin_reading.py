"""Read rows from the gradient of a layer whose outputs are active above thresholds of one direction.

Bin j holds the rows x with t_j < g x <= t_{j+1}; the last one holds all rows above its threshold, and rows below t_1
are in no bin. Under the weights of `trap_network` neighbouring outputs differ by the rows of a bin: (gW_j - gW_{j+1}) /
(gb_j - gb_{j+1}) is the row, if the bin holds one, else a mean of its rows weighted by their slopes (Fowl et al. 2022,
Robbing the Fed, (3)). `TrapWeights` calls this on each message that it observes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array


@dataclass(frozen=True)
class Bins:
    """The bins of a layer that are not empty.

    Attributes:
        rows: (bins, features) the row of each bin, or the weighted mean of its rows.
        slopes: (bins,) the sum of its rows' slopes.
    """

    rows: Array
    slopes: Array


def read_bins(weight: Array, bias: Array, floor: float) -> Bins:
    """Read all bins of a layer.

    Args:
        weight: (outputs, features) gradient of the weight, outputs by ascending threshold.
        bias: (outputs,) gradient of the bias.
        floor: size of a bin's summed slope up to which the bin counts as empty; above the gradients' rounding error.

    Returns:
        The bins that are not empty, by ascending threshold.
    """
    # output j less output j + 1; the last output has no neighbour above it
    values = weight - np.vstack([weight[1:], np.zeros_like(weight[:1])])
    slopes = bias - np.append(bias[1:], 0.0)
    occupied = np.abs(slopes) > floor
    return Bins(values[occupied] / slopes[occupied, None], slopes[occupied])


def label_codes(classes: int) -> Array:
    """Return (classes,) one code by label, evenly spaced in [1, 1.9].

    The server chooses weights such that a row's slope is a known factor times the code of its label. The sum of two or
    more codes is at least 2 and so no code: a bin's slope says whether it holds one row, and of which label. Codes of C
    classes differ by .9 / (C - 1), so that with hundreds of classes rounding may turn a label into a neighbouring one.
    """
    return np.linspace(1.0, 1.9, classes) if classes > 1 else np.ones(1)
