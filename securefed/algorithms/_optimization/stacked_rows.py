"""Stack the rows of several clients into one array, so that one matrix product serves all of them.

`cohort.py` stacks the rows that a group of simulated clients use in one local step; problems compute gradients from
the stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._optimization.local_steps import Rows
from securefed.datasets._base import Dataset


@dataclass(frozen=True, eq=False)
class StackedRows:
    """Rows of several clients in arrays of one shape; `widest` is the largest number of rows of a client.

    A client with fewer rows is padded with copies of its first row, at weight 0. A copy, unlike zeros, is a valid row,
    so that a problem computes finite numbers from it.

    Attributes:
        x: features, (clients, widest, features).
        y: targets (labels or responses), (clients, widest, ...).
        weights: weight of each row in its client's mean, (clients, widest): 1 / (the client's rows), 0 on padding.
    """

    x: Array
    y: Array
    weights: Array

    @classmethod
    def of(
        cls, datasets: Sequence[Dataset], targets: Sequence[Array], parts: Sequence[Rows], dtype: np.dtype[Any]
    ) -> StackedRows:
        """Copy the chosen rows of each client.

        Args:
            datasets: the clients' data sets.
            targets: the clients' targets, one for each row.
            parts: the rows to copy of each client.
            dtype: type of the features and weights.
        """
        sizes = [len(y) if isinstance(part, slice) else len(part) for y, part in zip(targets, parts, strict=True)]
        widest = max(sizes)
        x = np.empty((len(sizes), widest, datasets[0].features), dtype)
        y = np.empty((*x.shape[:2], *targets[0].shape[1:]), targets[0].dtype)
        weights = np.zeros((len(sizes), widest), dtype)
        for k, (size, data, target, part) in enumerate(zip(sizes, datasets, targets, parts, strict=True)):
            _gather(data.x, part, x[k, :size])
            y[k, :size] = target[part]
            weights[k, :size] = 1 / size
            if size < widest:
                x[k, size:], y[k, size:] = x[k, 0], y[k, 0]
        return cls(x, y, weights)


def _gather(rows: Array, part: Rows, out: Array) -> None:
    """Write rows[part] into `out` directly; an intermediate copy would take as long as a linear problem's gradient."""
    if isinstance(part, slice) or rows.dtype != out.dtype:
        out[...] = rows[part]
    else:  # `take` with the default mode would make that copy
        rows.take(part, axis=0, out=out, mode="clip")
