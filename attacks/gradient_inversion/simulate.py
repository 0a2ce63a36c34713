"""Simulate the members' rounds with guessed rows, in the row space of what they sent.

Every data-dependent term of a weight update is a combination of the samples. So once the part that any client would
have sent is subtracted, the messages' rows span the samples' space: with B samples and enough rounds the 64 or 784
unknowns of a sample become B coordinates. The simulation runs in those coordinates, through the very lines the clients
run (`GradientMethod.steps`), with all members side by side, and on dual numbers for derivatives by all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np

from securefed.algorithms.base import Public
from securefed.algorithms.optimization.model import Model
from securefed.algorithms.optimization.work import Draw, Work
from securefed.attacks.gradient_inversion.dual import Dual, where
from securefed.attacks.gradient_inversion.glm import LinearModel
from securefed.attacks.gradient_inversion.proximal import is_proximal
from securefed.attacks.gradient_inversion.rounds import LocalRound, Seen, local_steps
from securefed.messages import ClientId
from securefed.tensors import Array

_RANK_TOLERANCE = 1e-13
_FAINTEST = 1e-6
_ROUNDING = 1e-12
_CACHED = 1 << 17
"""Numbers in a vector of derivatives."""


@dataclass(frozen=True)
class Simulation:
    """The members' rounds as a function of their rows.

    Attributes:
        rounds: what they received and sent, in coordinates of the rows.
        members: all clients that take part in any round, ascending.
        start: what a client remembers before the first round, in the same coordinates; `None`: as the method says.
        draws: by round, the rows of each local step of the only member; `None`: all rows in every step.
    """

    method: LocalRound
    model: LinearModel
    public: Public
    rounds: tuple[Seen, ...]
    members: tuple[ClientId, ...]
    start: tuple[Array, ...] | None = None
    draws: tuple[Draw, ...] | None = None

    @property
    def memory(self) -> tuple[Array, ...]:
        """What a client remembers before the first round: of a personalised method, the known first model."""
        return self.method.memory(Model(self.method.problem, self.public)) if self.start is None else self.start

    @cached_property
    def sizes(self) -> Array:
        """(members,) rows of each."""
        return np.array([self.public.rows[client] for client in self.members])

    @cached_property
    def slots(self) -> Array:
        """(members, widest) whether the slot holds a row."""
        return np.arange(self.sizes.max()) < self.sizes[:, None]

    def totals(self, x: Array, targets: Array) -> list[dict[str, Array]]:
        """Per round and part what each member sends, (members, parameters), zero where it takes no part.

        Args:
            x: (members, slots, width), slots without a row ignored; no slots: the part that is not data.
            targets: (members, slots, outputs).
        """
        return self._sent(x, targets, self.model.gradient)

    def sensitive(self, x: Array, targets: Array, slots: slice) -> list[dict[str, Dual]]:
        """`totals` with slopes (slots * width, members, parameters): of each member by the entries of its own rows in
        these slots."""
        return self._sent(x, targets, partial(self.model.sensitive, slots=slots))

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

    def _work(self, x: Array, targets: Array, draw: Draw | None, oracle: Callable[..., Any]) -> Work:
        sizes = self.sizes[:, None]
        weights = (np.arange(x.shape[-2]) < sizes) / sizes

        def whole(point: Array, _: int = 0) -> Array:
            return cast(Array, oracle(point, x, targets, weights))

        rows = sizes.astype(float)
        if draw is None:
            steps = local_steps(self.method)
            return Work(whole, whole, self.public, rows, (0,) * steps, (rows,) * steps)
        drawn = weights_of(draw, x.shape[-2])

        def gradient(point: Array, step: int) -> Array:
            return cast(Array, oracle(point, x, targets, drawn[step]))

        return Work(gradient, whole, self.public, rows, draw.blocks, [float(n) for n in draw.sizes(x.shape[-2])])

    def nobody(self, width: int) -> list[dict[str, Array]]:
        """`totals` of members without a row: the part of the messages that is not data."""
        members = len(self.members)
        return self.totals(np.zeros((members, 0, width)), np.zeros((members, 0, self.model.outputs)))

    def restricted(self, basis: Array) -> Simulation:
        """This simulation for rows in the span of `basis` (r, width), given by their coordinates."""
        rounds = tuple(
            replace(
                seen,
                received={part: self.model.project(value, basis) for part, value in seen.received.items()},
                total={part: self.model.project(value, basis) for part, value in seen.total.items()},
            )
            for seen in self.rounds
        )
        size = self.rounds[0].received["x"].size  # flags of a method's memory have no coordinates
        start = tuple(self.model.project(v, basis) if v.size == size else v for v in self.memory)
        return replace(self, rounds=rounds, start=start)


def weights_of(draw: Draw, rows: int) -> Array:
    """(steps, rows): how much each row counts in the mean gradient of each local step."""
    out = np.zeros((len(draw.parts), rows))
    for step, part in enumerate(draw.parts):
        out[step, part] = 1.0
    return np.asarray(out / out.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class System:
    """The equations `simulated sum = observed sum`, every part scaled to its share of the data's signal.

    With G the messages' data (rounds * parts * outputs, features) and X the rows, G = R^T X: rows of one class have
    nearly the same R, and what tells them apart are the faint left directions of G, and those that G leaves empty.
    Equations along a left direction are raised by the root of its singular value (down to a floor: where noise begins),
    which narrows the valley that a search has to follow.

    Attributes:
        simulation: in coordinates of `basis` (r, features).
        scales: by part, one over the norm of the observed messages less the part that is not data.
        left: (rounds * parts * outputs, r) left directions of the messages.
        spectrum: singular values of the messages' rows, relative to the first; all of them.
    """

    simulation: Simulation
    basis: Array
    scales: dict[str, float]
    left: Array
    spectrum: Array

    @classmethod
    def build(cls, simulation: Simulation, features: int) -> System:
        """The system of a simulation in full coordinates."""
        model = simulation.model
        nobody = simulation.nobody(features)
        signals = {
            part: np.stack(
                [seen.total[part] - out[part].sum(axis=0) for seen, out in zip(simulation.rounds, nobody, strict=True)]
            )
            for part in simulation.method.sent
        }
        norms = {part: float(np.linalg.norm(signal)) for part, signal in signals.items()}
        # What is left of rounding once everything known is subtracted is no signal.
        floors = {
            part: _ROUNDING * max(float(np.linalg.norm(s.total[part])) for s in simulation.rounds) for part in norms
        }
        scales = {part: 1.0 / norm if norm > floors[part] else 0.0 for part, norm in norms.items()}
        rows = np.stack([scales[part] * model.weight(s) for part, s in signals.items()], axis=1).reshape(-1, features)
        if is_proximal(simulation.method):
            return cls(simulation, np.eye(features), scales, np.zeros((len(rows), 0)), np.ones(1))
        left, values, directions = np.linalg.svd(rows, full_matrices=False)
        kept = int(np.sum(values > _RANK_TOLERANCE * max(values[0], np.finfo(float).tiny)))
        kept = max(1, min(kept, int(simulation.sizes.sum())))
        spectrum = values / max(values[0], np.finfo(float).tiny)
        return cls(simulation.restricted(directions[:kept]), directions[:kept], scales, left[:, :kept], spectrum)

    def drawing(self, draws: tuple[Draw, ...]) -> System:
        """The same, for a client whose rounds drew these rows."""
        return replace(self, simulation=replace(self.simulation, draws=draws))

    @property
    def shape(self) -> tuple[int, int]:
        """(samples, coordinates of a sample)."""
        return int(self.simulation.sizes.sum()), len(self.basis)

    def relative(self, samples: Array, labels: Array) -> float:
        """Misfit of the observed data signal, 0 exact, 1 as bad as no samples at all."""
        parts = sum(scale > 0 for scale in self.scales.values())
        if not parts:
            return float("nan")
        x, targets = self._slotted(samples, labels)
        with np.errstate(all="ignore"):
            return float(np.linalg.norm(self._gap(self.simulation.totals(x, targets))) / np.sqrt(parts))

    @cached_property
    def signal(self) -> float:
        """Norm of the raised data signal: the misfit of a client without data."""
        return float(np.linalg.norm(self._raised(self._gap(self.simulation.nobody(len(self.basis))))))

    @cached_property
    def floor(self) -> float:
        """Norm of the raised misfit that rounding to fixed point leaves to the true samples; 0 where nothing was."""
        deviations = [
            scale * seen.rounding.get(part, 0.0)
            for seen in self.simulation.rounds
            for part, scale in self.scales.items()
        ]
        model, rest = self.simulation.model, self._rest
        squares = rest**2 + self.left**2 @ (self._along**2 - rest**2)  # diagonal of the square of what raises
        columns = len(self.basis) + model.bias
        return float(np.sqrt(columns * np.repeat(deviations, model.outputs) ** 2 @ squares))

    @cached_property
    def _along(self) -> Array:
        """(r,) how much equations are raised along each left direction."""
        count = self.left.shape[1]
        noise = float(self.spectrum[count]) if count < len(self.spectrum) else 0.0
        return np.maximum(self.spectrum[:count], max(_FAINTEST, noise)) ** -0.5

    @property
    def _rest(self) -> float:
        """The same along all others."""
        return float(self._along[-1]) if len(self._along) else 1.0

    def _raised(self, gap: Array) -> Array:
        """(equations, ...) for a gap (rounds, parts, parameters, ...)."""
        model, trailing = self.simulation.model, gap.shape[3:]
        width = len(self.basis) * model.outputs
        both = [gap[:, :, :width].reshape(len(self.left), -1)]
        if model.bias:
            both.append(gap[:, :, width:].reshape(len(self.left), -1))
        out = [self._rest * g + self.left @ ((self._along - self._rest)[:, None] * (self.left.T @ g)) for g in both]
        return np.concatenate([value.reshape(-1, *trailing) for value in out])

    def _gap(self, sent: list[dict[str, Array]]) -> Array:
        """(rounds, parts, parameters) simulated minus observed sums, scaled."""
        members = len(self.simulation.members)
        return np.stack(
            [
                [scale * (_summed(out[part], members) - seen.total[part]) for part, scale in self.scales.items()]
                for seen, out in zip(self.simulation.rounds, sent, strict=True)
            ]
        )

    def _slotted(self, samples: Array, labels: Array) -> tuple[Array, Array]:
        """Rows (members, slots, width) and targets (members, slots, outputs)."""
        simulation, slots = self.simulation, self.simulation.slots
        x = np.zeros((*slots.shape, samples.shape[1]))
        x[slots] = samples
        targets = np.zeros((*slots.shape, simulation.model.outputs))
        targets[slots] = simulation.model.targets(labels)
        return x, targets

    def misfit(self, samples: Array, labels: Array, *, slope: bool = True) -> tuple[Array, Array]:
        """Raised residual vector and its Jacobian (equations, samples * coordinates; empty without `slope`).

        Args:
            samples: (samples, coordinates).      labels: (samples,).
        """
        x, targets = self._slotted(samples, labels)
        with np.errstate(all="ignore"):
            residual = self._raised(self._gap(self.simulation.totals(x, targets)))
            return residual, self._jacobian(x, targets) if slope else np.zeros((0, 0))

    def _jacobian(self, x: Array, targets: Array) -> Array:
        """A few slots at a time: what each step computes then stays in the cache."""
        (members, widest, width), simulation = x.shape, self.simulation
        size = simulation.model.size(width)
        slopes = np.empty((len(simulation.rounds), len(self.scales), size, members, widest, width))
        few = max(1, _CACHED // (width * members * size))
        for start in range(0, widest, few):
            part = slice(start, min(start + few, widest))
            for k, out in enumerate(simulation.sensitive(x, targets, part)):
                for which, (name, scale) in enumerate(self.scales.items()):
                    here = out[name].slopes.reshape(-1, width, members, size).transpose(3, 2, 0, 1)
                    np.multiply(here, scale, out=slopes[k, which, :, :, part])
        used = slopes if simulation.slots.all() else slopes[:, :, :, simulation.slots]
        return self._raised(used.reshape(*slopes.shape[:3], -1))


def _summed(sent: Array, members: int) -> Array:
    """Over the members, who all send the same where nothing depends on their rows."""
    return np.asarray(np.broadcast_to(sent, (members, sent.shape[-1])).sum(axis=0))
