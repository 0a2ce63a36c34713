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
from securefed.algorithms._optimization.array_pool import ArrayPool
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
        whole: array with the rows of all local steps of a round; x is the view `whole[:, start : start + widest]`.
        start: index of the first row of x in `whole`.
    """

    x: Array
    y: Array
    weights: Array
    whole: Array
    start: int = 0

    @classmethod
    def of(
        cls,
        datasets: Sequence[Dataset],
        targets: Sequence[Array],
        parts: Sequence[Rows],
        dtype: np.dtype[Any],
        pool: ArrayPool,
        whole: Array | None = None,
        start: int = 0,
    ) -> StackedRows:
        """Copy the chosen rows of each client.

        Args:
            datasets: the clients' data sets.
            targets: the clients' targets, one for each row.
            parts: the rows to copy of each client.
            dtype: type of the features and weights.
            pool: pool that provides the array where `whole` is `None`.
            whole: array to copy into.
            start: index of the first row in `whole`.
        """
        sizes = [len(y) if isinstance(part, slice) else len(part) for y, part in zip(targets, parts, strict=True)]
        widest = max(sizes)
        if whole is None:
            whole = pool.empty((len(sizes), widest, datasets[0].features), dtype)
        x = whole[:, start : start + widest]
        y = np.empty((*x.shape[:2], *targets[0].shape[1:]), targets[0].dtype)
        weights = np.zeros((len(sizes), widest), dtype)
        for k, (size, data, target, part) in enumerate(zip(sizes, datasets, targets, parts, strict=True)):
            _gather(data.x, part, x[k, :size])
            y[k, :size] = target[part]
            weights[k, :size] = 1 / size
            if size < widest:
                x[k, size:], y[k, size:] = x[k, 0], y[k, 0]
        return cls(x, y, weights, whole, start)


def joined(stacks: Sequence[StackedRows]) -> Array:
    """Join the rows of several steps, (clients, rows, features); a view if they are adjacent in one array."""
    first, starts = stacks[0], [stack.start for stack in stacks]
    ends = [stack.start + stack.x.shape[1] for stack in stacks]
    if starts[1:] == ends[:-1] and all(stack.whole is first.whole for stack in stacks):
        return first.whole[:, starts[0] : ends[-1]]
    return np.concatenate([stack.x for stack in stacks], axis=1)


def _gather(rows: Array, part: Rows, out: Array) -> None:
    """Write rows[part] into `out` directly; an intermediate copy would take as long as a linear problem's gradient."""
    if isinstance(part, slice) or rows.dtype != out.dtype:
        out[...] = rows[part]
    else:  # `take` with the default mode would make that copy
        rows.take(part, axis=0, out=out, mode="clip")
