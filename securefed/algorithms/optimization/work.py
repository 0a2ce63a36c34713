"""What a client does in one round, apart from whose data it is: local steps that a gradient oracle feeds.

The same lines run on a client's rows and inside an attacker's simulation, where a leading axis counts
candidates: they use nothing but `+ - *`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from securefed.algorithms.base import Public
from securefed.tensors import Array

Memory = tuple[Array, ...]
"""The vectors a client carries from round to round."""

Vectors = Mapping[str, Array]
"""Vectors (..., parameters) by part, as a method's broadcast or contribution holds them."""

Size = float | Array


@dataclass(frozen=True)
class Work:
    """One round of one client.

    Attributes:
        gradient: `gradient(point, step)`: MEAN gradient at `point` over the rows of local step `step`.
        anchor: mean gradient at `point` over all rows.
        public: what everybody knows.
        rows: n_i.
        blocks: the block of memory each local step uses.
        sizes: number of rows of each local step.
    """

    gradient: Callable[[Array, int], Array]
    anchor: Callable[[Array], Array]
    public: Public
    rows: Size
    blocks: Sequence[int]
    sizes: Sequence[Size]


def batches(rows: int, size: int | None, steps: int, rng: np.random.Generator) -> list[Array | slice]:
    """Rows of each local step: all (`size` None or >= rows), or batches of a fresh permutation each epoch."""
    if size is None or size >= rows:
        return [slice(None)] * steps
    per_epoch = rows // size
    out: list[Array | slice] = []
    while len(out) < steps:
        order = rng.permutation(rows)
        out.extend(order[k * size : (k + 1) * size] for k in range(per_epoch))
    return out[:steps]
