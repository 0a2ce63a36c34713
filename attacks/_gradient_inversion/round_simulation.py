"""Simulate the members' rounds for guessed rows.

Every data-dependent term of a weight update is a combination of the rows of data. So once the data-free part is
subtracted, the messages' rows span the space of the data: with B rows and enough rounds, the 64 or 784 unknowns of a
row become B coordinates. The simulation runs in those coordinates, through the clients' own code
(`GradientMethod.steps`), with all members side by side, and on dual numbers for derivatives by all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np

from securefed._messages import ClientId
from securefed._public import Public
from securefed._tensors import Array
from securefed.algorithms._optimization.local_steps import BatchDraw, LocalTraining
from securefed.algorithms._optimization.model import Model
from securefed.attacks._gradient_inversion.contribution_clipping import ContributionClip, clipped
from securefed.attacks._gradient_inversion.dual_numbers import DualNumber, where
from securefed.attacks._gradient_inversion.gradient_rounds import GradientRound, LocalRound, local_steps
from securefed.attacks._gradient_inversion.linear_model import LinearModel


@dataclass(frozen=True)
class RoundSimulation:
    """The members' rounds as a function of their rows.

    Attributes:
        method: the client's part of a round.
        model: the linear model.
        public: public facts of the federation.
        rounds: what the members received and sent, in the rows' coordinates.
        members: all clients that take part in any round, ascending.
        start: a client's memory before the first round, in the same coordinates; `None`: the method's own.
        draws: by round, the rows of each local step of the only member; `None`: all rows in every step.
    """

    method: LocalRound
    model: LinearModel
    public: Public
    rounds: tuple[GradientRound, ...]
    members: tuple[ClientId, ...]
    start: tuple[Array, ...] | None = None
    draws: tuple[BatchDraw, ...] | None = None

    @property
    def memory(self) -> tuple[Array, ...]:
        """A client's memory before the first round; of a personalised method, the known first model."""
        return self.method.memory(Model(self.method.problem, self.public)) if self.start is None else self.start

    @cached_property
    def sizes(self) -> Array:
        """(members,) number of rows of each member."""
        return np.array([self.public.rows[client] for client in self.members])

    @cached_property
    def slots(self) -> Array:
        """(members, most rows of a member) whether the slot holds a row."""
        return np.arange(self.sizes.max()) < self.sizes[:, None]

    def totals(self, x: Array, targets: Array) -> list[dict[str, Array]]:
        """Return by round and part what each member sends, (members, parameters); zero where it takes no part.

        Args:
            x: (members, slots, width) rows; slots without a row are ignored.
            targets: (members, slots, outputs) labels as probabilities.
        """
        return self._after_clips(self._sent(x, targets, self.model.gradient))

    def totals_by_rows(self, x: Array, targets: Array, slots: slice) -> list[dict[str, DualNumber]]:
        """Return `totals` with slopes (slots * width, members, parameters): by each member's own rows in `slots`."""
        return self._after_clips(self._sent(x, targets, partial(self.model.gradient_by_rows, slots=slots)))

    def coefficients(self, x: Array, targets: Array) -> list[dict[str, Array]]:
        """Return by round and part (slots, members, outputs) the coefficients of the rows in the messages.

        The data-dependent part of the messages' weights is the sum over rows of coefficient times row.
        """
        out = []
        for seen, sent in zip(self.rounds, self._sent(x, targets, self.model.gradient_by_row_weight), strict=True):
            values, counts = {part: v.value for part, v in sent.items()}, {part: v.slopes for part, v in sent.items()}
            for clip in seen.clips:
                factors = clip.factors(values)[:, None]
                counts |= {part: counts[part] * factors for part in clip.weights}
            out.append(counts)
        return out

    def _after_clips(self, sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [clipped(out, seen.clips) if seen.clips else out for seen, out in zip(self.rounds, sent, strict=True)]

    def _sent(self, x: Array, targets: Array, gradient: Callable[..., Any]) -> list[dict[str, Any]]:
        members = len(self.members)
        memory = tuple(np.broadcast_to(vector, (members, vector.size)) for vector in self.memory)
        if self.draws and x.shape[-2]:
            works = [self._work(x, targets, draw, gradient) for draw in self.draws]
        else:  # the same in every round
            works = [self._work(x, targets, None, gradient)] * len(self.rounds)
        out = []
        for seen, work in zip(self.rounds, works, strict=True):
            sent, fresh = self.method.steps(seen.received, memory, work)
            if len(seen.members) < len(self.members):
                present = np.isin(self.members, seen.members)[:, None]
                memory = tuple(where(present, new, old) for new, old in zip(fresh, memory, strict=True))
                sent = {part: where(present, value, np.zeros(1)) for part, value in sent.items()}
            else:
                memory = fresh
            out.append(sent)
        return out

    def _work(self, x: Array, targets: Array, draw: BatchDraw | None, oracle: Callable[..., Any]) -> LocalTraining:
        sizes = self.sizes[:, None]
        weights = (np.arange(x.shape[-2]) < sizes) / sizes

        def whole(point: Array, _: int = 0) -> Array:
            return cast(Array, oracle(point, x, targets, weights))

        rows = sizes.astype(float)
        if draw is None:
            steps = local_steps(self.method)
            return LocalTraining(whole, whole, self.public, rows, (0,) * steps, (rows,) * steps)
        drawn = weights_of(draw, x.shape[-2])

        def gradient(point: Array, step: int) -> Array:
            return cast(Array, oracle(point, x, targets, drawn[step]))

        return LocalTraining(
            gradient, whole, self.public, rows, draw.blocks, [float(n) for n in draw.sizes(x.shape[-2])]
        )

    def without_rows(self, width: int) -> list[dict[str, Array]]:
        """Return unclipped `totals` of members without rows: the data-free part of the messages."""
        members, outputs = len(self.members), self.model.outputs
        return self._sent(np.zeros((members, 0, width)), np.zeros((members, 0, outputs)), self.model.gradient)

    def restricted(self, basis: Array) -> RoundSimulation:
        """Return this simulation for rows given by their coordinates in the orthonormal rows of `basis` (r, width)."""
        rounds = tuple(
            replace(
                seen,
                received={part: self.model.project(value, basis) for part, value in seen.received.items()},
                total={part: self.model.project(value, basis) for part, value in seen.total.items()},
            )
            for seen in self.rounds
        )
        if any(seen.clips for seen in self.rounds):
            data_free = self.without_rows(basis.shape[1])
            rounds = tuple(
                replace(seen, clips=self._clips_in_coordinates(seen.clips, out, basis))
                for seen, out in zip(rounds, data_free, strict=True)
            )
        size = self.rounds[0].received["x"].size  # flags of a method's memory have no coordinates
        start = tuple(self.model.project(v, basis) if v.size == size else v for v in self.memory)
        return replace(self, rounds=rounds, start=start)

    def _clips_in_coordinates(
        self, clips: tuple[ContributionClip, ...], data_free: dict[str, Array], basis: Array
    ) -> tuple[ContributionClip, ...]:
        """Return the clips for coordinates in `basis`; only the data-free part has entries outside its span."""
        full = self.model.size(basis.shape[1])
        outside = {}
        for part, vector in data_free.items():
            weight = self.model.weight(np.broadcast_to(vector, (len(self.members), full)))
            outside[part] = np.sum((weight - weight @ basis.T @ basis) ** 2, axis=(1, 2))
        nothing = np.zeros(len(self.members))
        return tuple(replace(clip, beyond=sum((outside[part] for part in clip.weights), nothing)) for clip in clips)


def weights_of(draw: BatchDraw, rows: int) -> Array:
    """Return (steps, rows) the weight of each row in the mean gradient of each local step."""
    out = np.zeros((len(draw.parts), rows))
    for step, part in enumerate(draw.parts):
        out[step, part] = 1.0
    return np.asarray(out / out.sum(axis=1, keepdims=True))
