"""The inputs of a client's local steps in one round: a function that computes gradients, and the rows of each step.

A method's local steps (`GradientMethod.steps`) are written once, against `LocalTraining`. They run on one client's
rows, on several clients at once, and inside an attacker's simulation, where a leading axis counts clients or
candidates. This works because the steps use nothing but `+ - *`. `batches` and `passes` draw the rows of each step.

Block methods (SAGA and its kin) divide a client's rows into blocks and remember a gradient for each; `pick` and `put`
read and write these. Vectors have one entry per parameter of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from securefed._public import Public
from securefed._tensors import Array

Memory = tuple[Array, ...]
"""The vectors a client carries from round to round."""

Vectors = Mapping[str, Array]
"""Vectors (..., parameters) by name, as a method's broadcast or contribution holds them."""

Size = float | Array
"""A number of rows: of one client, or (clients, 1) of several."""
Block = int | Array
"""Index of a block, or (clients,) an index for each of several clients."""
Rows = Array | slice
"""Rows of a data set: their positions, or a slice for all."""


@dataclass(frozen=True)
class BatchDraw:
    """The rows that one client draws for the local steps of one round.

    Attributes:
        parts: the rows of each local step.
        blocks: for each local step the index of the remembered gradient that it uses; all 0 for other methods.
    """

    parts: tuple[Rows, ...]
    blocks: tuple[int, ...]

    @classmethod
    def of(cls, parts: Sequence[Rows], blocks: Sequence[int] | None = None) -> BatchDraw:
        """Make a draw from the rows of each step; without `blocks` every step uses the first block."""
        return cls(tuple(parts), (0,) * len(parts) if blocks is None else tuple(blocks))

    def sizes(self, rows: int) -> tuple[int, ...]:
        """Return the number of rows of each local step, for a client with `rows` rows."""
        return tuple(rows if isinstance(part, slice) else len(part) for part in self.parts)


@dataclass(frozen=True)
class LocalTraining:
    """Inputs of the local steps of one client, or of several at once.

    For several clients, numbers of rows are (clients, 1) and vectors (clients, parameters).

    Attributes:
        gradient: `gradient(point, step)`: MEAN gradient at `point` over the rows of local step `step`.
        anchor: `anchor(point)`: mean gradient at `point` over all rows.
        public: facts that all parties know, such as the numbers of clients and rows.
        rows: n_i, the client's number of rows.
        blocks: for each local step the index of the remembered gradient that it uses.
        sizes: number of rows of each local step; its length is the number of local steps.
    """

    gradient: Callable[[Array, int], Array]
    anchor: Callable[[Array], Array]
    public: Public
    rows: Size
    blocks: Sequence[Block]
    sizes: Sequence[Size]


def batches(rows: int, size: int | None, steps: int, rng: np.random.Generator) -> list[Rows]:
    """Draw the rows of `steps` local steps: all (`size` None or >= rows), or batches of a fresh permutation each epoch.

    Every batch has `size` rows; the rows left over at the end of a permutation are skipped.
    """
    if size is None or size >= rows:
        return [slice(None)] * steps
    per_epoch = rows // size
    out: list[Rows] = []
    while len(out) < steps:
        order = rng.permutation(rows)
        out.extend(order[k * size : (k + 1) * size] for k in range(per_epoch))
    return out[:steps]


def passes(rows: int, size: int | None, epochs: int, rng: np.random.Generator) -> list[Rows]:
    """Draw the rows of each local step: `epochs` passes over all rows, the last batch of a pass smaller if need be."""
    if size is None or size >= rows:
        return [slice(None)] * epochs
    orders = [rng.permutation(rows) for _ in range(epochs)]
    return [order[start : start + size] for order in orders for start in range(0, rows, size)]


def pick(stored: Sequence[Array], block: Block) -> Array:
    """Return `stored[block]`, the remembered gradient of a block.

    Args:
        stored: the remembered gradients, (parameters,) each; (clients, parameters) for several clients.
        block: index of the block, or (clients,) each client's own.
    """
    if isinstance(block, int):
        return stored[block]
    out = np.empty_like(stored[0])
    for index in np.unique(block):  # the clients whose block this is, together
        out[block == index] = stored[index][block == index]
    return out


def put(stored: Sequence[Array], block: Block, value: Array) -> list[Array]:
    """Return `stored` with `value` at `block`; the arguments are as in `pick`.

    For several clients the arrays of `stored`, which were stacked for the round, are overwritten.
    """
    out = list(stored)
    if isinstance(block, int):
        out[block] = value
        return out
    for index in np.unique(block):
        rows = block == index
        out[index][rows] = value[rows]
    return out
