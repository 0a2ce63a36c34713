"""Rows told apart by the ReLU units that they reach, where many rounds show the same rows.

Round t's gradients of the first layer, or any weighted sum of them along a path of local steps, are gW_t = D_t^T X and
gb_t = D_t^T 1, D_t (B, units) the slopes. A row that a unit cuts off has slope 0 there. So over the rounds a unit's
rows of gW_t span exactly those rows of X that reach it; what the spans of several units have in common is again spanned
by rows of X; and where one row is all that is left, it is that one, but for its length, which the gb_t tell.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from securefed.tensors import Array

_ACCURATE = 1e-6
"""Error of a space's directions, and what rounds must lack of adding one of their own."""
_SINGULAR = 1e-9
"""Of the rows' directions, and of their lengths."""
_SAME = 1e-5
"""Sine of the angle below which spaces are the same."""
_MOST_ROWS = 8
_MOST_SPACES = 400


def tell_apart(weight: Array, bias: Array, rows: int) -> Array | None:
    """(rows, features) the rows behind the gradients, in any order, or `None` where the units do not tell them apart.

    Args:
        weight, bias: (rounds, units, features), (rounds, units) mean gradients of a layer before a ReLU.
        rows: B.

    That these ARE the rows is likely, not certain: simulate what they would have sent.
    """
    rounds, units, features = weight.shape
    if not 1 < rows <= min(_MOST_ROWS, rounds, features):
        return None
    _, values, right = np.linalg.svd(weight.reshape(-1, features), full_matrices=False)
    noise = max(values[rows] if rows < len(values) else 0.0, np.finfo(float).eps * values[0])
    if not values[rows - 1] > noise:
        return None  # the rows are dependent, or nothing reaches the units
    right = right[:rows]
    seen = weight @ right.T  # (rounds, units, rows): D^T C, X = C right
    lines = _lines([space for j in range(units) for space in _spans(seen[:, j], noise)], rows)
    if lines is None:
        return None
    flat, sums = seen.reshape(-1, rows), bias.reshape(-1)
    separated = _refined(flat, np.linalg.inv(lines), noise)  # D^T times the lengths
    lengths = np.linalg.lstsq(flat @ separated, sums, rcond=None)[0]
    if np.min(np.abs(lengths)) <= _SINGULAR * np.max(np.abs(lengths)):
        return None
    return np.asarray(np.linalg.solve(separated * lengths, right))


def _spans(seen: Array, noise: float) -> Iterator[Array]:
    """Orthonormal rows of what one unit's gradients (rounds, rows) span, from every round on and up to every round:
    a unit that cuts a row off at some point of the run mostly goes on to.

    A space is evidence only where every round lies in the span of the others: one alone adds a direction of its own,
    however many rows reach the unit then.
    """
    rounds, rows = seen.shape
    for part in (*(seen[k:] for k in range(rounds - 1)), *(seen[:k] for k in range(2, rounds))):
        left, values, directions = np.linalg.svd(part, full_matrices=False)
        count = int(np.sum(values > noise))
        if not 0 < count < min(len(part), rows) or values[count - 1] <= noise / _ACCURATE:
            continue
        if np.max(np.sum(left[:, :count] ** 2, axis=1)) < 1 - _ACCURATE:
            yield directions[:count]


def _lines(spaces: list[Array], rows: int) -> Array | None:
    """(rows, rows) the lines among the spaces and their intersections, or `None` where they are not as many as rows."""
    known: list[Array] = []
    for space in sorted(spaces, key=len):
        if not any(_equal(space, other) for other in known):
            known.append(space)
    done = 0
    while done < len(known) and len(known) < _MOST_SPACES:
        for other in known[:done]:
            common = _common(known[done], other)
            if len(common) and not any(_equal(common, old) for old in known):
                known.append(common)
        done += 1
    lines = [space[0] for space in known if len(space) == 1]
    if len(lines) != rows or np.linalg.cond(np.stack(lines)) > 1 / _SINGULAR:
        return None
    return np.stack(lines)


def _equal(one: Array, other: Array) -> bool:
    return len(one) == len(other) and float(np.linalg.norm(one - one @ other.T @ other)) < _SAME


def _common(one: Array, other: Array) -> Array:
    """(dimension, rows) orthonormal rows of the intersection: the principal directions at angle 0."""
    principal = np.linalg.svd(one @ other.T)[0].T @ one
    sines = np.linalg.norm(principal - principal @ other.T @ other, axis=1)
    return np.asarray(principal[sines < _SAME])


def _refined(seen: Array, directions: Array, noise: float) -> Array:
    """Each column again, as what vanishes on all gradients that it was found to vanish on."""
    out = directions / np.linalg.norm(directions, axis=0)
    for k in range(out.shape[1]):
        cut = np.abs(seen @ out[:, k]) <= _SAME * np.linalg.norm(seen, axis=1) + noise
        out[:, k] = np.linalg.svd(seen[cut])[2][-1]
    return np.asarray(out)
