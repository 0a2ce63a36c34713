"""Rows told apart at the outputs that one of them alone reaches, without a search.

Behind a ReLU some outputs see one row only. Their rows of L (gW = L R) are parallel, and nothing else is: a class of
parallel ones is a row. Modulo the rows known so far, outputs that see one further row are parallel again, and so on
until all rows are known, each modulo those known before it. What a later row j left in the column of an earlier row k
is a multiple a of its own column, and where k is cut off their ratio is a: the value that comes most often.
"""

from __future__ import annotations

import numpy as np

from securefed.tensors import Array

_ALIKE = 6.0
"""Directions this many times as far apart as their noise are one."""
_FAINT = 1e-3
"""Noise of a direction, relative, beyond which it is not compared."""
_DISTINCT = 1e-4
_AGREEING = 3


def columns(left: Array, noise: float) -> Array | None:
    """Q (B, B) with sparse columns of L Q, L = `left` (outputs, B); `None` where too few outputs see few rows.

    Args:
        noise: of an entry of `left`.
    """
    count, rng = left.shape[1], np.random.default_rng(0)
    levels: list[int] = []
    known = np.zeros((0, count))
    while len(known) < count:
        found = _parallel(left - (left @ np.linalg.pinv(known)) @ known if len(known) else left, noise, rng)
        found = found[: count - len(known)]
        if not len(found):
            return None
        levels += [len(known)] * len(found)  # rows from here on are mixed with none before
        known = np.concatenate([known, found])
    if np.linalg.cond(known) > 1e7:
        return None
    Q = np.linalg.inv(known)
    for k in reversed(range(count)):
        later = [j for j in range(count) if levels[j] > levels[k]]
        slopes = left @ Q[:, later]
        active = np.abs(slopes) > _ALIKE * noise * np.linalg.norm(Q[:, later], axis=0)
        one = active.sum(axis=1) == 1
        for place, j in enumerate(later):
            at = one & active[:, place]
            reach = _ALIKE * noise * np.linalg.norm(Q[:, k]) / np.abs(slopes[at, place])
            multiple = _commonest((left[at] @ Q[:, k]) / slopes[at, place], reach)
            if multiple is None:
                return None
            Q[:, k] -= multiple * Q[:, j]
    return np.asarray(Q / np.linalg.norm(Q, axis=0))


def _parallel(vectors: Array, noise: float, rng: np.random.Generator) -> Array:
    """(classes, B) directions that several vectors (outputs, B) share, those of most first; distinct ones only."""
    lengths = np.linalg.norm(vectors, axis=1)
    vectors, lengths = vectors[lengths * _FAINT > noise], lengths[lengths * _FAINT > noise]
    if len(vectors) < 2:
        return vectors[:0]
    first, second = rng.normal(size=(2, vectors.shape[1]))
    units = vectors / lengths[:, None]
    units *= np.sign(units @ first)[:, None]
    order = np.argsort((units @ second) / np.maximum(units @ first, 1e-300))  # the same for vectors that are parallel
    units, lengths = units[order], lengths[order]
    gaps = np.linalg.norm(np.diff(units, axis=0), axis=1)
    alike = gaps <= _ALIKE * noise * (1 / lengths[1:] + 1 / lengths[:-1])
    starts = np.flatnonzero(np.concatenate([[True], ~alike]))
    sizes = np.diff(np.append(starts, len(units)))
    found: list[Array] = []
    for k in np.argsort(-sizes, kind="stable"):
        if sizes[k] < 2 or len(found) == vectors.shape[1]:
            break
        own = slice(starts[k], starts[k] + sizes[k])
        mean = lengths[own] ** 2 @ units[own]
        mean /= np.linalg.norm(mean)
        if all(abs(mean @ other) < 1.0 - _DISTINCT**2 for other in found):
            found.append(mean)
    return np.array(found).reshape(-1, vectors.shape[1])


def _commonest(values: Array, noise: Array) -> float | None:
    """What an eighth of the values agree on up to their noise, three of them at least; `None` without such a value."""
    order = np.argsort(values)
    values, noise = values[order], noise[order]
    width = max(_AGREEING - 1, len(values) // 8)
    if len(values) <= width:
        return None
    gaps = values[width:] - values[:-width]
    start = int(np.argmin(gaps))
    own = slice(start, start + width + 1)
    return float(np.median(values[own])) if gaps[start] <= 2.0 * noise[own].max() else None
