"""Choose the clients of a sum (its cohort): by a schedule, uniformly, secretly, or by scalars that they reveal.

The server calls these functions before each sum. A seeded uniform draw is repeatable, and anyone with the seed knows
it; an accountant may count amplification by sampling only for the secret draw (`unpredictable`), so `privacy_checks`
refuses every other combination. An algorithm may also choose the cohort among more clients, the candidates, by a
statistic of each, such as a gradient norm. These scalars leave the client outside the defence, and only where the
caller agreed (`reveal`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from securefed._messages import ClientId
from securefed._public import Public
from securefed._tensors import Tensors
from securefed.algorithms._base import Algorithm
from securefed.algorithms._capabilities import SupportsClientSelection, SupportsPrivacyCost, supports
from securefed.defenses._base import Defense, Plan
from securefed.defenses._plan import SumsSoFar
from securefed.errors import ConfigError, RoundVoid

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


def selecting(algorithm: Algorithm[Any, Any]) -> SupportsClientSelection[Any] | None:
    """Return the algorithm if it selects clients by scalars that they reveal, else `None`."""
    return algorithm if supports(algorithm, SupportsClientSelection) and algorithm.reveals else None


def revealed_scalars(algorithm: Algorithm[Any, Any]) -> Mapping[str, str]:
    """Return the scalars that single clients reveal outside the defence, by name; empty if there are none."""
    chooser = selecting(algorithm)
    return chooser.reveals if chooser is not None else {}


def disclosures(algorithm: Algorithm[Any, Any], public: Public) -> tuple[str, ...]:
    """Return sentences for the plan: what the algorithm assumes, and one for each scalar that its clients reveal."""
    own = algorithm.assumptions(public) if supports(algorithm, SupportsPrivacyCost) else ()
    revealed = revealed_scalars(algorithm).items()
    return (*own, *(f"revealed by each candidate in the clear, outside the defence: {n} ({w})" for n, w in revealed))


def check_reveal(algorithm: Algorithm[Any, Any], defense: Defense, reveal: bool | None) -> bool:
    """Tell whether clients reveal scalars in this run.

    Args:
        algorithm: the run's algorithm.
        defense: protects the contributions in messages.
        reveal: the caller's choice; `None` allows it only where the defence hides nothing.

    Raises:
        ConfigError: the defence would hide what the scalars reveal, and `reveal` is not True; or `reveal` is False.
    """
    names = revealed_scalars(algorithm)
    if not names:
        return False
    if reveal is None and defense.aggregation.name != "plain":
        raise ConfigError(
            f"the algorithm selects clients by {', '.join(names)} of each candidate, which travels outside the defence "
            f"{defense.name!r}: pass reveal=True to accept that, or select uniformly"
        )
    if reveal is False:
        raise ConfigError(f"reveal=False, but the algorithm selects clients by {', '.join(names)}; select uniformly")
    return True


def check_no_noise(algorithm: Algorithm[Any, Any], plan: Plan) -> None:
    """Check that no scalar is revealed beside noise, because epsilon would not cover it.

    Raises:
        ConfigError: the algorithm selects clients by revealed scalars, and the defence or the algorithm itself adds
            noise; `reveal=True` does not help.
    """
    names = revealed_scalars(algorithm)
    if names and (plan.noised or supports(algorithm, SupportsPrivacyCost)):
        raise ConfigError(
            f"the algorithm selects clients by {', '.join(names)} of each candidate, exact numbers of its data that no "
            "epsilon covers, and this run claims one; select uniformly, or run without noise"
        )


def by_revealed(
    algorithm: SupportsClientSelection[Any], answers: Mapping[ClientId, Tensors], cohort: int, round: int
) -> tuple[ClientId, ...]:
    """Let the algorithm choose among the candidates that answered with finite scalars.

    Args:
        algorithm: the algorithm, which selects clients.
        answers: by candidate, the scalars that it revealed.
        cohort: number of clients to choose.
        round: number of the round, for the error.

    Raises:
        RoundVoid: no candidate did.
    """
    scalars: dict[ClientId, dict[str, float]] = {}
    for client, body in answers.items():
        values = {name: np.asarray(body.get(name, np.nan)) for name in algorithm.reveals}
        if all(value.shape == () and np.isfinite(value) for value in values.values()):
            scalars[client] = {name: float(value) for name, value in values.items()}
    if not scalars:
        raise RoundVoid(f"round {round}: no candidate revealed what the selection needs")
    return scheduled(algorithm.choose(scalars, cohort), sorted(scalars), cohort)
