"""Several clients' Gram operators as one, so that products and QR decompositions run on stacks instead of in a loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.operators import Gram

STACK_BYTES = 2**20
"""Of one stack of Gram matrices: about what stays in a core's cache from one product to the next."""


@dataclass(frozen=True)
class StackedGrams:
    """S_1 .. S_C of clients that all have `Gram.matrix`, or all have not.

    Attributes:
        matrix: (clients, features, features), or `None`.
        x: (clients, rows, features), shorter clients padded with rows of zeros, which leave S alone; `None` likewise.
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
        """S_i V_i for V of shape (clients, features, columns), or for one V of all."""
        if self.matrix is not None:
            return np.asarray(self.matrix @ basis)
        assert self.x is not None
        return np.asarray(self.x.mT @ (self.x @ basis))


def groups(grams: Sequence[Gram], kinds: Sequence[object]) -> Iterator[list[int]]:
    """Positions of clients to compute together: of one kind, one form, about one size, and few enough for a stack."""
    members: dict[object, list[int]] = {}
    for position, (gram, kind) in enumerate(zip(grams, kinds, strict=True)):
        form = gram.x.shape[0].bit_length() if gram.matrix is None else -1
        members.setdefault((kind, form), []).append(position)
    for group in members.values():
        largest = max(gram.nbytes for gram in (grams[i] for i in group))
        size = max(1, STACK_BYTES // largest)
        yield from (group[start : start + size] for start in range(0, len(group), size))
