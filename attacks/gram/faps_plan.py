"""What a fit of FAPS' client has to determine, and how many messages say it often enough."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securefed.algorithms.pca.faps import FAPS, PERIOD
from securefed.algorithms.pca.server import BASIS
from securefed.attacks.base import Observation
from securefed.attacks.gram.coordinates import Anchored, Coordinates, Cornered, LowRank, Symmetric
from securefed.attacks.gram.faps_span import complete, frame_of, is_exact, width
from securefed.tensors import Array

FEWEST, _LONGEST = 2, 12
"""Rounds that are read, where they are known; the first ones move most."""
_REDUNDANCY, _REDUNDANCY_FEW = 2.5, 2.0
"""Equations for each unknown, and where the rank is low: every round more makes a start worse."""


def known_rounds(algorithm: FAPS, rounds: int) -> int:
    """Rounds whose beta is known: rule (25) always grows it at k = 5 (d^0 = 0), and decides anew at k = 10."""
    return min(rounds, _LONGEST, 2 * PERIOD + 1) if algorithm.adaptive else min(rounds, _LONGEST)


def coordinates_of(block: Array, rows: int, exact: bool) -> Coordinates:
    """Parameters of S in a frame whose first directions are Z_0; the first message gives the block beside them.

    Args:
        block: (I - Z_0 Z_0^T) S Z_0 in that frame, (features - rank, rank).      rows: bound on the rank of S; 0: none.
        exact: whether the block is known to round-off.
    """
    others, rank = block.shape
    if rows == 0 or 2 * (rows - rank) > others:
        return Anchored(block, Symmetric.of(others))
    if rows > rank:
        return Anchored(block, LowRank(others, rows - rank))
    return Cornered.of(block, rows) if exact else LowRank(others + rank, rows)


def is_full(coordinates: Coordinates) -> bool:
    """Whether nothing is gained by a low rank."""
    return isinstance(coordinates, Anchored) and isinstance(coordinates.rest, Symmetric)


def needed_rounds(algorithm: FAPS, rounds: Sequence[Observation], rows: int) -> tuple[int, int]:
    """Rounds to fit, of those whose beta is known as many as say every unknown twice and more; and the directions in
    which they move."""
    features, rank = rounds[0].broadcast[BASIS].shape
    known, exact = known_rounds(algorithm, len(rounds)), is_exact(rounds[0])
    for count in range(FEWEST, known + 1):
        directions = width(features, rank, rows, count) if exact else features
        coordinates = coordinates_of(np.eye(directions - rank, rank), rows, exact)
        wanted = _REDUNDANCY if is_full(coordinates) else _REDUNDANCY_FEW
        if (count - 1) * directions * rank >= wanted * coordinates.determined:
            return count, directions
    return known, width(features, rank, rows, known) if exact else features


def fitting_frame(rounds: Sequence[Observation], rows: int, exact: bool) -> Array:
    """The basis in which a fit holds S, Z_0 first.

    Where S has every symmetric entry, or messages carry noise, the others are in no order: with those that move most in
    front, the same searches end in other minima (J = 2, digits, 20 columns: 8 of 10 clients instead of 10, in four
    times the time).
    """
    first = rounds[0].broadcast[BASIS]
    features, rank = first.shape
    if not exact or is_full(coordinates_of(np.eye(features - rank, rank), rows, exact)):
        return complete(first, rank)
    return frame_of(rounds, rows)
