"""Compute the local steps of several simulated clients as one batched computation.

A simulation runs many clients in one process; one product of stacked arrays is faster than many small products.
`GradientMethod.contribute_together` calls both functions here. `groups` divides the clients: those of a group make
equally many steps on batches of about equal size, and their vectors and rows fit the processor's cache as far as they
can. `together` stacks the rows of a group, and returns the inputs of its local steps, whose gradients are computed for
all its clients in one call.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._optimization.local_steps import BatchDraw, Block, LocalTraining, Size
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._optimization.stacked_rows import StackedRows
from securefed.datasets._base import Dataset

GROUP_BYTES = 2 * 2**20
"""Largest size of one vector of a group, (clients, parameters). Beyond a core's own cache (about 2 MiB) a round takes
up to 4 times as long."""
BATCH_BYTES = 6 * 2**20
"""Largest size of the rows of one step of a group. Larger stacks take twice the time per client, in memory traffic."""


def groups(model: Model, datasets: Sequence[Dataset], draws: Sequence[BatchDraw]) -> list[list[int]]:
    """Return the positions of the clients of each group.

    Batches are padded to the largest of the group, which has less than twice the rows of the smallest.

    Args:
        model: the model that all clients train.
        datasets: the rows of each client.
        draws: the rows that each client draws for its local steps.
    """
    kinds: dict[tuple[int, int], list[int]] = {}
    for position, (data, draw) in enumerate(zip(datasets, draws, strict=True)):
        widest = max(draw.sizes(data.rows), default=0)
        # clients of one kind: as many steps, and the largest batch between the same two powers of 2
        kinds.setdefault((len(draw.parts), widest.bit_length()), []).append(position)
    entry, out = model.problem.dtype.itemsize, []
    for (_, bits), members in kinds.items():
        row = datasets[members[0]].features * entry  # bytes of a row; 2**bits is above the rows of a batch
        most = max(1, min(GROUP_BYTES // (model.layout.size * entry), BATCH_BYTES // (2**bits * row)))
        parts = np.array_split(members, -(-len(members) // most))  # of about equal size, at most `most`
        out += [[int(i) for i in part] for part in parts]
    return out


def together(model: Model, datasets: Sequence[Dataset], draws: Sequence[BatchDraw]) -> LocalTraining:
    """Return the inputs of a group's local steps.

    Their `gradient` takes a point (parameters,) common to all clients, or (clients, parameters) with one for each, and
    returns (clients, parameters); `anchor` does the same over all rows of every client.

    Args:
        model: the model that all clients train.
        datasets: the rows of each client of the group.
        draws: the rows that each of them draws for its local steps.
    """
    group = _Group(model, datasets, draws)
    dtype = model.problem.dtype

    def column(values: Sequence[int]) -> Size:
        return np.asarray(values, dtype)[:, None]

    sizes = [draw.sizes(data.rows) for data, draw in zip(datasets, draws, strict=True)]
    steps = range(len(draws[0].parts))
    return LocalTraining(
        gradient=lambda point, step: group.gradient(point, group.step(step)),
        anchor=lambda point: group.gradient(point, group.whole()),
        public=model.public,
        rows=column([data.rows for data in datasets]),
        blocks=[_block([draw.blocks[step] for draw in draws]) for step in steps],
        sizes=[column([size[step] for size in sizes]) for step in steps],
    )


class _Group:
    """The stacked rows of a group of clients in one round, and the gradients over them."""

    def __init__(self, model: Model, datasets: Sequence[Dataset], draws: Sequence[BatchDraw]) -> None:
        self._model, self._datasets, self._draws = model, datasets, draws
        self._targets = [model.problem.targets(data) for data in datasets]
        self._whole: StackedRows | None = None

    def step(self, step: int) -> StackedRows:
        """Return the rows of a local step."""
        parts = [draw.parts[step] for draw in self._draws]
        if all(isinstance(part, slice) for part in parts):
            return self.whole()
        return StackedRows.of(self._datasets, self._targets, parts, self._model.problem.dtype)

    def whole(self) -> StackedRows:
        """Return all rows of every client; they are stacked once a round."""
        if self._whole is None:
            parts = [slice(None)] * len(self._datasets)
            self._whole = StackedRows.of(self._datasets, self._targets, parts, self._model.problem.dtype)
        return self._whole

    def gradient(self, point: Array, stack: StackedRows) -> Array:
        """Return the mean gradients over the rows, (clients, parameters)."""
        points = np.broadcast_to(point, (len(stack.x), self._model.layout.size))
        return self._model.gradients(points, stack.x, stack.y, stack.weights)


def _block(blocks: Sequence[int]) -> Block:
    """Return the index of the block that a step uses: one number where it is the same for all clients."""
    return blocks[0] if len(set(blocks)) == 1 else np.asarray(blocks)
