"""Whether a run's results say which clients took part: accounting for a secret draw needs that they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from securefed.algorithms.base import Algorithm, Public
from securefed.errors import ConfigError, SecureFedError
from securefed.messages import Aggregate, ClientId
from securefed.tensors import Tensors

_SMALL = 1e-3
"""Of a tensor's declared bound: the sums tried are those of ordinary contributions, so that no run of them diverges."""
_ROUNDS = 3
"""As many as it takes to leave a cohort and to come back to it, each with the same sum: a stop rule that compares
rounds of the same survivors sees a run that stands still."""


def check_blind(algorithm: Algorithm[Any, Any], public: Public) -> None:
    """Check that what follows from a sum does not depend on which clients it is of.

    The algorithm's server is run from the same start on the same sums, said to be of other clients: those with the
    fewest rows, those with the most, and first the one and then the other. What it broadcasts and whether it stops
    must be equal, bit for bit.

    Args:
        algorithm: of the run.
        public: its public facts; `cohort` clients are drawn for a round.

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
            "is of, so whoever reads it learns who took part, and a secret draw must not be accounted for; give all "
            "clients the same weight (weighting='uniform', or equal numbers of rows), turn off a stop rule that "
            "compares rounds of the same survivors, or account with 'full' or with poisson(...) coins"
        )


def _total(algorithm: Algorithm[Any, Any], public: Public) -> Tensors:
    """A sum of small contributions, the same in every call."""
    rng = np.random.default_rng(0)
    layout = algorithm.layout(public)
    return {spec.name: rng.uniform(0.5, 1.0, spec.shape) * _SMALL * (spec.bound or 1.0) for spec in layout}


def _trace(
    algorithm: Algorithm[Any, Any], public: Public, total: Tensors, cohorts: Sequence[tuple[ClientId, ...]]
) -> list[tuple[Tensors, str | None]]:
    """What everybody sees of a run on this sum in every round, said to be of these clients."""
    server, seen = algorithm.start(public, np.random.default_rng(0)), []
    for cohort in cohorts:
        server = algorithm.combine(server, Aggregate(total, cohort))
        seen.append((algorithm.broadcast(server), algorithm.finished(server)))
    return seen


def _same(one: Sequence[tuple[Tensors, str | None]], other: Sequence[tuple[Tensors, str | None]]) -> bool:
    return all(
        stops == stopped and all(np.array_equal(sent[name], told[name], equal_nan=True) for name in sent)
        for (sent, stops), (told, stopped) in zip(one, other, strict=True)
    )
