"""Read the labels of single people off the first summed gradient of a linear model.

Before training all rows have the same predicted probabilities p, and line a of the gradient of the weights is the sum
of w (p - y) over the rows, with the weights w = x a of a public direction (`directions`) and labels y. Where w is not 0
on one row only, that line shows the row's label; on few rows, how many of them have each class. The gradient of the
bias holds the sum of p - y over all rows, by which published centring is undone. Several local steps blur the shares,
which are rounded to whole people where these are near. What noise makes of them is far from whole people. Of the row
that dominates a column whose scaling is published, the weight is about the square root of the number of rows.

Chance is the mean of what the labels of as many other people give, of 100 draws.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from securefed._auditing.implied.public_directions import Direction, directions
from securefed._auditing.implied.truth import Truth
from securefed._tensors import Array
from securefed.attacks._base import Target, View
from securefed.attacks._gradient_inversion.class_sums import ClassGradient, class_gradient, why_not_readable
from securefed.attacks.scores import leakage

NAME: Final = "gradient_inversion/labels_of_people"
_LEAST: Final = -1.0
_DRAWS: Final = 100
_NEAR: Final = 0.3
"""Distance from a whole number of people up to which a share is rounded; five local steps of .1 leave .2."""


_SCALED: Final = 2.0
"""Factor up to which the mean square of a scaled column may differ from 1: it was scaled with other rows held out."""


def labels_of_people(observed: View, target: Target, truth: Truth) -> tuple[float, float, float, float, str] | None:
    """Read the labels of the few people of each public direction, and score those that are read best.

    Args:
        observed: a view of sums over several clients; its first round is read.
        target: the algorithm and the public facts.
        truth: the rows that scores need.

    Returns:
        Leakage, chance, error, error of the guess, and who the people are; `None` where the view shows no such
        gradient, labels are no classes, or no public direction has few people.
    """
    first = replace(observed, rounds=observed.rounds[:1])
    if truth.classes is None or not first.rounds or len(first.members) < 2:
        return None
    if why_not_readable(target, first) is not None:
        return None
    rows = truth.rows(first.members)
    labels = np.concatenate([np.asarray(truth.clients[client].y) for client in sorted(first.members)])
    gradient = class_gradient(first, target, rows.mean(axis=0))
    if gradient is None:
        return None
    coded = np.eye(len(gradient.probabilities))[labels]
    rng, best = np.random.default_rng([truth.seed, 19]), None
    for one in directions(rows, truth):
        known = one if one.total else replace(one, total=_scaled_total(one, rows))
        found = _scored(gradient, known, coded, rng) if known.total else None
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    return best


def _scaled_total(direction: Direction, rows: Array) -> float:
    """Return the weight of the one row that dominates a scaled column, about; 0 for others."""
    weights = rows @ direction.coefficients + direction.constant
    if len(direction.people) > 1 or not 1 / _SCALED < np.mean(weights**2) < _SCALED:
        return 0.0
    return float(np.sign(direction.weights.sum())) * math.sqrt(len(rows))


def _scored(
    gradient: ClassGradient, direction: Direction, coded: Array, rng: np.random.Generator
) -> tuple[float, float, float, float, str] | None:
    """Read and score one direction's labels, (classes,) shares of its weight."""
    people, residual = direction.people, gradient.weight @ direction.coefficients + direction.constant * gradient.bias
    weights = direction.weights[people] / direction.weights[people].sum()
    read = gradient.probabilities - residual / direction.total
    whole = np.round(read * len(people))
    if np.ptp(weights) == 0 and np.abs(read * len(people) - whole).max() <= _NEAR:
        read = whole / len(people)
    true, guess = weights @ coded[people], coded.mean(axis=0)
    baseline, size = float(np.linalg.norm(guess - true)), float(np.linalg.norm(true))
    others = np.setdiff1d(np.arange(len(coded)), people)
    if not baseline or not len(others) or not np.isfinite(read).all():
        return None
    drawn = np.einsum("m,pmc->pc", weights, coded[rng.choice(others, (_DRAWS, len(people)))])
    error = float(np.linalg.norm(read - true))
    chances = [max(leakage(float(one), baseline), _LEAST) for one in np.linalg.norm(drawn - true, axis=1)]
    whose = "the label of one person" if len(people) == 1 else f"the labels of {len(people)} people"
    leak = max(leakage(error, baseline), _LEAST)
    return leak, float(np.mean(chances)), error / size, baseline / size, f"{whose} ({direction.words})"
