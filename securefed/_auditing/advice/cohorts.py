"""Simulate the utility under distributed noise of larger cohorts, with rows drawn with replacement from the user's.

Noise that hides one client is the same for a sum of 8 clients and of 800, so that larger cohorts lose less utility by
it. `search` asks from which size on a setting is usable. Only utility is simulated here: nothing is attacked. A `Case`
is an algorithm with the hyper-parameters and rounds with which it is run; its `prepare` splits the data (`Prepared`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from securefed._auditing.cases import Case, Prepared
from securefed._auditing.cases.data_splits import resampled
from securefed._messages import Aggregate
from securefed._tensors import Array, Tensors
from securefed.algorithms._base import Algorithm, RoundOutcome
from securefed.algorithms._capabilities import SupportsBatches, supports
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.defenses._differential_privacy import calibrate
from securefed.errors import SecureFedError

COHORTS: Final = (8, 32, 128, 512)
"""Numbers of clients that are simulated."""


@dataclass(frozen=True)
class CohortUtility:
    """Mean utility of one cohort, under noise and without.

    Attributes:
        clients: number of clients.
        noised: utility under the noise; -inf where a run failed.
        clear: utility of the same federations without noise.
    """

    clients: int
    noised: float
    clear: float


def simulate(
    case: Case,
    source: LoadedDataset,
    of: int,
    rows: int | None,
    norm: float,
    epsilon: float,
    delta: float,
    share: float,
    seeds: Sequence[int],
    cohorts: Sequence[int] = COHORTS,
) -> tuple[CohortUtility, ...]:
    """Measure utility under noise of one epsilon at several cohort sizes.

    The noise is Gaussian and central, of the size that distributed noise has in a sum over all clients.

    Args:
        case: the algorithm's run, with the rounds that count.
        source: the user's data.
        of: number of clients among whom the data are split; a larger cohort's rows are drawn from theirs with
            replacement.
        rows: rows of a client; `None` for the mean of those clients.
        norm: clipping norm.
        epsilon: for all rounds together.
        delta: likewise.
        share: share of the clients whose sum the protocol opens at the least. Each client adds so much noise that the
            sum over this share meets epsilon; a sum over all clients then has 1 / sqrt(share) times the noise it needs.
        seeds: of the runs.
        cohorts: numbers of clients.
    """
    multiplier = calibrate(epsilon, delta, case.rounds) / math.sqrt(share)
    sized = replace(case, prepare=resampled(case.prepare, of, rows))
    out = []
    for clients in cohorts:
        pairs = [
            [_utility(sized, source, clients, seed, *noise) for seed in seeds]
            for noise in ((norm, multiplier * norm), (np.inf, 0.0))
        ]
        noised, clear = (float(np.mean(values)) for values in pairs)
        out.append(CohortUtility(clients, noised, clear))
    return tuple(out)


def usable_from(found: Sequence[CohortUtility], keep: float) -> int | None:
    """Return the smallest simulated cohort from which on every one keeps enough utility; `None` if the largest fails.

    Args:
        found: utilities in order of the cohorts.
        keep: share of the utility in the clear that is enough.
    """
    smallest = None
    for one in reversed(found):
        if not keeps(one.noised, one.clear, keep):
            break
        smallest = one.clients
    return smallest


def keeps(utility: float, clear: float, keep: float) -> bool:
    """Return whether utility >= clear - (1 - keep) |clear|, which is a share of the clear one for negative ones too.

    A run in the clear that failed (-inf) keeps nothing.

    Args:
        utility: under a defence.
        clear: without one.
        keep: share of it that is enough, from 0 to 1.
    """
    return bool(np.isfinite(clear)) and utility >= clear - (1 - keep) * abs(clear)


def _utility(case: Case, source: LoadedDataset, clients: int, seed: int, norm: float, deviation: float) -> float:
    """Train one cohort on clipped contributions with noise; return the utility, -inf where the run diverged."""
    prepared = case.prepare(source, clients, seed)
    try:
        output = _trained(case, prepared, seed, norm, deviation)
        return float(case.utility(output, prepared.test))
    except SecureFedError:  # noise drove the run out of the algorithm's domain
        return -np.inf


def _trained(case: Case, prepared: Prepared, seed: int, norm: float, deviation: float) -> Tensors:
    """Run the rounds by hand, without messages: half a thousand clients then take seconds and not minutes.

    Args:
        case: the algorithm's run.
        prepared: the cohort.
        seed: of everything random, the noise too, which protects nobody here.
        norm: clipping norm; infinite for none.
        deviation: standard deviation of the noise on the sum of all contributions.

    Returns:
        The last broadcast.
    """
    algorithm, public = case.build(), prepared.public
    rngs = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(public.clients + 2)]
    server = algorithm.start(public, rngs[-1])
    states = [algorithm.enroll(data, public, rng) for data, rng in zip(prepared.clients, rngs, strict=False)]
    everyone = tuple(range(public.clients))
    for _ in range(case.rounds):
        if algorithm.finished(server):
            break
        broadcast = algorithm.broadcast(server)
        pairs = _contributions(algorithm, states, broadcast, rngs[:-2])
        total = _noised_sum([sent for _, sent in pairs], norm, deviation, rngs[-2])
        server = algorithm.combine(server, Aggregate(total, everyone))
        followed = algorithm.broadcast(server) if algorithm.needs_outcome else None
        states = [algorithm.commit(tentative, RoundOutcome(True, followed)) for tentative, _ in pairs]
    return algorithm.broadcast(server)


def _contributions(
    algorithm: Algorithm[Any, Any], states: Sequence[Any], broadcast: Tensors, rngs: Sequence[np.random.Generator]
) -> list[tuple[Any, Tensors]]:
    """Compute every client's tentative state and contribution, all together where the algorithm can.

    Raises:
        SecureFedError: a client's step failed.
    """
    if not supports(algorithm, SupportsBatches):
        return [algorithm.contribute(state, broadcast, rng) for state, rng in zip(states, rngs, strict=True)]
    out: list[tuple[Any, Tensors]] = []
    computed: Sequence[tuple[Any, Tensors] | SecureFedError] = algorithm.contribute_together(states, broadcast, rngs)
    for found in computed:
        if isinstance(found, SecureFedError):
            raise found
        out.append(found)
    return out


def _noised_sum(sent: Sequence[Tensors], norm: float, deviation: float, rng: np.random.Generator) -> dict[str, Array]:
    """Clip each contribution to an L2 norm over all its tensors, sum, and add normal noise to every entry."""
    total = {name: np.zeros(np.shape(value)) for name, value in sent[0].items()}
    for one in sent:
        size = float(np.sqrt(sum(float(np.vdot(value, value)) for value in one.values())))
        factor = min(1.0, norm / size) if size > 0 else 1.0
        for name, value in one.items():
            total[name] += factor * np.asarray(value)
    return {name: value + deviation * rng.standard_normal(value.shape) for name, value in total.items()}
