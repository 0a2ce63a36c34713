"""Check that a run's results do not reveal the sampled cohort, which amplification by sampling requires.

Amplification by sampling counts a client's chance of not being in the cohort as privacy, so no party may learn the
cohort. An algorithm that divides by the survivors' numbers of rows, for instance, publishes it in its model. The check
is a test and no proof: it compares trial runs on a few cohorts before the run begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from securefed._messages import Aggregate, ClientId
from securefed._public import Public
from securefed._tensors import Tensors
from securefed.algorithms._base import Algorithm
from securefed.errors import ConfigError, SecureFedError

_SMALL = 1e-3
"""Size of the trial sums relative to a tensor's declared bound: small, so that no trial run diverges."""
_ROUNDS = 3
"""Rounds of a trial: enough to leave a cohort and come back to it.

All get the same sum, so that a stop rule which compares rounds of the same survivors sees a run without progress."""


def check_cohort_secrecy(algorithm: Algorithm[Any, Any], public: Public) -> None:
    """Check that the server's outputs do not depend on which clients a sum is of.

    The check runs the algorithm's server from the same start on the same sums, attributed to different clients: those
    with the fewest rows, those with the most, and both in turn. Broadcasts and stopping must agree bit for bit.

    Args:
        algorithm: the run's algorithm.
        public: the run's public facts; `cohort` clients are sampled for a round.

    Raises:
        ConfigError: something differs, or the algorithm cannot be run on such sums.
    """
    if public.cohort == public.clients:
        return
    by_rows = sorted(range(public.clients), key=lambda client: public.rows[client])
    small, large = (tuple(sorted(some)) for some in (by_rows[: public.cohort], by_rows[-public.cohort :]))
    total = _total(algorithm, public)
    try:
        with np.errstate(all="ignore"):
            first = _trace(algorithm, public, total, [small] * _ROUNDS)
            others = [_trace(algorithm, public, total, who) for who in ([large] * _ROUNDS, [small, large, small])]
    except (SecureFedError, ArithmeticError, ValueError) as error:
        raise ConfigError(
            f"whether {type(algorithm).__name__} keeps the draw of a cohort secret could not be tried out ({error}); "
            "account with 'full', or with poisson(...) coins"
        ) from error
    if any(not _same(first, other) for other in others):
        raise ConfigError(
            f"{type(algorithm).__name__}'s result depends on which {public.cohort} of {public.clients} clients a sum "
            "is of, so its readers learn who took part, and a secret draw must not be accounted for; give all "
            "clients the same weight (weighting='uniform', or equal numbers of rows), turn off a stop rule that "
            "compares rounds of the same survivors, or account with 'full' or with poisson(...) coins"
        )


def _total(algorithm: Algorithm[Any, Any], public: Public) -> Tensors:
    """Make a fixed sum of small contributions."""
    rng = np.random.default_rng(0)
    layout = algorithm.layout(public)
    return {spec.name: rng.uniform(0.5, 1.0, spec.shape) * _SMALL * (spec.bound or 1.0) for spec in layout}


def _trace(
    algorithm: Algorithm[Any, Any], public: Public, total: Tensors, cohorts: Sequence[tuple[ClientId, ...]]
) -> list[tuple[Tensors, str | None]]:
    """Return the public outputs (broadcast, reason to stop) of a run that gets this sum in every round.

    Args:
        algorithm: the run's algorithm.
        public: the public facts.
        total: the sum.
        cohorts: for each round, the clients that the server is told the sum is of.
    """
    server, seen = algorithm.start(public, np.random.default_rng(0)), []
    for cohort in cohorts:
        server = algorithm.combine(server, Aggregate(total, cohort))
        seen.append((algorithm.broadcast(server), algorithm.finished(server)))
    return seen


def _same(one: Sequence[tuple[Tensors, str | None]], other: Sequence[tuple[Tensors, str | None]]) -> bool:
    """Tell whether two runs have the same public outputs, bit for bit."""
    return all(
        reason == other_reason and all(np.array_equal(sent[name], other_sent[name], equal_nan=True) for name in sent)
        for (sent, reason), (other_sent, other_reason) in zip(one, other, strict=True)
    )
