"""Score whether records are among the rows behind a change of model state; higher means more likely.

A record is a row with its target. The change is what local training did to the model of one client, the target, or its
mean over several clients, which are called the members of the sum. A record is inside if it is one of the target's
rows, and outside if it is no member's. With weights w and change d = w' - w, a record of loss l is scored by

    loss drop            l(w) - l(w + d): how much its loss falls from the received model to the returned one
    gradient alignment   the cosine between d and -grad l(w): how much the change points against its gradient
    shadow               likelihood ratio over clients simulated with and without the record (`ShadowMembership`)

`training_seed_run` compares the scores of records inside with those of records outside. The first two scores need a
pass or two of the model for each record and no simulated client. Batch normalisation and dropout are in evaluation mode
there, since a record has no batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import torch

from securefed._auditing.training.attack_inputs import AttackInputs
from securefed._auditing.training.attacked_network import mean_loss
from securefed._auditing.training.local_training import TrainedRows, as_vector
from securefed._tensors import Array
from securefed.attacks._membership import ShadowMembership
from securefed.attacks._membership.likelihood_ratio import CandidateRecord
from securefed.errors import TranscriptError

SCORED: Final = 20
"""Most records that are scored in one run, half of them inside."""
_SHADOWS: Final = 8
"""Simulated changes with each record, and as many without; half as many leave variances of 3 degrees of freedom."""
_BEFORE: Final = 3
"""Factor by which time must grow for a single client's change, since label counts may take .3 of it before, and the
search for rows half of the rest. Neither is tried on a sum."""
_ENTRIES: Final = 2**27
"""Most numbers of simulated messages held at a time (1 GiB)."""


@dataclass(frozen=True)
class Records:
    """Records to score.

    Attributes:
        inside: records of the target.
        places: (records,) their places among the target's rows.
        outside: as many records that no member has, each of the class of the one inside at the same index.
    """

    inside: TrainedRows
    places: Array
    outside: TrainedRows

    @property
    def all(self) -> TrainedRows:
        """Records inside, then those outside."""
        return TrainedRows.joined([self.inside, self.outside])


def without_rows(rows: TrainedRows, members: TrainedRows) -> TrainedRows:
    """Leave out the rows that are equal, input and target, to one of the members' rows: copies are not outside."""
    if rows.x.shape[1:] != members.x.shape[1:] or rows.y.shape[1:] != members.y.shape[1:]:
        return rows
    known = set(_records(members))
    kept = [place for place, record in enumerate(_records(rows)) if record not in known]
    return rows.part(torch.as_tensor(kept, dtype=torch.long))


def alike_pairs(own: Array | None, absent: Array | None, places: Array, order: Array) -> tuple[Array, Array]:
    """Pair each record inside with one outside of its class, so that no score tells the two by their class.

    Args:
        own: classes of the target's rows; `None` where targets are no classes.
        absent: classes of the rows that no member has; `None` where targets are no classes.
        places: numbers of the target's rows to pair, in the order in which they choose a partner.
        order: numbers of the rows that no member has, in the order in which they are chosen.

    Returns:
        Numbers of the target's rows that have a partner, and of their partners.
    """
    left, inside, outside = list(order), [], []
    for place in places:
        same = [k for k in left if own is None or absent is None or absent[k] == own[place]]
        if same:
            inside.append(int(place))
            outside.append(int(same[0]))
            left.remove(same[0])
    return np.array(inside, np.int64), np.array(outside, np.int64)


def _records(rows: TrainedRows) -> list[bytes]:
    """Return each row's input and target as bytes."""
    parts = [part.reshape(len(rows), -1).double().numpy() for part in (rows.x, rows.y)]
    return [record.tobytes() for record in np.concatenate(parts, axis=1) + 0.0]  # one zero, also where it is negative


def loss_drops(inputs: AttackInputs, records: TrainedRows) -> Array:
    """Return (records,) each record's loss under the received model less that under the returned one."""
    before = inputs.training.received(inputs.observed.state).eval()
    after = inputs.training.received(inputs.state_after(inputs.observed.change)).eval()
    with torch.no_grad():
        return np.array(
            [
                float(mean_loss(inputs.training.loss, before(x), y) - mean_loss(inputs.training.loss, after(x), y))
                for x, y in zip(torch.split(records.x, 1), torch.split(records.y, 1), strict=True)
            ]
        )


def gradient_alignments(inputs: AttackInputs, records: TrainedRows) -> Array:
    """Return (records,) the cosine between the change and each record's descent direction at the received model."""
    module = inputs.training.received(inputs.observed.state).eval()
    names = [name for name in inputs.training.parameters if name in inputs.observed.change]
    parameters = [value for name, value in module.named_parameters() if name in names]
    change = as_vector(inputs.observed.change, tuple(names))
    out = []
    for x, y in zip(torch.split(records.x, 1), torch.split(records.y, 1), strict=True):
        loss = mean_loss(inputs.training.loss, module(x), y)
        parts = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        gradient = np.concatenate([part.double().reshape(-1).numpy() for part in parts])
        size = float(np.linalg.norm(gradient) * np.linalg.norm(change))
        out.append(-float(gradient @ change) / size if size > 0 else 0.0)
    return np.array(out)


def shadow_ratios(inputs: AttackInputs, records: Records, first: int) -> Array:
    """Return each record's log likelihood ratio, from clients simulated with it and without it.

    Every simulated change trains all members on rows of the prior; with a record, that replaces one row of the target.

    Args:
        inputs: the inputs of the attack.
        records: the records to score.
        first: place of the target's first row among all members' rows.

    Raises:
        TranscriptError: no step, or too little time or memory for the simulated clients.
    """
    facts = inputs.facts  # what runs of the local step showed, such as the seconds that it takes
    if facts is None:
        raise TranscriptError("there is no local step to simulate clients with")
    count = len(records.inside) + len(records.outside)
    runs = _SHADOWS * (count + 1) * len(inputs.rows)  # with each record and once without; a step for each member
    if runs * facts.seconds > inputs.budget.remaining:
        left = max(inputs.budget.remaining, 0.0)
        raise inputs.too_little_time(
            f"{runs} steps of {facts.seconds:.2g} s take longer than the {left:.0f} s left",
            (_BEFORE if len(inputs.rows) == 1 else 1) * runs * facts.seconds,
        )
    replay = _Simulation(inputs)
    if 3 * _SHADOWS * replay.messages.size > _ENTRIES:  # with a record, without, and a difference of that size
        raise TranscriptError(f"{2 * _SHADOWS} simulated messages of {replay.messages.size} numbers exceed its memory")
    if len(inputs.prior) < replay.rows:
        raise TranscriptError(f"{replay.rows} known rows are needed, there are {len(inputs.prior)}; give `population`")
    # A record inside is tried at its own place; one outside at the place of its partner.
    places = [*records.places, *records.places[: len(records.outside)]]
    # The scorer handles rows as vectors of numbers. Inputs and targets of any type go through it as their row numbers
    # in `replay.pool`, records first.
    replay.pool = TrainedRows.joined([records.all, inputs.prior])
    numbers = np.arange(len(replay.pool), dtype=np.float64)[:, None]
    candidates = [CandidateRecord(row, first + int(place)) for row, place in zip(numbers[:count], places, strict=True)]
    scorer = ShadowMembership(_SHADOWS)
    return scorer.score(replay, candidates, numbers[count:], inputs.rng(41))  # type: ignore[arg-type]


class _Simulation:
    """The observed change as a function of the members' rows, each given by its number in `pool`.

    It has the interface of an attack's `Replay` that `ShadowMembership` needs: `rows`, `messages`, `scale` and the
    call.
    """

    def __init__(self, inputs: AttackInputs) -> None:
        self._inputs, self.rows, self.pool = inputs, inputs.count, inputs.prior
        self._names = tuple(name for name in inputs.training.parameters if name in inputs.observed.change)

    @cached_property
    def messages(self) -> Array:
        """(numbers,) the observed change of the trained parameters."""
        return as_vector(self._inputs.observed.change, self._names)

    @cached_property
    def scale(self) -> float:
        """The size of the change."""
        return float(np.linalg.norm(self.messages))

    def __call__(self, rows: Array, seed: int) -> Array:
        """Return the simulated change (numbers,) of rows given by their numbers in `pool`, (rows, 1)."""
        chosen = self.pool.part(torch.as_tensor(rows[:, 0].astype(np.int64)))
        return as_vector(self._inputs.simulate(chosen, seed), self._names)
