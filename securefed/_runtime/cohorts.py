"""Draw the clients of a sum (its cohort): by a schedule, uniformly, or secretly.

The server calls these functions before each sum. A seeded uniform draw is repeatable, and anyone with the seed knows
it; an accountant may count amplification by sampling only for the secret draw (`unpredictable`), so `sampling_checks`
refuses every other combination.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

import numpy as np

from securefed._messages import ClientId
from securefed.defenses._plan import SumsSoFar
from securefed.errors import ConfigError

Schedule = Callable[[int], Sequence[ClientId]]
"""Function from a round's number to the ids of its clients."""
_COHORT_STREAM = 2**32 - 1
"""Separates the cohorts' random stream from the clients' streams, whose second number is the client's id."""


def scheduled(chosen: Sequence[ClientId], everyone: Sequence[ClientId], most: int) -> tuple[ClientId, ...]:
    """Sort and check a schedule's choice; raise `ConfigError` for unknown clients or more than the planned cohort."""
    ids = sorted({int(client) for client in chosen})
    if not ids or not set(ids) <= set(everyone) or len(ids) > most:
        raise ConfigError(f"the schedule names {ids}; at most {most} of clients 0..{max(everyone)}")
    return tuple(ids)


def uniform(everyone: Sequence[ClientId], size: int, seed: int, round: int) -> tuple[ClientId, ...]:
    """Sample `size` clients uniformly without replacement; the same for the same seed and round."""
    if size == len(everyone):
        return tuple(everyone)
    rng = np.random.default_rng([seed, _COHORT_STREAM, round])
    return tuple(sorted(int(i) for i in rng.choice(everyone, size, replace=False)))


def unpredictable(everyone: Sequence[ClientId], size: int) -> tuple[ClientId, ...]:
    """Sample `size` clients uniformly from the operating system's randomness, as `FixedSizeSampling` accounts for.

    The draw cannot be repeated. Readers of the transcript or the history still see the cohort.
    """
    return tuple(sorted(random.SystemRandom().sample(list(everyone), size)))


def allowed_within(
    so_far: SumsSoFar, alive: Collection[ClientId], choose: Callable[[list[ClientId], int], Collection[ClientId]]
) -> tuple[ClientId, ...]:
    """Return parties among those alive that a sum may be over, ascending.

    Of a block that lost a few parties, more are left out: so many that `least` are, and all of it where fewer than
    `least` would stay.

    Args:
        so_far: the run's sums.
        alive: the parties that are there.
        choose: picks so many of the listed parties, which are left out.
    """
    whole = frozenset(alive)
    kept: set[int] = set()
    for block in (*so_far.blocks, whole.difference(*so_far.blocks)):
        inside = sorted(block & whole)
        lost = len(block) - len(inside)
        surplus = max(so_far.least - lost, 0) if lost else 0
        if len(inside) - surplus >= so_far.least:
            kept |= set(inside) - set(choose(inside, surplus))
    return tuple(sorted(kept))


def keep_blocks(alive: Sequence[ClientId], so_far: SumsSoFar, threshold: int) -> tuple[ClientId, ...]:
    """Leave out random clients, so that a sum over the others tells no small group of clients apart.

    Args:
        alive: survivors of the attempt that was refused.
        so_far: the run's sums.
        threshold: survivors that a sum needs.

    Returns:
        The clients to invite next, ascending. If they would be fewer than the threshold, all of `alive`: the next
        attempts then wait for clients to return.
    """
    kept = allowed_within(so_far, alive, random.SystemRandom().sample)
    return kept if len(kept) >= threshold else tuple(alive)
