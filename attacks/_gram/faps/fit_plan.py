"""Choose what a fit of FAPS' client has to determine, and how many messages it reads."""

from __future__ import annotations

from collections.abc import Sequence

from securefed.algorithms._pca.faps import FAPS, PERIOD
from securefed.algorithms._pca.server import BASIS
from securefed.attacks._base import RoundView
from securefed.attacks._gram.coordinates import GramParametrisation, LowRankFactor, SymmetricMatrices
from securefed.attacks._gram.faps.message_span import span_width

FEWEST, _LONGEST = 2, 12
"""Rounds that are read at least and at most; the first ones move most."""
_REDUNDANCY = 2.5
"""Equations for each unknown that the fitted rounds must have. At 1 a fit may end at another matrix; every further
round makes a start worse, since errors of the start grow along the rounds. At 2, clients of 8 rows of digits are fitted
from three rounds instead of four: as many are solved, by later starts.
"""


def known_rounds(algorithm: FAPS, rounds: int) -> int:
    """Return the number of rounds whose beta is known.

    Rule (25) always grows beta at k = 5, since d^0 = 0, and decides at k = 10 by subspaces that only the client knows.
    """
    return min(rounds, _LONGEST, 2 * PERIOD + 1) if algorithm.adaptive else min(rounds, _LONGEST)


def parametrisation(size: int, rows: int) -> GramParametrisation:
    """Return the parametrisation of S, (size, size), with the fewest parameters.

    Args:
        size: of S.
        rows: bound on the rank of S; 0 for none.
    """
    return LowRankFactor(size, rows) if 0 < 2 * rows < size else SymmetricMatrices.of(size)


def needed_rounds(algorithm: FAPS, rounds: Sequence[RoundView], rows: int) -> tuple[int, GramParametrisation]:
    """Return how many rounds to fit, and the parametrisation of S in the directions in which they move.

    They are as many as have `_REDUNDANCY` equations for each unknown, or all whose beta is known.
    """
    features, rank = rounds[0].broadcast[BASIS].shape
    known = known_rounds(algorithm, len(rounds))
    count, found = known, parametrisation(features, rows)
    for count in range(min(FEWEST, known), known + 1):
        size = span_width(features, rank, rows, count)
        found = parametrisation(size, rows)
        if count * size * rank >= _REDUNDANCY * found.determined:
            break
    return count, found
