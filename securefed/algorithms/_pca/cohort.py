"""Stack the Gram matrices of several clients, so that one call multiplies or decomposes for all of them.

FAPS, FedPG and FedPE use it to compute many simulated clients in one process (`contribute_together`). A stack stands
in for one client's `Gram` in a method's equations, which then run on arrays with a leading axis of clients. Clients are
grouped so that a stack stays in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.operators import Gram

STACK_BYTES = 2**20
"""Largest size of a stack of Gram matrices: about what stays in a core's cache from one product to the next."""


@dataclass(frozen=True)
class StackedGrams:
    """The Gram matrices S_i = x_i^T x_i of several clients: all of them formed, or none.

    Attributes:
        matrix: (clients, features, features); `None` where they are not formed.
        x: (clients, rows, features), clients with fewer rows padded with zeros, which do not change S_i; `None` where
            the Gram matrices are formed.
    """

    matrix: Array | None
    x: Array | None

    @classmethod
    def of(cls, grams: Sequence[Gram]) -> StackedGrams:
        """Stack the Gram operators of several clients."""
        formed = [gram.matrix for gram in grams if gram.matrix is not None]
        if formed:
            return cls(np.stack(formed), None)
        x = np.zeros((len(grams), max(len(gram.x) for gram in grams), grams[0].x.shape[1]))
        for k, gram in enumerate(grams):
            x[k, : len(gram.x)] = gram.x
        return cls(None, x)

    def times(self, basis: Array) -> Array:
        """Compute S_i V_i for V of shape (clients, features, columns), or S_i V for one V (features, columns)."""
        if self.matrix is not None:
            return np.asarray(self.matrix @ basis)
        assert self.x is not None
        return np.asarray(self.x.mT @ (self.x @ basis))


def groups(grams: Sequence[Gram], kinds: Sequence[object]) -> Iterator[list[int]]:
    """Yield the positions of clients to compute together.

    Clients of a group are of one kind, have their Gram matrices all formed or all not, have about equally many rows,
    and are few enough for a stack.

    Args:
        grams: the clients' Gram matrices.
        kinds: for each client a value; clients with different values are not computed together.
    """
    members: dict[object, list[int]] = {}
    for position, (gram, kind) in enumerate(zip(grams, kinds, strict=True)):
        # Not formed: numbers of rows between the same two powers of 2, as stacks are padded. Formed: any number.
        form = gram.x.shape[0].bit_length() if gram.matrix is None else -1
        members.setdefault((kind, form), []).append(position)
    for group in members.values():
        largest = max(gram.nbytes for gram in (grams[i] for i in group))
        size = max(1, STACK_BYTES // largest)
        yield from (group[start : start + size] for start in range(0, len(group), size))
