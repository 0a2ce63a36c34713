"""Search for the random mini-batches or blocks of a client's local steps together with its rows.

A client that trains by mini-batches (or by LoSAC's blocks, a fixed partition of its rows) draws at random which rows
each local step uses, and the attacker does not know which. A draw is that choice for all local steps of one round; a
round has finitely many. Given the rows, the best draw of each round is the one whose simulated message is nearest to
the observed one; given the draws, the rows are fitted as without randomness. The two alternate. The start is a fit to
several rounds as if each step used all rows. For small steps that is close: batches that deal out all rows have
gradients at almost the same parameters, which add up to that of all rows, and the order of the batches changes a round
only by the square of the step. `SampleFit` calls this for messages of a single client.

`SumEquations` simulates a client's rounds for given rows and draws, and has the residuals of the fit: simulated less
observed messages. Its rows are written in coordinates: row = coordinates @ basis. `SumEquations.basis`, (coordinates,
features), has orthonormal rows that span the clients' rows; the messages reveal that span.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import comb, inf

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._optimization.blocks import BlockMethod
from securefed.algorithms._optimization.local_steps import BatchDraw, LocalTraining
from securefed.attacks._fitting.levenberg_marquardt import LeastSquaresFit
from securefed.attacks._gradient_inversion.contribution_clipping import clipped
from securefed.attacks._gradient_inversion.gradient_rounds import LocalRound, local_steps
from securefed.attacks._gradient_inversion.multistart_search import SOLVED, SearchResult, fit_rows
from securefed.attacks._gradient_inversion.round_simulation import weights_of
from securefed.attacks._gradient_inversion.starting_points import StartGenerator
from securefed.attacks._gradient_inversion.sum_equations import SumEquations

_DISTURBANCE = 0.5
"""Bound on the standard deviation of the noise with which a start is repeated, relative to the rows' root mean square.
"""
_FIRST_STEPS, _FIRST_ALTERNATIONS = 15, 2
"""Jacobians of a start and of each of its alternations, and their number: enough to rank the starts, not to solve."""
_FINALISTS, _TRIES = 3, 4
"""Number of starts that are continued, and how often each is. With one start and one try, SCAFFOLD's rows and draws
were not found; the search ends at the first try that explains the messages."""
_LAST_ALTERNATIONS, _LAST_STEPS = 10, 60
"""Most alternations of a try, and Jacobians of each. Draws that repeat end a try earlier."""


@dataclass(frozen=True)
class PossibleDraws:
    """All draws that a client may make in a round.

    Attributes:
        options: the draws.
        weights: (options, steps, rows) weight of each row in each local step.
    """

    options: tuple[BatchDraw, ...]
    weights: Array

    @classmethod
    def of(cls, method: LocalRound, rows: int) -> PossibleDraws:
        """List the draws of a client with so many rows."""
        options = tuple(_options(method, rows))
        return cls(options, np.stack([weights_of(draw, rows) for draw in options]))


def number_of_draws(method: LocalRound, rows: int) -> float:
    """Return the number of possible draws of a round, without listing them; infinite where float64 cannot hold it.

    With blocks, each step takes one of them. Else each pass over the rows (epoch) deals them into batches, and the rows
    that fill no batch are left out.

    Args:
        method: the algorithm; its clients draw at random, so that a batch does not hold all rows.
        rows: the client's number of rows.
    """
    steps = local_steps(method)
    try:
        if isinstance(method, BlockMethod):
            return float(method.blocks) ** steps
        size = int(getattr(method, "batch_size", None) or rows)
        whole, out = rows // size, 1.0
        for step in range(steps):
            out *= comb(rows - size * (step % whole), size)  # from the rows that are left in this epoch
        return out
    except OverflowError:  # of a power, or of an integer that becomes a float
        return inf


def _options(method: LocalRound, rows: int) -> Iterator[BatchDraw]:
    """Yield the possible draws of a round, as `number_of_draws` counts them."""
    steps = local_steps(method)
    if isinstance(method, BlockMethod):
        blocks = np.array_split(np.arange(rows), method.blocks)
        for chosen in product(range(method.blocks), repeat=steps):
            yield BatchDraw.of([blocks[j] for j in chosen], chosen)
        return
    size = int(getattr(method, "batch_size", None) or rows)
    whole = rows // size
    epochs = [min(whole, steps - start) for start in range(0, steps, whole)]
    for parts in product(*(list(_epoch(tuple(range(rows)), size, count)) for count in epochs)):
        yield BatchDraw.of([np.array(part) for epoch in parts for part in epoch])


def _epoch(left: tuple[int, ...], size: int, count: int) -> Iterator[list[tuple[int, ...]]]:
    """Yield all ways to take `count` disjoint batches of `size` rows from the rows `left`, in order."""
    if count == 0:
        yield []
        return
    for first in combinations(left, size):
        rest = tuple(row for row in left if row not in first)
        for others in _epoch(rest, size, count - 1):
            yield [first, *others]


def best_draws(
    equations: SumEquations, possible: PossibleDraws, samples: Array, labels: Array
) -> tuple[BatchDraw, ...]:
    """Return for each round the draw that fits its message best, given the draws chosen for the rounds before.

    The draws of earlier rounds matter to methods whose clients keep a memory (stored gradients). All possible draws of
    a round are simulated at once, as if each were a client of its own: the leading axis of every array counts draws.

    Args:
        equations: equations of the client.
        possible: the draws of a round.
        samples: (rows, coordinates) the rows; row = coordinates @ `equations.basis`.
        labels: (rows,) their classes.
    """
    simulation = equations.simulation
    model, method, count = simulation.model, simulation.method, len(possible.options)
    targets, rows = model.targets(labels), float(len(samples))
    memory = tuple(np.tile(vector, (count, 1)) for vector in simulation.memory)
    steps = range(len(possible.options[0].parts))
    blocks = np.array([draw.blocks for draw in possible.options])
    sizes = np.array([draw.sizes(len(samples)) for draw in possible.options], float)

    def batch_gradient(point: Array, step: int) -> Array:
        return model.gradient(point, samples, targets, possible.weights[:, step])

    def full_gradient(point: Array) -> Array:
        return model.gradient(point, samples, targets, np.full(len(samples), 1 / rows))

    training = LocalTraining(
        gradient=batch_gradient,
        anchor=full_gradient,
        public=simulation.public,
        rows=rows,
        blocks=[blocks[:, step] if blocks.any() else 0 for step in steps],  # all 0 without a memory of gradients
        sizes=[sizes[:, step, None] for step in steps],
    )
    chosen = []
    for observed in simulation.rounds:
        with np.errstate(all="ignore"):
            sent, memory_after = method.steps(observed.received, memory, training)
            sent = clipped(sent, observed.clips)
        # the parts of a message (weights, control variates) count by the size of their data-dependent share
        distances = sum(
            scale * np.linalg.norm(sent[part] - observed.total[part], axis=-1)
            for part, scale in equations.scales.items()
        )
        best = int(np.argmin(np.nan_to_num(distances, nan=np.inf)))
        chosen.append(possible.options[best])
        memory = tuple(np.tile(vector[best], (count, 1)) for vector in memory_after)
    return tuple(chosen)


@dataclass(frozen=True)
class BatchSearch:
    """Search for rows and draws together.

    From each start, rows are fitted as if every batch were full; then two alternations of draws and rows follow. The
    starts with the smallest residuals are continued, several times each, with more and more noise added to their rows.

    Attributes:
        options: number of draws of a round above which the search is not tried; `SampleFit` checks it.
        rounds: number of rounds to fit, more if the rows need them; `SampleFit` builds the equations with it.
        starts: number of starts; at least one is made for each candidate of how many rows each class has.
    """

    options: int = 4096
    rounds: int = 24
    starts: int = 8

    def __call__(
        self, equations: SumEquations, plain: StartGenerator, rng: np.random.Generator
    ) -> tuple[SumEquations, SearchResult]:
        """Return the rows, and the equations with the draws that explain the messages best.

        Args:
            equations: equations of the client, whose draws are unknown.
            plain: starting points, and equations, of the same client as if each step used all rows. Such a client's
                messages are near the observed ones while steps are small.
            rng: source of randomness.
        """
        possible = PossibleDraws.of(equations.simulation.method, int(equations.simulation.sizes[0]))
        # One round does not use all rows: starts are computed from gradients averaged over several rounds. The two
        # systems may read the messages differently (`plain` takes LoSAC's running sums), and so have different bases:
        # coordinates in `plain`'s basis, times this matrix, are those in `equations`'.
        starts, change_of_basis = plain.averaged(), plain.equations.basis @ equations.basis.T
        generated, guesses, jacobians = starts(rng), list[_BatchFit](), 0
        for _ in range(max(self.starts, len(starts.label_counts))):
            start = next(generated)
            full_batches = fit_rows(plain.equations, start.labels, start.samples.ravel(), _FIRST_STEPS)
            point = full_batches.point.reshape(plain.equations.shape) @ change_of_basis
            guess = _alternate(equations, start.labels, point, possible, _FIRST_ALTERNATIONS, _FIRST_STEPS)
            guesses.append(guess)
            jacobians += full_batches.steps + guess.jacobians
            if guess.fit.norm <= SOLVED:
                break
        guesses.sort(key=lambda one: one.fit.norm)
        best = guesses[0]
        for guess in guesses[:_FINALISTS]:
            for attempt in range(_TRIES):
                if best.fit.norm <= SOLVED:
                    break
                point = guess.fit.point.reshape(equations.shape)
                spread = _DISTURBANCE * attempt / _TRIES * float(np.sqrt(np.mean(point**2)))
                point = point + rng.normal(0.0, spread, point.shape)
                found = _alternate(equations, guess.labels, point, possible, _LAST_ALTERNATIONS, _LAST_STEPS)
                best, jacobians = min(best, found, key=lambda one: one.fit.norm), jacobians + found.jacobians
        return best.equations, SearchResult(best.labels, best.fit, len(guesses), jacobians)


@dataclass(frozen=True)
class _BatchFit:
    """Rows that were fitted, with the equations of the draws that they were fitted under.

    Attributes:
        equations: with the draws.
        labels: (rows,) classes of the rows.
        fit: the fit of the best alternation.
        jacobians: number of Jacobians of all alternations.
    """

    equations: SumEquations
    labels: Array
    fit: LeastSquaresFit
    jacobians: int


def _alternate(
    equations: SumEquations, labels: Array, point: Array, possible: PossibleDraws, alternations: int, steps: int
) -> _BatchFit:
    """Alternate between draws and rows until they explain the messages or the draws repeat.

    Args:
        equations: equations of the client, whose draws are unknown.
        labels: (rows,) classes of the rows.
        point: (rows, coordinates) the rows to start from.
        possible: the draws of a round.
        alternations: largest number of alternations.
        steps: Jacobians of the fit in each.
    """
    known = set[bytes]()  # the draws tried so far, of all rounds together
    # in place of a fit, until there is one: infinite residual, 0 steps, and a function that nothing calls
    best = _BatchFit(equations, labels, LeastSquaresFit(point.ravel(), np.inf, 0, lambda p: (p, p)), 0)
    jacobians = 0
    for _ in range(alternations):
        draws = best_draws(equations, possible, point, labels)
        key = b"".join(np.asarray(part).tobytes() for draw in draws for part in draw.parts)
        if key in known:
            break
        known.add(key)
        now = equations.with_draws(draws)
        fit = fit_rows(now, labels, point.ravel(), steps)
        jacobians += fit.steps
        if fit.norm < best.fit.norm:
            best = _BatchFit(now, labels, fit, 0)
        point = fit.point.reshape(point.shape)
        if fit.norm <= SOLVED or not np.isfinite(fit.norm):
            break
    return replace(best, jacobians=jacobians)
