"""Find out what kind of local step a user's torch loop makes, by running it on rows that the attacker knows.

An audit of such a loop calls `probe_step` before its attacks choose a method: those that read rows or labels off the
model's change in closed form need a change that is one gradient of the mean loss times a number. Whether it is, and
which number, is measured: the change d of known rows is compared with their gradient g, by the c that minimises
||d + c g||. Two runs from different draws show how much the step's own draws (shuffling, dropout) matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from securefed._auditing.training.attacked_network import attacked_network
from securefed._auditing.training.local_training import State, TorchTraining, TrainedRows, as_vector, counted_batches
from securefed.attacks._generic import clock

_ROUNDINGS: Final = 10.0
"""Roundings of the entries of a state by which a change may differ from a multiple of the gradient and count as one."""
_LEAST: Final = 1e-4
"""Relative difference that counts as rounding whatever the sizes are: gradients are themselves sums with rounding."""
_SAME: Final = 1e-9
"""Relative difference up to which two runs count as the same."""


@dataclass(frozen=True)
class StepFacts:
    """Measurements of the local step, from runs on known rows.

    Attributes:
        rows: number of rows of these runs.
        seconds: the seconds that one run takes.
        draw_spread: relative difference of two runs from other draws; 0 for a step that draws nothing.
        rate: c of the best fit change = -c gradient; the learning rate of a single gradient step.
        residual: ||change + c gradient|| / ||change||.
        precision: relative size of the rounding of the change, from the numbers' type.
        batches: number of batches in one run, as the model's batch normalisation counts them; `None` where no layer
            counts.
    """

    rows: int
    seconds: float
    draw_spread: float
    rate: float
    residual: float
    precision: float
    batches: int | None

    @property
    def repeatable(self) -> bool:
        """Whether the step draws nothing at random."""
        return self.draw_spread <= _SAME

    @property
    def one_gradient(self) -> bool:
        """Whether the change is one gradient times a number, so that closed forms apply."""
        return self.rate > 0 and self.residual <= max(_LEAST, _ROUNDINGS * self.precision)

    @property
    def kind(self) -> str:
        """Name the kind of step, without figures."""
        if self.one_gradient:
            return "one gradient step"
        draws = "repeatable" if self.repeatable else "with random draws (dropout, shuffling)"
        return f"not one gradient of the rows, {draws}"

    def __str__(self) -> str:
        if self.one_gradient:
            return f"one gradient step of rate {self.rate:.3g}"
        kind = "repeatable" if self.repeatable else f"random (two runs differ by {self.draw_spread:.0%})"
        return f"no single gradient step ({self.residual:.0%} of the change is something else), {kind}"


def probe_step(training: TorchTraining, state: State, rows: TrainedRows, seed: int) -> StepFacts:
    """Run the step twice on known rows, and compare its change with their gradient.

    Args:
        training: model, loss and step.
        state: the state that a client receives.
        rows: known to the attacker.
        seed: the seed of the draws.

    Raises:
        DataError: the step fails; see `TorchTraining.change`.
    """
    first = training.change(state, rows, seed)  # the first run of a process also loads code, and is not timed
    began = clock().now()
    second = training.change(state, rows, seed + 1)
    seconds = clock().now() - began
    one, other = (as_vector(change, training.parameters) for change in (first, second))
    size = float(np.linalg.norm(one))
    network = attacked_network(training, state, rows.x)
    vector = network.flatten({name: value for name, value in state.items() if name in network.shapes})
    weights = torch.full((len(rows),), 1.0 / len(rows), dtype=network.dtype)
    # `plain`: by torch.autograd, which suffices for one gradient, and not torch.func
    gradient = network.plain.gradient(vector, rows.x, rows.y, weights).detach().double().numpy()
    energy = float(gradient @ gradient)
    # c minimises ||change + c gradient||: -<change, gradient> / ||gradient||^2
    rate = -float(one @ gradient) / energy if energy > 0 else 0.0
    epsilon = float(torch.finfo(network.dtype).eps)
    return StepFacts(
        rows=len(rows),
        seconds=seconds,
        draw_spread=float(np.linalg.norm(one - other)) / max(size, 1e-300),
        rate=rate,
        residual=float(np.linalg.norm(one + rate * gradient)) / max(size, 1e-300),
        precision=epsilon * float(vector.double().norm()) / max(size, 1e-300),
        batches=counted_batches(first),
    )
