"""Inputs of an attack on a torch loop: the observed change of model state, and the public facts that go with it.

The change is that of one member, or the mean over several members' changes, weighted by `ObservedChange.shares`.
`simulate` computes the same from rows of the attacker's own, by the caller's step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from securefed._auditing.training.attacked_network import attacked_network
from securefed._auditing.training.local_training import TorchTraining, TrainedRows
from securefed._auditing.training.lookup_tables import LookupTable
from securefed._auditing.training.observed_runs import ObservedChange
from securefed._auditing.training.step_probe import StepFacts
from securefed._auditing.training.token_inputs import TokenInputs
from securefed._tensors import Array
from securefed.attacks._generic import TimeBudget
from securefed.attacks._networks.flat_network import FlatNetwork
from securefed.errors import TranscriptError


class TooLittleTime(TranscriptError):
    """An attack had too little time.

    What to do: allow more `seconds`; the report names the most that any attack asked for, once (`training_audit`).

    Attributes:
        seconds: those of the audit that would do, a guess, as steps vary in time; `None` where it is not known.
    """

    def __init__(self, reason: str, seconds: float | None) -> None:
        super().__init__(f"{reason}; allow more `seconds`")
        self.seconds = seconds


@dataclass(frozen=True)
class AttackInputs:
    """Inputs of every attack on one observed change.

    Attributes:
        training: model, loss and local step, which are public.
        observed: what the attacker sees.
        rows: number of rows of each member.
        prior: rows like the clients', which the attacker knows.
        classes: number of classes; 0 where targets are no classes.
        text: the tokens in the rows; `None` where rows are no tokens.
        facts: what runs of the step on known rows show; `None` where there is no step to run.
        budget: time that is left.
        share: the share of the audit's `seconds` that the attacks on one view of one run get, less where more seconds
            would have the audit take slower steps; 0 where it is not known.
        tables: tables that the model looks whole numbers of the rows up in.
    """

    training: TorchTraining
    observed: ObservedChange
    rows: tuple[int, ...]
    prior: TrainedRows
    classes: int
    text: TokenInputs | None
    facts: StepFacts | None
    budget: TimeBudget
    share: float = 0.0
    tables: tuple[LookupTable, ...] = ()

    def too_little_time(self, reason: str, needed: float) -> TooLittleTime:
        """Return the error of an attack that had too little time.

        Args:
            reason: what takes too long.
            needed: seconds that would have to be left, beyond those that the attacks before it spent.
        """
        spent = self.budget.seconds - self.budget.remaining
        return TooLittleTime(reason, (spent + needed) / self.share if self.share else None)

    @property
    def count(self) -> int:
        """Number of rows behind the message."""
        return sum(self.rows)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row as the model takes it."""
        return tuple(self.prior.x.shape[1:])

    @property
    def seed(self) -> int:
        """Number of the run."""
        return self.observed.seed

    @property
    def one_gradient(self) -> bool:
        """Whether the change is one gradient of all rows, times a number."""
        return self.facts is not None and self.facts.one_gradient

    @property
    def rows_count_alike(self) -> bool:
        """Whether the message is a mean over all rows, and not over members of different numbers of rows."""
        return np.allclose(self.observed.shares, np.asarray(self.rows) / self.count)

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """Range of the rows' entries, as the prior shows it."""
        low, high = (float(value) for value in self.prior.x.double().aminmax())
        return (low, high) if high > low else (low, low + 1.0)

    @cached_property
    def network(self) -> FlatNetwork:
        """The mean loss as a function of parameters and rows."""
        return attacked_network(self.training, self.observed.state, self.prior.x)

    @cached_property
    def point(self) -> Tensor:
        """(parameters,) those that the clients received."""
        return self.network.flatten({name: self.observed.state[name] for name in self.network.shapes})

    @cached_property
    def message(self) -> Tensor:
        """(parameters,) the observed change of the trained parameters."""
        return self.network.flatten({name: self.observed.change[name] for name in self.network.shapes})

    def gradient(self) -> Tensor:
        """Return minus the change over the rate, (parameters,).

        It is the mean gradient for one gradient step; for other steps only its direction is meant.
        """
        rate = self.facts.rate if self.facts is not None and self.facts.rate > 0 else 1.0
        return -self.message / rate

    def rng(self, stream: int) -> np.random.Generator:
        """Return the generator of one attack; each attack has a stream of its own."""
        return np.random.default_rng([self.seed, stream])

    def targets(self, labels: Array) -> Tensor:
        """Return labels (n,) as the targets (n, ...) that the loss takes."""
        known = self.prior.y
        return torch.as_tensor(np.asarray(labels)).to(known.dtype).reshape(-1, *known.shape[1:])

    def draw(self, rng: np.random.Generator, count: int) -> TrainedRows:
        """Draw rows of the prior, without replacement where there are enough."""
        places = rng.choice(len(self.prior), count, replace=count > len(self.prior))
        return self.prior.part(torch.as_tensor(places))

    def simulate(self, rows: TrainedRows, seed: int) -> dict[str, Array]:
        """Return the change that all members would cause together: the mean of theirs, weighted as the observed one.

        Args:
            rows: the rows of all members, in the members' order.
            seed: the seed of the members' draws.
        """
        changes, first = [], 0
        for place, count in enumerate(self.rows):
            own = rows.part(slice(first, first + count))
            # each member draws from a seed of its own
            changes.append(self.training.change(self.observed.state, own, 1000 * seed + place))
            first += count
        pairs = list(zip(self.observed.shares, changes, strict=True))
        return {name: np.sum([share * change[name] for share, change in pairs], axis=0) for name in changes[0]}

    def state_after(self, change: Mapping[str, Array]) -> dict[str, Tensor]:
        """Return the received state plus a change; entries that the change lacks stay as received."""
        return {
            name: value + torch.as_tensor(change[name]).to(value.dtype) if name in change else value
            for name, value in self.observed.state.items()
        }

    def on(self, change: Mapping[str, Array]) -> AttackInputs:
        """Return the same inputs with another message."""
        return replace(self, observed=replace(self.observed, change=change))


def in_two_digits(seconds: float) -> int:
    """Round up to a whole number of which all digits but the first two are 0."""
    unit: int = 10 ** max(math.floor(math.log10(max(seconds, 1.0))) - 1, 0)
    return math.ceil(seconds / unit) * unit
