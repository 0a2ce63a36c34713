"""Choose the parametrisation of S, and the number of first messages, for a fit of a simulated FAPS client.

A fit varies S until a simulated client sends the observed messages. Each message, (features, rank), gives as many
equations as it has entries. Few rounds are easier to fit, since errors of the starting point grow from round to round;
many rounds determine S better. In every round that is read, the attacker must know beta, the number by which FAPS pulls
the client's subspace towards the broadcast basis.
"""

from __future__ import annotations

from collections.abc import Sequence

from securefed.algorithms._pca.faps import FAPS, PERIOD
from securefed.algorithms._pca.server import BASIS
from securefed.attacks._base import RoundView
from securefed.attacks._gram.coordinates import GramParametrisation, LowRankFactor, SymmetricMatrices
from securefed.attacks._gram.faps.message_span import span_width

FEWEST, _LONGEST = 2, 12
"""Rounds that are read at least and at most. Subspaces move most in the first rounds; later ones add little."""
_REDUNDANCY = 2.5
"""Equations for each unknown that the fitted rounds must have. At 1 a fit may end at another matrix; every further
round makes a start worse, since errors of the start grow along the rounds. At 2, clients of 8 rows of digits are fitted
from three rounds instead of four: as many are solved, by later starts.
"""


def known_rounds(algorithm: FAPS, rounds: int) -> int:
    """Return the number of rounds whose beta is known.

    FAPS' adaptive rule (25) multiplies beta by 1.1 every 5 rounds if d^(k-5) <= 1.01 d^k, with d^k the distance of the
    client's subspace from Z^k. It always does at k = 5, since d^0 = 0; at k = 10 only the client knows both distances.
    """
    return min(rounds, _LONGEST, 2 * PERIOD + 1) if algorithm.adaptive else min(rounds, _LONGEST)


def parametrisation(size: int, rows: int) -> GramParametrisation:
    """Return the parametrisation of S, (size, size), with the fewest parameters.

    Args:
        size: number of rows of S.
        rows: bound on the rank of S; 0 for none.
    """
    return LowRankFactor(size, rows) if 0 < 2 * rows < size else SymmetricMatrices.of(size)


def needed_rounds(algorithm: FAPS, rounds: Sequence[RoundView], rows: int) -> tuple[int, GramParametrisation]:
    """Return how many rounds to fit, and the parametrisation of S in their messages' span.

    These are the fewest rounds with `_REDUNDANCY` equations for each unknown, or all rounds whose beta is known.
    """
    features, rank = rounds[0].broadcast[BASIS].shape
    usable = known_rounds(algorithm, len(rounds))
    count, chosen = usable, parametrisation(features, rows)
    for count in range(min(FEWEST, usable), usable + 1):
        size = span_width(features, rank, rows, count)
        chosen = parametrisation(size, rows)
        if count * size * rank >= _REDUNDANCY * chosen.determined:
            break
    return count, chosen
