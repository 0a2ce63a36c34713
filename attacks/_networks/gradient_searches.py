"""Minimise a non-negative function by L-BFGS, from many starts at a time.

Each search is a coroutine for one start: it yields a point and is sent the function's value and gradient there (the
gradient is called the slope). `run_searches` collects the points of all searches and evaluates them in one call, so
that torch can compute them together. Progress is measured as a share of the value, so that values must not be negative.
`staged_inversion` searches for rows in this way; the objective is `gradient_matching`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from securefed._tensors import Array

Search = Generator[Array, tuple[float, Array], None]
Evaluate = Callable[[Array], tuple[Array, Array]]
"""points (k, n) -> values (k,), slopes (k, n)."""

_SUFFICIENT, _CURVATURE = 1e-4, 0.9
"""Constants of the strong Wolfe conditions, those that Nocedal and Wright recommend for quasi-Newton methods."""
_LINE_TRIALS = 25
"""Most trials of a line search. Bisection has reached 1e-7 of the first step by then."""
_PATIENCE, _PROGRESS = 100, 0.99
"""L-BFGS ends if 100 steps lower the value by less than 1 %, so that stalled runs cost no more evaluations."""


@dataclass
class BestPoint:
    """The lowest value that a search has found.

    Attributes:
        point: (n,) point with this value.
        value: the lowest value.
        evaluations: number of evaluations so far.
    """

    point: Array
    value: float = np.inf
    evaluations: int = 0


@dataclass(frozen=True)
class LinePoint:
    """A point that a line search has tried.

    Attributes:
        along: distance from the start of the line, as a multiple of the search direction.
        value: value of the objective.
        slope: (n,) gradient of the objective.
        descent: derivative along the line.
    """

    along: float
    value: float
    slope: Array
    descent: float


def run_searches(
    searches: Sequence[Search],
    starts: Array,
    evaluate: Evaluate,
    budget: int,
    goal: float,
    stop: Callable[[int, float], bool] = lambda done, lowest: False,
) -> list[BestPoint]:
    """Run searches in lockstep, until each ends, has spent its budget, or has reached the goal.

    Args:
        searches: one coroutine for each start.
        starts: (searches, n) starting points; each is also the result of its search if that finds no finite value.
        evaluate: the objective.
        budget: most evaluations of a search.
        goal: value at which a search ends.
        stop: called after each common evaluation with the number of evaluations so far and the lowest value; all
            searches end where it returns true.

    Returns:
        The lowest point of each search, in their order.
    """
    results = [BestPoint(start) for start in starts]
    waiting = {k: next(search) for k, search in enumerate(searches)}
    while waiting:
        indices = list(waiting)
        values, slopes = evaluate(np.stack([waiting[k] for k in indices]))
        for k, value, slope in zip(indices, values.tolist(), slopes, strict=True):
            best, finite = results[k], np.isfinite(value) and bool(np.isfinite(slope).all())
            best.evaluations += 1
            if finite and value < best.value:
                best.point, best.value = waiting[k], value
            if best.evaluations >= budget or best.value <= goal:
                del waiting[k]
                continue
            try:
                waiting[k] = searches[k].send((value if finite else np.inf, slope))
            except StopIteration:
                del waiting[k]
        if stop(max(best.evaluations for best in results), min(best.value for best in results)):
            break
    return results


def lbfgs(start: Array, history: int = 100) -> Search:
    """Search by limited-memory BFGS, until the strong-Wolfe line search fails or `_PATIENCE` steps bring no progress.

    Args:
        start: (n,) starting point.
        history: number of last steps from which the inverse Hessian is estimated.

    Source: Nocedal and Wright, Numerical Optimization, algorithms 7.5, 3.5 and 3.6; the inverse Hessian in its compact
    form (Byrd, Nocedal and Schnabel 1994, (3.1)), so that a step is four matrix products whatever the history.
    """
    point = start
    value, slope = yield point
    steps, changes = np.zeros((0, len(start))), np.zeros((0, len(start)))
    value_at_progress, steps_since_progress = value, 0
    while np.isfinite(value):
        direction = -_inverse_hessian(steps, changes, slope)
        descent = float(direction @ slope)
        trial = None
        if descent < 0.0:
            # Without a Hessian estimate, the first step has at most length 1 in the sum of absolute entries.
            first_length = 1.0 if len(steps) else min(1.0, 1.0 / max(float(np.abs(slope).sum()), 1e-300))
            trial = yield from _line_search(point, direction, LinePoint(0.0, value, slope, descent), first_length)
        if trial is None:
            if not len(steps):
                return
            steps, changes = steps[:0], changes[:0]  # once more from the steepest descent
            continue
        step, change = trial.along * direction, trial.slope - slope
        if float(step @ change) > 1e-300:  # positive curvature, so that the estimate stays positive definite
            steps, changes = np.vstack([steps, step])[-history:], np.vstack([changes, change])[-history:]
        point, value, slope = point + step, trial.value, trial.slope
        steps_since_progress += 1
        if value < _PROGRESS * value_at_progress:
            value_at_progress, steps_since_progress = value, 0
        elif steps_since_progress >= _PATIENCE:
            return


def _inverse_hessian(S: Array, Y: Array, slope: Array) -> Array:
    """Return H g for the slope g, from the last steps S (rows) and the slopes' changes Y (rows), oldest first.

    With R the upper triangle of S Y^T, D its diagonal and gamma = <s, y> / <y, y> of the last step, Byrd, Nocedal and
    Schnabel's (3.1) is, for steps and changes as rows,

        H = gamma I + [S^T  gamma Y^T] [[R^-T (D + gamma Y Y^T) R^-1, -R^-T], [-R^-1, 0]] [S; gamma Y].
    """
    if not len(S):
        return slope
    products = S @ Y.T
    R = np.triu(products)
    gamma = products[-1, -1] / float(Y[-1] @ Y[-1])
    sg, yg = S @ slope, Y @ slope
    inner = solve_triangular(R, sg, check_finite=False)  # R^-1 S g
    right_side = np.diag(products) * inner + gamma * (Y @ (Y.T @ inner)) - gamma * yg
    outer = solve_triangular(R, right_side, trans=1, check_finite=False)  # R^-T times it
    return np.asarray(gamma * slope + S.T @ outer - gamma * (Y.T @ inner))


def _line_search(
    point: Array, direction: Array, origin: LinePoint, along: float
) -> Generator[Array, tuple[float, Array], LinePoint | None]:
    """Return a step that meets the strong Wolfe conditions, else the best that decreases enough, else `None`.

    Nocedal and Wright's algorithms 3.5 and 3.6 in one loop: the step doubles until `low` and `high` bracket a minimum
    (`low` is the best point that decreases enough), then the bracket shrinks.

    Args:
        point: (n,) start of the line.
        direction: (n,) search direction.
        origin: value and derivative at the start.
        along: first step.
    """
    low, high = origin, None
    for _ in range(_LINE_TRIALS):
        value, slope = yield point + along * direction
        trial = LinePoint(along, value, slope, float(slope @ direction) if np.isfinite(value) else np.inf)
        if not value <= origin.value + _SUFFICIENT * along * origin.descent or (
            low is not origin and value >= low.value
        ):
            high = trial  # too high: the minimum lies between `low` and the trial
        elif abs(trial.descent) <= -_CURVATURE * origin.descent:
            return trial  # both Wolfe conditions hold
        elif trial.descent * ((high.along - low.along) if high else 1.0) >= 0.0:
            low, high = trial, low  # rising towards `high`, or, without one, along the line: the minimum is behind
        else:
            low = trial
        if high is None:
            along = 2.0 * along
            continue
        if abs(high.along - low.along) * float(np.abs(direction).max()) < 1e-14:
            break
        along = _between(low, high)
    return low if low is not origin else None


def _between(low: LinePoint, high: LinePoint) -> float:
    """Return the minimiser of the cubic through two trials (Nocedal and Wright, (3.59)).

    It is kept at least a tenth of the width from both ends. Where the cubic has no minimiser, return the middle; where
    the function is not finite at `high`, the point a tenth from `low`.
    """
    width = high.along - low.along
    middle = low.along + 0.5 * width
    if not (np.isfinite(high.value) and np.isfinite(high.descent)):
        return low.along + 0.1 * width
    slope_sum = low.descent + high.descent - 3.0 * (low.value - high.value) / (low.along - high.along)
    square = slope_sum * slope_sum - low.descent * high.descent
    if square < 0.0:
        return middle
    root = float(np.sign(width) * np.sqrt(square))
    denominator = high.descent - low.descent + 2.0 * root
    if denominator == 0.0:
        return middle
    along = high.along - width * (high.descent + root - slope_sum) / denominator
    ends = sorted((low.along + 0.1 * width, high.along - 0.1 * width))
    return float(np.clip(along, ends[0], ends[1])) if np.isfinite(along) else middle
