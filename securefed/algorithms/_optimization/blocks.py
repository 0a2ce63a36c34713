"""The base class of methods whose clients remember a gradient for each of M blocks of their rows, as SAGA does.

A local step computes the gradient of one block, uses the remembered gradients of the others, and stores the new one.
LoSAC and FedSaga derive from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._public import Public
from securefed.algorithms._optimization.local_steps import BatchDraw, Memory
from securefed.algorithms._optimization.method import GradientMethod
from securefed.algorithms._optimization.model import Model


@dataclass(frozen=True, kw_only=True)
class BlockMethod(GradientMethod):
    """Base of the methods whose local steps each take one of M blocks of the client's rows, drawn with replacement.

    Attributes:
        local_steps: T >= 1, the number of local steps in a round.
        blocks: M, contiguous blocks of almost equal size; every client needs at least M rows.
    """

    learning_rate: float = 1e-4
    local_steps: int = 5
    blocks: int = 1

    # Settings with which tests run the method.
    test_settings: ClassVar = {"learning_rate": 0.002, "local_steps": 2, "blocks": 2}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("local_steps", self.local_steps, 1)
        check_integer("blocks", self.blocks, 1)

    def memory(self, model: Model) -> Memory:
        """Return a client's memory before its first round: for each block a gradient of zeros, (parameters,)."""
        return tuple(model.zeros() for _ in range(self.blocks))

    def draw(self, rows: int, rng: np.random.Generator) -> BatchDraw:
        """Draw a block for each local step, with replacement, for a client with `rows` rows.

        Returns:
            The rows of each step and the index of its block.
        """
        blocks = np.array_split(np.arange(rows), self.blocks)
        drawn = tuple(int(j) for j in rng.integers(self.blocks, size=self.local_steps))
        return BatchDraw.of([blocks[j] if self.blocks > 1 else slice(None) for j in drawn], drawn)

    def enough_rows(self, public: Public) -> None:
        """Raise `ConfigError` unless every client has at least as many rows as blocks."""
        check_integer("blocks", self.blocks, 1, min(public.rows), note="(the rows of the smallest client)")
