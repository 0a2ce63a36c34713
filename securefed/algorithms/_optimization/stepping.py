"""Base classes of methods whose clients make several local gradient steps a round, on all rows or on mini-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._public import Public
from securefed.algorithms._optimization.local_steps import BatchDraw, batches, passes
from securefed.algorithms._optimization.method import GradientMethod


@dataclass(frozen=True, kw_only=True)
class SteppingMethod(GradientMethod):
    """Base of the methods with T local steps a round.

    Attributes:
        local_steps: T >= 1, the number of local steps.
        batch_size: rows of a local step, from a fresh permutation each epoch; `None` takes all.
    """

    local_steps: int = 5
    batch_size: int | None = None

    # Settings with which tests run the method.
    test_settings: ClassVar = {"learning_rate": 0.02, "local_steps": 2}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("local_steps", self.local_steps, 1)
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size, 1, note="(or None for all rows)")

    def draw(self, rows: int, rng: np.random.Generator) -> BatchDraw:
        """Draw the rows of each local step, for a client with `rows` rows."""
        return BatchDraw.of(batches(rows, self.batch_size, self.local_steps, rng))


@dataclass(frozen=True, kw_only=True)
class PassingMethod(SteppingMethod):
    """Base of the methods with T local steps, or H passes over the client's rows, a round.

    With passes, clients with more rows make more steps.

    Attributes:
        local_epochs: H >= 1 passes, each in batches of a fresh permutation, the last one smaller where it must be;
            `local_steps` then has no meaning. `None`: T steps.
    """

    local_epochs: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_epochs is not None:
            check_integer("local_epochs", self.local_epochs, 1, note="(or None, to count steps)")

    def draw(self, rows: int, rng: np.random.Generator) -> BatchDraw:
        """Draw the rows of each local step, for a client with `rows` rows."""
        if self.local_epochs is None:
            return super().draw(rows, rng)
        return BatchDraw.of(passes(rows, self.batch_size, self.local_epochs, rng))

    def most_steps(self, public: Public) -> int:
        """Return the number of local steps of the client with the most rows."""
        if self.local_epochs is None:
            return self.local_steps
        rows = max(public.rows)
        return self.local_epochs * -(-rows // min(self.batch_size or rows, rows))  # passes times batches, rounded up
