"""One client's distances from its own graphs: what they tell exactly, and the likeliest completion of the rest.

Edges at 0 after every round bound their distances from below. They act on the others through the degrees while they
last, which tells about a sum or two of them at each vertex; `complete` chooses among what is left. Completing the
distances also guides the search: guesses that are no distances at all lead it into wrong minima.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.linalg import LinAlgError

from securefed.attacks.distances.chain import Chain, Course
from securefed.attacks.distances.completion import complete
from securefed.attacks.distances.momenta import switched
from securefed.attacks.distances.newton import newton
from securefed.errors import TranscriptError
from securefed.tensors import Array

GOAL = 1e-13
_PLAIN = (0.0,)
_LEVELS = np.geomspace(0.2, 2.5, 9)
"""How far above their bounds the hidden distances may lie on average, in multiples of the mean barrier at the start."""
_NEAR = 0.01
"""Misfit of a weight beyond which it counts no further, while the level is chosen: a few vertices of tiny degree
dominate the rest."""
_FLOORS = (0.2, 0.2, 0.05, 0.01, 0.0, 0.0)
_LARGEST = 1200
"""Vertices times steps of the rounds fitted together, beyond two rounds."""
_PASSES = 3
_SEARCH = (1e-3, 1.0, 1e3, 1e6)
_SHARES = (1.0, 0.3)


@dataclass(frozen=True)
class Opened:
    """What was found of one client.

    Attributes:
        distances: (edges,).      norm: of the misfit of the rounds fitted.      rank: directions that these tell.
        rounds: fitted.      unseen: edges that are only bounded.
    """

    distances: Array
    norm: float
    rank: int
    rounds: int
    unseen: int


def open_client(chain: Chain, rng: np.random.Generator, patience: int) -> Opened:
    """Search for the distances behind a client's graphs.

    Args:
        patience: most Gauss-Newton steps of one fit.

    Raises:
        TranscriptError: the graphs are so far from any client's that a step has no solution.
    """
    try:
        with np.errstate(all="ignore"):
            return _search(chain, rng, patience)
    except LinAlgError:
        raise TranscriptError("no distances explain these graphs: a step of the search has no solution") from None


def _search(chain: Chain, rng: np.random.Generator, patience: int) -> Opened:
    chain = switched(chain, rng)
    affordable = max(2, _LARGEST // (chain.edges.vertices * chain.method.local_steps))
    most = min(affordable, len(chain.graphs))
    first = chain.first(1, _FLOORS[0])
    point, _ = _fit(first, first.still, patience, _PLAIN)
    if len(chain.unseen) and most > 1 and (chain.graphs[1] > 0).any():
        point = _level(chain, point, patience)
    for floor, rounds in zip(_FLOORS, (2, 2, 2, 2, 3, most), strict=True):
        part = chain.first(min(rounds, most), max(floor, chain.method.zeta))
        for _ in range(_PASSES):
            before = point
            point, course = _fit(part, point, patience, _SEARCH)
            step = newton(part, course, (0.0,))
            if not len(step.hidden):
                break
            completed = complete(chain.edges, point, step.hidden, step.told)
            if np.linalg.norm(completed - before) < 1e-6 * np.linalg.norm(before):
                break
            point = completed
    point, course = _fit(part, point, patience, _SEARCH)
    return Opened(point, course.norm, newton(part, course, (0.0,)).rank, most, len(chain.unseen))


def _fit(chain: Chain, point: Array, patience: int, dampings: Sequence[float]) -> tuple[Array, Course]:
    """Gauss-Newton in the distances seen, Levenberg-Marquardt in those hidden."""
    course, damping = chain.run(point), 1e-2
    for _ in range(patience):
        if not course.norm > GOAL:
            break
        tried = [damping * value for value in dampings]
        best: tuple[float, float, Array, Course] | None = None
        for value, change in zip(tried, newton(chain, course, tried).changes, strict=True):
            for share in _SHARES:
                there = chain.run(point + share * change)
                if there.norm < (course.norm if best is None else best[0]):
                    best = (there.norm, value, point + share * change, there)
        if best is None:
            break
        slow = best[0] > 0.99 * course.norm
        _, value, point, course = best
        damping = float(np.clip(value, 1e-14, 1e3)) if value else damping
        if slow:
            break
    return point, course


def _level(chain: Chain, bound: Array, patience: int) -> Array:
    """The first round's fit, its hidden distances completed at the mean level that explains the second round best."""
    alone, both, hidden = chain.first(1, _FLOORS[0]), chain.first(2, _FLOORS[0]), chain.unseen
    level = np.ones((len(hidden), 1)) / np.sqrt(len(hidden))
    unit = float(np.mean(alone.still))
    best: tuple[float, Array] | None = None
    for above in _LEVELS * unit:
        point = bound.copy()
        point[hidden] += above
        for _ in range(2):
            point, _ = _fit(alone, point, min(patience, 4), _PLAIN)
            point[hidden] += bound[hidden].mean() + above - point[hidden].mean()
            point = complete(chain.edges, point, hidden, level)
            point[hidden] = np.maximum(point[hidden], bound[hidden])
        point, _ = _fit(alone, point, min(patience, 4), _PLAIN)
        apart = np.abs(both.run(point).apart[1][chain.graphs[1] > 0])
        misfit = float(np.mean(np.minimum(apart, _NEAR)))
        if best is None or misfit < best[0]:
            best = misfit, point
    assert best is not None
    return best[1]
