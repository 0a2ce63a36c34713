"""Read rows from the gradient of a layer whose outputs are active above thresholds of one direction.

Outputs j = 1..H of the layer all look at the same direction g of a row and differ in their threshold, and all outputs
have the same slope s for one row, so that with t_1 < ... < t_H

    gW_j = sum over rows with g x > t_j of s x,    gb_j = sum over the same rows of s.

Neighbours differ by the rows between their thresholds: (gW_j - gW_j+1) / (gb_j - gb_j+1) is the row of a bin that holds
one row, and a weighted mean of the bin's rows otherwise (Fowl et al. 2022, Robbing the Fed, (3)).
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
        floor: slope up to which a bin is empty.

    Returns:
        The bins that are not empty, by ascending threshold.
    """
    values = weight - np.vstack([weight[1:], np.zeros_like(weight[:1])])
    slopes = bias - np.append(bias[1:], 0.0)
    occupied = np.abs(slopes) > floor
    return Bins(values[occupied] / slopes[occupied, None], slopes[occupied])


def label_codes(classes: int) -> Array:
    """Return (classes,) slopes by label, in [1, 1.9]: the sum of two or more is at least 2, so it is no label's slope.

    A bin's slope thus says whether it holds one row, and of which label.
    """
    return np.linspace(1.0, 1.9, classes) if classes > 1 else np.ones(1)
