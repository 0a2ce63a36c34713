"""Compute the local steps of several simulated clients as one batched computation.

A simulation runs many clients in one process; one product of stacked arrays is much faster than many small products.
`GradientMethod.contribute_together` calls both functions here. `groups` divides the clients: those of a group make
equally many steps on batches of about equal size, and their vectors and rows fit the processor's cache as far as they
can. `together` stacks the rows of a group, and returns the inputs of its local steps, whose gradients are computed for
all its clients in one call.

The rows X of a step enter a model by z = X W^T, and the gradient of the loss in W is D^T X, with D = d loss / dz. Where
rows are few, `FactoredCohort` keeps the factors D and X of each step instead of an updated W: then a later step's z is
z at the first W plus small products (X X_s^T) D_s for each earlier step s, and W is formed once a round. The weights of
inner layers can be kept in factors likewise. `_factored` (for W) and `_unformed` (for inner weights) decide by a count
of multiplications whether that is cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._optimization.array_pool import ArrayPool
from securefed.algorithms._optimization.factored_cohort import FactoredCohort
from securefed.algorithms._optimization.local_steps import BatchDraw, Block, LocalTraining, Rows, Size
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._optimization.stacked_rows import StackedRows
from securefed.datasets._base import Dataset
from securefed.problems._base import LinearInput

GROUP_BYTES = 2 * 2**20
"""Largest size of one vector of a group, (clients, parameters). Beyond a core's own cache (about 2 MiB) a round takes
up to 4 times as long."""
FACTORED_BYTES = 24 * 2**20
"""The same for groups computed by `FactoredCohort`, which form W, their largest weight, only once a round: larger
groups share a matrix product, and wait less for the interpreter's lock."""
BATCH_BYTES = 6 * 2**20
"""Largest size of the rows of one step of a group. Larger stacks take twice the time per client, in memory traffic."""
MOVED = 128
"""Multiplications that cost as much as moving one entry of a vector through a local step (measured: 100 to 200)."""


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
        vector_bytes = FACTORED_BYTES if _factored(model, datasets, draws, members) else GROUP_BYTES
        row = datasets[members[0]].features * entry  # bytes of a row; 2**bits is above the rows of a batch
        most = max(1, min(vector_bytes // (model.layout.size * entry), BATCH_BYTES // (2**bits * row)))
        out += _evenly(members, most)
    return out


def _evenly(members: list[int], most: int) -> list[list[int]]:
    """Cut positions into groups of about equal size and at most `most`: one, or an even number for two threads."""
    count = -(-len(members) // most)
    if count > 1:
        count = min(len(members), count + count % 2)
    return [[int(i) for i in part] for part in np.array_split(members, count)]


def together(model: Model, datasets: Sequence[Dataset], draws: Sequence[BatchDraw], pool: ArrayPool) -> LocalTraining:
    """Return the inputs of a group's local steps.

    Their `gradient` takes a point (parameters,) common to all clients, or (clients, parameters) with one for each, and
    returns (clients, parameters); `anchor` does the same over all rows of every client.

    Args:
        model: the model that all clients train.
        datasets: the rows of each client of the group.
        draws: the rows that each of them draws for its local steps.
        pool: where large arrays come from.
    """
    group = _Group(model, datasets, draws, pool)
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

    def __init__(self, model: Model, datasets: Sequence[Dataset], draws: Sequence[BatchDraw], pool: ArrayPool) -> None:
        self._model, self._datasets, self._draws, self._pool = model, datasets, draws, pool
        self._targets = [model.problem.targets(data) for data in datasets]
        self._stacks: dict[int | None, StackedRows] = {}  # by step; `None`: all rows
        self._factored: FactoredCohort | None = None
        if isinstance(model.problem, LinearInput) and _factored(model, datasets, draws, range(len(datasets))):
            inner = _unformed(model, model.problem, datasets, draws, range(len(datasets)))
            self._factored = FactoredCohort(model, model.problem, len(datasets), inner, pool)

    def step(self, step: int) -> StackedRows:
        """Return the rows of a local step; they are kept where a `FactoredCohort` needs them again."""
        parts = [draw.parts[step] for draw in self._draws]
        if all(isinstance(part, slice) for part in parts):
            return self.whole()
        if self._factored is None:
            return self._stacked(parts)
        if step not in self._stacks:
            self._stack_round()
        return self._stacks[step]

    def whole(self) -> StackedRows:
        """Return all rows of every client."""
        if None not in self._stacks:
            self._stacks[None] = self._stacked([slice(None)] * len(self._datasets))
        return self._stacks[None]

    def gradient(self, point: Array, stack: StackedRows) -> Any:
        """Return the mean gradients over the rows, (clients, parameters)."""
        if self._factored is not None:
            return self._factored.gradient(point, stack)
        points = np.broadcast_to(point, (len(stack.x), self._model.layout.size))
        return self._model.gradients(points, stack.x, stack.y, stack.weights)

    def _stacked(self, parts: Sequence[Rows], whole: Array | None = None, start: int = 0) -> StackedRows:
        """Stack these rows of each client, in `whole` from row `start` on where it is given."""
        return StackedRows.of(self._datasets, self._targets, parts, self._model.problem.dtype, self._pool, whole, start)

    def _stack_round(self) -> None:
        """Copy the rows of all steps side by side into one array, which a `FactoredCohort` multiplies as a whole."""
        sizes = [draw.sizes(data.rows) for data, draw in zip(self._datasets, self._draws, strict=True)]
        ends = np.cumsum([0, *np.max(sizes, axis=0)])
        whole = self._pool.empty((len(sizes), int(ends[-1]), self._datasets[0].features), self._model.problem.dtype)
        for step, start in enumerate(ends[:-1]):
            self._stacks[step] = self._stacked([draw.parts[step] for draw in self._draws], whole, int(start))


def _factored(model: Model, datasets: Sequence[Dataset], draws: Sequence[BatchDraw], members: Sequence[int]) -> bool:
    """Return whether a `FactoredCohort` can compute these clients, and with fewer multiplications for the input weight.

    It cannot for methods that remember a gradient for each of several blocks of rows. Clients that are at different
    blocks have their new gradients written into the remembered vectors (`local_steps.put`), and a vector in factors
    cannot be written into. Where all are at block 0 in all steps, `put` replaces the whole vector.
    """
    only_block_0 = all(block == 0 for i in members for block in draws[i].blocks)
    if not (isinstance(model.problem, LinearInput) and only_block_0):
        return False
    outputs, features = model.layout.specs[0].shape
    first = draws[members[0]]
    steps, rows = len(first.parts), _widest(datasets, draws, members)
    # sets of rows that are multiplied: all rows, a slice, are the same set in every step; mini-batches are one a step
    stacks = 1 if any(isinstance(part, slice) for part in first.parts) else steps
    # Multiplications for one client and round. Plain: X W^T, D^T X and an update of W in every step.
    plain = steps * outputs * features * (2 * rows + MOVED)
    # Factored: X W^T and D^T X once for each set of rows, an update of W once, ...
    ends = outputs * features * (2 * rows * stacks + MOVED)
    # ... the products X X_s^T of each pair of sets, and in every step their products with the D_s.
    between = stacks**2 / 2 * rows**2 * features + steps * stacks * rows**2 * outputs
    return ends + between < plain


def _unformed(
    model: Model, problem: LinearInput, datasets: Sequence[Dataset], draws: Sequence[BatchDraw], members: Sequence[int]
) -> tuple[str, ...]:
    """Choose the inner weights that a `FactoredCohort` does not form, by multiplications for a client and round."""
    steps, rows = len(draws[members[0]].parts), _widest(datasets, draws, members)

    def pays(outputs: int, inputs: int) -> bool:
        # products with the factors of all earlier steps, both ways, against moving the weight in all steps but one
        between = steps**2 * rows**2 * (outputs + inputs)
        return between < (steps - 1) * MOVED * outputs * inputs

    shapes = {spec.name: spec.shape for spec in model.layout}
    return tuple(name for name in problem.inner if pays(*shapes[name]))


def _widest(datasets: Sequence[Dataset], draws: Sequence[BatchDraw], members: Sequence[int]) -> int:
    """Return the number of rows of the largest step of these clients."""
    return max(max(draws[i].sizes(datasets[i].rows), default=0) for i in members)


def _block(blocks: Sequence[int]) -> Block:
    """Return the index of the block that a step uses: one number where it is the same for all clients."""
    return blocks[0] if len(set(blocks)) == 1 else np.asarray(blocks)
