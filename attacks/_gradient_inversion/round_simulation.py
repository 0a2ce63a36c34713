"""Simulate the members' rounds of logistic or softmax regression for guessed rows.

Members are the clients whose messages an observed sum holds; the attacker guesses all their rows. A message has one or
several parts (`delta`; `dx` and `dc` in SCAFFOLD), each a copy of all parameters: weights of shape (outputs, features),
and a bias. For these linear models the weights of a member's part are

    data-free part + sum_k c_k x_k^T,   x_k the member's rows, c_k (outputs,) the coefficients of row k.

The data-free part depends on what the member received only, such as momentum or a penalty's pull on the weights. Once
it is subtracted, the weights' rows (one per output) are combinations of the members' rows. So the observed messages
show the space that the members' B rows span, and each row is sought by its B coordinates in a basis of this space
instead of by its features (784 for MNIST). The simulation runs in those coordinates, through the clients' own code
(`GradientMethod.steps`), with all members side by side, and on dual arrays for derivatives by all rows at once. A
defence's clips scale each member's message afterwards (`contribution_clipping`). Members may have different numbers of
rows: every member has as many slots for rows as the largest one needs, and the rest stay empty. The fit of the rows
calls this module in every step (`sum_equations`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np

from securefed._messages import ClientId
from securefed._public import Public
from securefed._tensors import Array
from securefed.algorithms._optimization.local_steps import BatchDraw, LocalTraining
from securefed.algorithms._optimization.model import Model
from securefed.attacks._engine import DualArray
from securefed.attacks._gradient_inversion.contribution_clipping import (
    ContributionClip,
    clipped,
    data_free_factors,
    scaled,
)
from securefed.attacks._gradient_inversion.gradient_rounds import GradientRound, LocalRound, local_steps
from securefed.attacks._gradient_inversion.linear_model import LinearModel
from securefed.attacks._gradient_inversion.proximal_derivatives import is_proximal

_TINY = 1e-300
"""Smallest divisor, in place of zero."""


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
        draws: by round, the rows of each local step, for a simulation of one member alone; `None`: all rows in every
            step.
    """

    method: LocalRound
    model: LinearModel
    public: Public
    rounds: tuple[GradientRound, ...]
    members: tuple[ClientId, ...]
    start: tuple[Array, ...] | None = None
    draws: tuple[BatchDraw, ...] | None = None

    @cached_property
    def memory(self) -> tuple[Array, ...]:
        """A client's memory before the first round; for a personalised method it holds the first model.

        That is no secret: all parties draw the first model from the public `initial_seed` (`KnownStart`).
        """
        return self.method.memory(Model(self.method.problem, self.public)) if self.start is None else self.start

    @cached_property
    def _local_steps(self) -> int:
        return local_steps(self.method)

    @cached_property
    def sizes(self) -> Array:
        """(members,) number of rows of each member."""
        return np.array([self.public.rows[client] for client in self.members])

    @cached_property
    def slots(self) -> Array:
        """(members, most rows of a member) whether the slot holds a row."""
        return np.arange(self.sizes.max()) < self.sizes[:, None]

    def totals(self, x: Array, targets: Array) -> list[dict[str, Array]]:
        """Return by round and part what each member sends after clipping; zero where it takes no part in the round.

        The arrays have shape (members, parameters).

        Args:
            x: (members, slots, width) rows; slots without a row are ignored.
            targets: (members, slots, outputs) labels as probabilities.
        """
        return self._after_clips(self._sent(x, targets, self.model.gradient))

    def totals_by_rows(self, x: Array, targets: Array, slots: slice) -> list[dict[str, DualArray]]:
        """Return `totals` with their derivatives, slopes (slots * width, members, parameters).

        Slope (s, e) of a member is the derivative by entry e of that member's own row in slot s of `slots`.
        """
        return self._after_clips(self._sent(x, targets, partial(self.model.gradient_by_rows, slots=slots)))

    def coefficients(self, x: Array, targets: Array) -> list[dict[str, Array]]:
        """Return by round and part the coefficients c_k of the rows in each member's message after clipping.

        The arrays have shape (slots, members, outputs). Each row gets further entries, 1 at its own slot, that its
        logits do not see: the weights of a message are a combination of such rows, too, and show c_k there. This holds
        for gradient steps, not where a proximal operator, which is not linear, stands between them.

        A clip multiplies its blocks by a factor, and so the c_k of the parts whose weights it clips. The factors of all
        clips are computed from the unclipped values: the clips of one round act on different tensors.
        """
        (members, slots, width), model, out = x.shape, self.model, []
        wider, narrower = np.eye(width + slots, width), np.eye(width, width + slots)
        marked = np.concatenate([x, np.broadcast_to(np.eye(slots), (members, slots, slots))], axis=-1)
        all_sent = self._projected(wider)._sent(marked, targets, partial(model.gradient, seen=width))
        for item, sent in zip(self.rounds, all_sent, strict=True):
            values = {part: model.project(v, narrower) for part, v in sent.items()}
            of_rows = {part: np.moveaxis(model.weight(v)[..., width:], -1, 0) for part, v in sent.items()}
            for clip in item.clips:
                factors = clip.factors(values)[:, None]
                of_rows |= {part: of_rows[part] * factors for part in clip.weights}
            out.append(of_rows)
        return out

    def _after_clips(self, sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [clipped(out, item.clips) if item.clips else out for item, out in zip(self.rounds, sent, strict=True)]

    def _sent(self, x: Array, targets: Array, gradient: Callable[..., Any]) -> list[dict[str, Any]]:
        """Return by round and part what each member sends before clipping, zero where it takes no part in the round.

        Args:
            x: (members, slots, width) rows.
            targets: (members, slots, outputs) labels as probabilities.
            gradient: a method of `LinearModel` that computes gradients, with or without derivatives.
        """
        # All rounds at once is faster. It needs rounds that do not depend on each other, and memory for all of them:
        # too much without rows (`without_rows`), where vectors may have all features instead of few coordinates.
        independent, has_rows = not self.memory and not self.draws, x.shape[-2] > 0
        simulate = self._rounds_at_once if independent and has_rows else self._rounds_in_turn
        sent = simulate(x, targets, gradient)
        return [
            {part: np.where(present, value, np.zeros(1)) for part, value in out.items()} if present is not None else out
            for present, out in zip(self._present, sent, strict=True)
        ]

    @cached_property
    def _present(self) -> list[Array | None]:
        """By round, (members, 1) whether a member takes part; `None` if all do."""
        return [
            np.isin(self.members, item.members)[:, None] if len(item.members) < len(self.members) else None
            for item in self.rounds
        ]

    def _rounds_at_once(self, x: Array, targets: Array, gradient: Callable[..., Any]) -> list[dict[str, Any]]:
        """Simulate all rounds of a method without memory side by side, as if each round had members of its own."""
        rounds, members = len(self.rounds), len(self.members)
        received = {
            part: np.repeat(np.stack([item.received[part] for item in self.rounds]), members, axis=0)
            for part in self.rounds[0].received
        }
        work = self._work(np.tile(x, (rounds, 1, 1)), np.tile(targets, (rounds, 1, 1)), None, gradient)
        sent, _ = self.method.steps(received, (), work)
        of_round = [slice(k * members, (k + 1) * members) for k in range(rounds)]
        return [{part: value[own] for part, value in sent.items()} for own in of_round]

    def _rounds_in_turn(self, x: Array, targets: Array, gradient: Callable[..., Any]) -> list[dict[str, Any]]:
        """Simulate one round after the other: each starts from the memory that the last one left."""
        memory = tuple(np.broadcast_to(vector, (len(self.members), vector.size)) for vector in self.memory)
        if self.draws and x.shape[-2]:
            works = [self._work(x, targets, draw, gradient) for draw in self.draws]
        else:  # the same in every round
            works = [self._work(x, targets, None, gradient)] * len(self.rounds)
        out = []
        for item, present, work in zip(self.rounds, self._present, works, strict=True):
            sent, fresh = self.method.steps(item.received, memory, work)
            if present is not None:
                fresh = tuple(np.where(present, new, old) for new, old in zip(fresh, memory, strict=True))
            memory = fresh
            out.append(sent)
        return out

    def _work(self, x: Array, targets: Array, draw: BatchDraw | None, oracle: Callable[..., Any]) -> LocalTraining:
        """Return what a method's local steps ask of a client: gradients of its rows, and the numbers of rows a step.

        Rows weigh 1 / n_i in the mean gradient of a member with n_i rows, and empty slots 0.
        """
        sizes = np.tile(self.sizes, len(x) // len(self.members))[:, None]
        weights = (np.arange(x.shape[-2]) < sizes) / sizes

        def whole(point: Array, _: int = 0) -> Array:
            return cast(Array, oracle(point, x, targets, weights))

        # LocalTraining: gradient of a step, gradient of all rows, public facts, numbers of rows, then for each step the
        # index of the remembered gradient that it uses (0 without mini-batches) and its number of rows
        rows = sizes.astype(float)
        if draw is None:
            return LocalTraining(whole, whole, self.public, rows, (0,) * self._local_steps, (rows,) * self._local_steps)
        drawn = weights_of(draw, x.shape[-2])

        def gradient(point: Array, step: int) -> Array:
            return cast(Array, oracle(point, x, targets, drawn[step]))

        return LocalTraining(
            gradient, whole, self.public, rows, draw.blocks, [float(n) for n in draw.sizes(x.shape[-2])]
        )

    def without_rows(self, width: int) -> list[dict[str, Array]]:
        """Return the data-free part of each member's messages before clipping, as `totals` of members without rows.

        Args:
            width: number of features, or of coordinates.
        """
        members, outputs = len(self.members), self.model.outputs
        return self._sent(np.zeros((members, 0, width)), np.zeros((members, 0, outputs)), self.model.gradient)

    @cached_property
    def data_free(self) -> list[dict[str, Array]]:
        """Return by round and part the data-free part of the sum over members, after clipping.

        A clip scales member i's data-free part d_i by a factor s_i that depends on its rows. So the data-free part of
        the sum is sum_i s_i d_i. It is taken as s sum_i d_i, with one factor s for each clip of each round, estimated
        from the observed sums (`data_free_factors`). That is exact where the d_i are multiples of one vector, s being
        the mean of the s_i weighted by the multiples; else it is an approximation.

        With a proximal operator (such as soft thresholding), which is not linear, a message is no sum of a data-free
        part and the rows' part, so that s cannot be estimated: the part before clipping is the best guess.
        """
        before = summed_over_members(self.without_rows(self.public.features), len(self.members))  # sum_i d_i
        # only clips of weights: s is estimated from weights, and stays 1 for a clip of biases alone
        clips = [(k, clip) for k, item in enumerate(self.rounds) for clip in item.clips if clip.weights]
        if not clips or is_proximal(self.method):
            return before
        clip_of = np.full((len(before), len(self.method.sent)), -1)  # by round and part, the clip's index; -1: none
        for index, (k, clip) in enumerate(clips):
            clip_of[k, [self.method.sent.index(part) for part in clip.weights]] = index
        totals = self._scaled_weights([item.total for item in self.rounds])
        # the rest of the sums combines the members' rows, so that its rank is at most their number
        rank = int(self.sizes.sum())
        factors = data_free_factors(totals, self._scaled_weights(before), clip_of.ravel(), rank)
        out = [dict(vectors) for vectors in before]
        for factor, (k, clip) in zip(factors, clips, strict=True):
            for part, block in clip.blocks:  # weights or biases of a part
                out[k][part] = scaled(out[k][part], block, factor)
        return out

    def _scaled_weights(self, vectors: Sequence[Mapping[str, Array]]) -> Array:
        """Stack the weights of every round and part, (rounds * parts, outputs, features).

        Parts differ in size (`dx` and `dc` of SCAFFOLD); each is divided by its largest norm in an observed sum.
        """
        parts = self.method.sent
        sizes = {part: max(_TINY, *(float(np.linalg.norm(k.total[part])) for k in self.rounds)) for part in parts}
        return np.stack([self.model.weight(out[part]) / sizes[part] for out in vectors for part in parts])

    def restricted(self, basis: Array) -> RoundSimulation:
        """Return this simulation for rows given by their coordinates in the orthonormal rows of `basis` (r, width)."""
        inside = self._projected(basis)
        if not any(item.clips for item in self.rounds):
            return inside
        data_free = self.without_rows(basis.shape[1])
        rounds = [
            replace(item, clips=self._clips_in_coordinates(item.clips, out, basis))
            for item, out in zip(inside.rounds, data_free, strict=True)
        ]
        return replace(inside, rounds=tuple(rounds))

    def _projected(self, basis: Array) -> RoundSimulation:
        """Return the rounds with all vectors of parameters in coordinates of `basis`, (coordinates, width)."""

        def inside(vectors: Mapping[str, Array]) -> dict[str, Array]:
            return {part: self.model.project(value, basis) for part, value in vectors.items()}

        rounds = [replace(item, received=inside(item.received), total=inside(item.total)) for item in self.rounds]
        # vectors of the memory that have an entry for each parameter are projected; others, such as flags, stay
        parameters = self.rounds[0].received["x"].size
        start = tuple(self.model.project(v, basis) if v.size == parameters else v for v in self.memory)
        return replace(self, rounds=tuple(rounds), start=start)

    def _clips_in_coordinates(
        self, clips: tuple[ContributionClip, ...], data_free: dict[str, Array], basis: Array
    ) -> tuple[ContributionClip, ...]:
        """Return the clips for coordinates in `basis`.

        A clip's factor is norm / ||message||, of the whole message. The coordinates hold the rows' part completely, but
        of the data-free part only what lies in the span of `basis`; the squared norm of the rest goes to `beyond`.
        """
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


def summed_over_members(sent: list[dict[str, Array]], members: int) -> list[dict[str, Array]]:
    """Sum over the members; a vector without a member axis counts once for each."""

    def over(value: Array) -> Array:
        if value.ndim < 2 or len(value) != members:
            value = np.broadcast_to(value, (members, value.shape[-1]))
        return np.asarray(value.sum(axis=0))

    return [{part: over(value) for part, value in out.items()} for out in sent]
