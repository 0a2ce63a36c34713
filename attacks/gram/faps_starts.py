"""Where fits of FAPS' client begin, and by which way each goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from securefed.attacks.gram.linear import nearest_psd
from securefed.tensors import Array

Way = Literal["climb", "leap", "shoot", "hold"]
FEW = 6
"""Rounds to fit, below which a fit costs next to nothing, and a start by multiple shooting ten times as much."""
_WAYS: tuple[tuple[Way, float], ...]
_WAYS = (("shoot", 0.0), ("climb", 10.0), ("hold", 0.0), ("leap", 20.0), ("shoot", 0.0), ("climb", 6.0))
_WAYS_FEW: tuple[tuple[Way, float], ...]
_WAYS_FEW = (("climb", 3.0), ("leap", 2.0), ("climb", 20.0), ("shoot", 0.0), ("hold", 0.0), ("leap", 6.0))
_WAYS_NARROW: tuple[tuple[Way, float], ...]
_WAYS_NARROW = (("leap", 6.0), ("climb", 20.0), ("hold", 0.0), ("leap", 20.0), ("climb", 3.0))
"""In turn: the way, and what unknown counts start at, at most. A poor start would iterate to the cap, where its
messages no longer depend on the count. Of 40 clients with few rounds to fit (digits, 8 rows, rank 5), climbing from
counts of 3 solved 24, leaping from 2 eight more, climbing from 20 another, shooting 4 and the rest 3. In the span
of few directions each way solves half to three quarters of the clients, `hold` those that others do not."""
_UNDISTURBED, _UNDISTURBED_FEW = 3, 4
"""Starts from the estimate itself."""
_CHEAPER = 2
"""In the span of few directions a start takes tenths of a second: there are so many for each of the others, and the
second round of ways begins to mix the estimate with these shares of a random matrix."""
_SHARES = (0.03, 0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True)
class Start:
    """Where a fit begins.

    Attributes:
        gram: S.      way: how it goes on.      counts: what unknown inner counts start at, at most.
    """

    gram: Array
    way: Way
    counts: float


def starts(guess: Array, rows: int, number: int, rounds: int, *, narrow: bool) -> Iterator[Start]:
    """Starts around a guess of S, of rank `rows` at most.

    Args:
        number: how many, at full width.      rounds: that are fitted.      narrow: whether directions are few.
    """
    rng = np.random.default_rng(0)
    ways = _WAYS_NARROW if narrow else _WAYS_FEW if rounds < FEW else _WAYS
    undisturbed = len(ways) if narrow else _UNDISTURBED_FEW if rounds < FEW else _UNDISTURBED
    for attempt in range(number * _CHEAPER if narrow else number):
        share = _SHARES[attempt % len(_SHARES)] if narrow else attempt / number
        start = guess if attempt < undisturbed else _disturbed(guess, rows, share, rng)
        yield Start(start, *ways[attempt % len(ways)])


def _disturbed(guess: Array, rows: int, share: float, rng: np.random.Generator) -> Array:
    """The guess mixed with a random positive semidefinite matrix of the same size, and of rank `rows` at most."""
    size = len(guess)
    factor = rng.normal(size=(size, min(size, rows or size))) * np.exp(
        -rng.uniform(1, 3) * np.arange(min(size, rows or size)) / size
    )
    random = factor @ factor.T
    random *= np.linalg.norm(guess) / np.linalg.norm(random)
    return nearest_psd((1 - share) * guess + share * random, rows)
