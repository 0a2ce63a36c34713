"""Choose the parametrisation of S, and the number of first messages, for a fit of a simulated FAPS client.

`client_fit` asks this before it varies S until a simulated client sends the observed messages. Each message gives
features x rank equations. Few rounds are easier to fit, since errors of the starting S grow from round to
round; many rounds determine S better. Only rounds whose beta the attacker can compute are read: beta is beta_scale
times the largest eigenvalue of S until the client raises it. S and the messages are in units of that eigenvalue. The
package's head has the symbols.
"""

from __future__ import annotations

from collections.abc import Sequence

from securefed.algorithms._pca.faps import FAPS, PERIOD
from securefed.algorithms._pca.server import BASIS
from securefed.attacks._base import RoundView
from securefed.attacks._gram.coordinates import GramParametrisation, LowRankFactor, SymmetricMatrices
from securefed.attacks._gram.faps.message_span import span_width

FEWEST, LONGEST = 2, 12
"""Rounds that a fit reads at least and at most. Subspaces move most in the first rounds; later ones add little."""
_REDUNDANCY = 2.5
"""Equations for each unknown that the fitted rounds must have. At 1 a fit may end at another matrix; every further
round makes it harder to fit from an inexact start. At 2, clients of 8 rows of digits are fitted from three rounds
instead of four. That solves as many of them, but more starting points fail first."""


def known_rounds(algorithm: FAPS, rounds: int) -> int:
    """Return the number of rounds whose beta is known.

    FAPS' adaptive rule, (25) of its paper, is applied in the rounds k = 5, 10, ... (multiples of `PERIOD`). It
    multiplies the beta of later rounds by 1.1 if d_(k-5) <= 1.01 d_k, with d_k the distance of the client's subspace
    from Z_k. At k = 5 this always holds, since d_0 = 0. At k = 10 only the client knows both distances, so that beta is
    known in rounds 0 to 10.

    Args:
        algorithm: the FAPS that the client runs.
        rounds: number of observed rounds.
    """
    return min(rounds, 2 * PERIOD + 1) if algorithm.adaptive else rounds


def parametrisation(size: int, rows: int) -> GramParametrisation:
    """Return the parametrisation of S, (size, size), with the fewest parameters.

    A factor F of S = F F^T, (size, rows), has fewer entries than the upper triangle of S where 2 rows < size.

    Args:
        size: number of rows of S.
        rows: bound on the rank of S; 0 for none.
    """
    return LowRankFactor(size, rows) if 0 < 2 * rows < size else SymmetricMatrices.of(size)


def needed_rounds(algorithm: FAPS, rounds: Sequence[RoundView], rows: int) -> tuple[int, GramParametrisation]:
    """Return how many first rounds to fit, and the parametrisation of S in the span of their messages.

    These are the fewest rounds with `_REDUNDANCY` equations for each unknown; where no number of rounds is enough, all
    rounds whose beta is known. In the span S is (size, size), with size <= features (`message_span`).

    Args:
        algorithm: the FAPS that the client runs.
        rounds: the client's rounds from its first on.
        rows: public bound on the rank of S, the client's number of rows; 0 for none.
    """
    features, rank = rounds[0].broadcast[BASIS].shape  # of Z_0
    usable = min(LONGEST, known_rounds(algorithm, len(rounds)))
    for count in range(min(FEWEST, usable), usable + 1):
        size = span_width(features, rank, rows, count)
        chosen = parametrisation(size, rows)
        # `determined` counts the unknowns: the parameters without directions in which S does not change
        if count * size * rank >= _REDUNDANCY * chosen.determined:
            break
    return count, chosen
