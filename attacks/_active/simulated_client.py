"""Run a client of a gradient method on made-up rows, so that an attacker learns the units of its messages.

A message is a sum of gradients times a factor (learning rate, local steps, weight of the client), under the name of one
of the method's vectors. The attacker computes one message on rows of its own and reads both off it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._tensors import Array, Tensors
from securefed.algorithms._optimization.method import GradientMethod
from securefed.algorithms._optimization.model import Model, label
from securefed.attacks._base import Target
from securefed.datasets._base import Dataset


@dataclass(frozen=True)
class SimulatedClient:
    """A client of a gradient method that the attacker plays itself.

    Attributes:
        target: the algorithm and the public facts.
    """

    target: Target

    @property
    def method(self) -> GradientMethod:
        """The method; `why_no_method` has accepted it."""
        assert isinstance(self.target.algorithm, GradientMethod)
        return self.target.algorithm

    @property
    def model(self) -> Model:
        """The problem's model."""
        return Model(self.method.problem, self.target.public)

    @property
    def remembers(self) -> bool:
        """Whether clients keep a memory, so that only their first message is a gradient at the broadcast alone."""
        return len(self.method.memory(self.model)) > 0

    @property
    def repeats(self) -> bool:
        """Whether clients use all their rows in every step, so that equal broadcasts give equal messages."""
        most = max(self.target.public.rows)
        return set(self.method.draw(most, np.random.default_rng(0)).sizes(most)) == {most} and not self.remembers

    @property
    def additive(self) -> bool:
        """Whether a message is the sum of what each row would have sent by itself.

        It is so where every client has one row, and where clients make one step on all their rows.
        """
        rows = self.target.public.rows
        if max(rows) == 1:
            return True
        sizes = self.method.draw(rows[0], np.random.default_rng(0)).sizes(rows[0])
        return sizes == (rows[0],)

    def broadcast(self, honest: Tensors, parameters: Mapping[str, Array]) -> dict[str, Array]:
        """Replace the model in a broadcast, in the clients' precision; the other vectors stay as they are."""
        chosen = {name: np.asarray(value, self.method.problem.dtype) for name, value in parameters.items()}
        return {**honest, **chosen}

    def gradient(self, parameters: Tensors, x: Array, y: Array) -> Tensors:
        """Return the mean gradient of rows `x` (rows, features) with targets `y`."""
        return self.method.problem.gradient(parameters, x, y)

    def message(self, broadcast: Tensors, row: Array, target: int) -> Tensors:
        """Return what a client sends whose rows are all the same (features,), with the first client's number of rows.

        Such a client sends its first message: it has no memory yet.
        """
        rows, public = self.target.public.rows[0], self.target.public
        data = Dataset(np.tile(row, (rows, 1)), np.full(rows, target))
        rng = np.random.default_rng(0)  # of mini-batches, and all rows are the same
        state = self.method.enroll(data, public, rng)
        return self.method.contribute(state, broadcast, rng)[1]

    def row_message(self, broadcast: Tensors, row: Array, target: int) -> dict[str, Array]:
        """Return one row's share of such a message, by the tensors' names."""
        rows = self.target.public.rows[0]
        return {name: np.asarray(value, float) / rows for name, value in self.message(broadcast, row, target).items()}

    def part(self, message: Tensors, part: str) -> dict[str, Array]:
        """Return the tensors of one of the vectors of a message, by the problem's own names."""
        return {name: np.asarray(message[label(part, name)], float) for name in self.model.layout.names}


def why_no_method(target: Target) -> str | None:
    """Return why the algorithm is none whose messages hold gradients, or `None`."""
    if not isinstance(target.algorithm, GradientMethod):
        return "It chooses models whose gradients tell rows apart, and this algorithm sends no gradients."
    return None


def has_labels(problem: Any) -> bool:
    """Return whether the problem compares rows with labels."""
    return hasattr(problem, "predict") and getattr(problem, "compared_with", "labels") == "labels"
