"""Mini-batches and blocks drawn at random: which rows each local step took, and the rows themselves, in turn.

A client's draws are finitely many. Given rows, each round tells which draw fits its message best; given the draws, the
rows are fitted as ever. Rows fitted as if every step took all of them are near enough to begin with where steps are
small: a wrong order of the same batches changes a round by the square of the step only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from math import factorial

import numpy as np

from securefed.algorithms.optimization.blocks import BlockMethod
from securefed.algorithms.optimization.work import Draw, Work
from securefed.attacks.gradient_inversion.clipping import clipped
from securefed.attacks.gradient_inversion.rounds import LocalRound, local_steps
from securefed.attacks.gradient_inversion.search import SOLVED, Found, run
from securefed.attacks.gradient_inversion.simulate import weights_of
from securefed.attacks.gradient_inversion.starts import Starts
from securefed.attacks.gradient_inversion.system import System
from securefed.attacks.levenberg import Fit
from securefed.tensors import Array

_DISTURBED = 0.5


@dataclass(frozen=True)
class Drawn:
    """All draws that a round of a client may have made.

    Attributes:
        options: the draws.      weights: (options, steps, rows).
    """

    options: tuple[Draw, ...]
    weights: Array

    @classmethod
    def of(cls, method: LocalRound, rows: int) -> Drawn:
        options = tuple(_options(method, rows))
        return cls(options, np.stack([weights_of(draw, rows) for draw in options]))


def number(method: LocalRound, rows: int) -> float:
    """How many draws a round may have made."""
    steps = local_steps(method)
    if isinstance(method, BlockMethod):
        return float(method.blocks) ** steps
    size = int(getattr(method, "batch_size", None) or rows)
    whole = rows // size
    out = 1.0
    while steps > 0:
        now = min(steps, whole)
        out, steps = out * _ordered(rows, size, now), steps - now
    return out


def _ordered(rows: int, size: int, batches: int) -> float:
    """Ways to take so many batches from the rows, one after the other."""
    return factorial(rows) / (float(factorial(size)) ** batches * factorial(rows - size * batches))


def _options(method: LocalRound, rows: int) -> Iterator[Draw]:
    steps = local_steps(method)
    if isinstance(method, BlockMethod):
        blocks = np.array_split(np.arange(rows), method.blocks)
        for chosen in product(range(method.blocks), repeat=steps):
            yield Draw.of([blocks[j] for j in chosen], chosen)
        return
    size = int(getattr(method, "batch_size", None) or rows)
    whole = rows // size
    epochs = [min(whole, steps - start) for start in range(0, steps, whole)]
    for parts in product(*(list(_epoch(tuple(range(rows)), size, count)) for count in epochs)):
        yield Draw.of([np.array(part) for epoch in parts for part in epoch])


def _epoch(left: tuple[int, ...], size: int, count: int) -> Iterator[list[tuple[int, ...]]]:
    if count == 0:
        yield []
        return
    for first in combinations(left, size):
        rest = tuple(row for row in left if row not in first)
        for others in _epoch(rest, size, count - 1):
            yield [first, *others]


def choose(system: System, drawn: Drawn, samples: Array, labels: Array) -> tuple[Draw, ...]:
    """By round, the draw that fits its message best, the rounds before having made theirs."""
    simulation = system.simulation
    model, method, many = simulation.model, simulation.method, len(drawn.options)
    targets, rows = model.targets(labels), float(len(samples))
    memory = tuple(np.tile(vector, (many, 1)) for vector in simulation.memory)
    steps = range(len(drawn.options[0].parts))
    blocks = np.array([draw.blocks for draw in drawn.options])
    sizes = np.array([draw.sizes(len(samples)) for draw in drawn.options], float)

    def gradient(point: Array, step: int) -> Array:
        return model.gradient(point, samples, targets, drawn.weights[:, step])

    def whole(point: Array) -> Array:
        return model.gradient(point, samples, targets, np.full(len(samples), 1 / rows))

    work = Work(
        gradient,
        whole,
        simulation.public,
        rows,
        [blocks[:, step] if blocks.any() else 0 for step in steps],
        [sizes[:, step, None] for step in steps],
    )
    out = []
    for seen in simulation.rounds:
        with np.errstate(all="ignore"):
            sent, fresh = method.steps(seen.received, memory, work)
            sent = clipped(sent, seen.clips)
        gaps = sum(
            scale * np.linalg.norm(sent[part] - seen.total[part], axis=-1) for part, scale in system.scales.items()
        )
        best = int(np.argmin(np.nan_to_num(gaps, nan=np.inf)))
        out.append(drawn.options[best])
        memory = tuple(np.tile(vector[best], (many, 1)) for vector in fresh)
    return tuple(out)


@dataclass(frozen=True)
class Alternation:
    """The search for rows and draws together.

    Every plausible count of labels has its starts: full batches are fitted, then draws and rows in turn, briefly. The
    best `finalists` go on, again from rows disturbed more and more.

    Attributes:
        options: draws of a round beyond which it is not tried.      rounds: most rounds fitted.
        entrants: starts; at least one for each count of labels.      opening: Jacobians of a start and of its turns.
        finalists, tries: how many go on, and how often.      turns, closing: most turns of a try, and their Jacobians.
    """

    options: int = 4096
    rounds: int = 24
    entrants: int = 8
    opening: int = 15
    finalists: int = 3
    tries: int = 4
    turns: int = 10
    closing: int = 60

    def __call__(self, system: System, plain: Starts, rng: np.random.Generator) -> tuple[System, Found]:
        """Rows, and the system with the draws that explain the messages best.

        Args:
            system: of the method itself.      plain: starts of one that draws nothing and sends about the same.
        """
        drawn = Drawn.of(system.simulation.method, int(system.simulation.sizes[0]))
        starts, change = plain.averaged(), plain.system.basis @ system.basis.T
        source, heat, used = starts(rng), list[_Guess](), 0
        for _ in range(max(self.entrants, len(starts.label_counts))):
            start = next(source)
            rough = run(plain.system, start.labels, start.samples.ravel(), self.opening)
            point = rough.point.reshape(plain.system.shape) @ change
            guess = _turns(system, start.labels, point, drawn, 2, self.opening)
            heat, used = [*heat, guess], used + rough.steps + guess.fit.steps
            if guess.fit.norm <= SOLVED:
                break
        heat.sort(key=lambda one: one.fit.norm)
        best = heat[0]
        for guess in heat[: self.finalists]:
            for attempt in range(self.tries):
                if best.fit.norm <= SOLVED:
                    break
                point = guess.fit.point.reshape(system.shape)
                spread = _DISTURBED * attempt / self.tries * float(np.sqrt(np.mean(point**2)))
                point = point + rng.normal(0.0, spread, point.shape)
                found = _turns(system, guess.labels, point, drawn, self.turns, self.closing)
                best, used = min(best, found, key=lambda one: one.fit.norm), used + found.fit.steps
        return best.system, Found(best.labels, best.fit, len(heat), used)


@dataclass(frozen=True)
class _Guess:
    system: System
    labels: Array
    fit: Fit


def _turns(system: System, labels: Array, point: Array, drawn: Drawn, turns: int, steps: int) -> _Guess:
    """Draws and rows in turn, until they explain the messages or draws repeat."""
    known, best = set[bytes](), _Guess(system, labels, Fit(point.ravel(), np.inf, 0, lambda p: (p, p)))
    for _ in range(turns):
        draws = choose(system, drawn, point, labels)
        key = b"".join(np.asarray(part).tobytes() for draw in draws for part in draw.parts)
        if key in known:
            break
        known.add(key)
        now = system.drawing(draws)
        fit = run(now, labels, point.ravel(), steps)
        if fit.norm < best.fit.norm:
            best = _Guess(now, labels, fit)
        point = fit.point.reshape(point.shape)
        if fit.norm <= SOLVED or not np.isfinite(fit.norm):
            break
    return best
