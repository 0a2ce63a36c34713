"""Simulate the utility under distributed noise of larger cohorts, with rows drawn with replacement from the user's.

Noise that hides one client is the same for a sum of 8 clients and of 800, so that larger cohorts lose less utility by
it. The search for an advised defence (`advise`) asks here from which size on a setting is usable. Only utility is
simulated: nothing is attacked. A `Case` is an algorithm with the hyper-parameters and rounds with which it is run; its
`prepare` splits the data over clients (`Prepared`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

import numpy as np
from scipy.special import stdtrit

from securefed._auditing.cases import Case, Prepared
from securefed._auditing.cases.data_splits import resampled
from securefed._auditing.cases.utility_floors import floors
from securefed._messages import Aggregate
from securefed._tensors import Array, Tensors
from securefed.algorithms._base import Algorithm, RoundOutcome
from securefed.algorithms._capabilities import SupportsBatches, supports
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.defenses._differential_privacy import calibrate
from securefed.errors import SecureFedError

COHORTS: Final = (8, 32, 128, 512)
"""Numbers of clients that are simulated."""


LEVEL: Final = 0.01
"""Chance at which one look at the runs says wrongly that a cohort keeps enough utility. Runs are looked at after the
third and each later one: together the looks at ten runs err in 4 % (3000 draws of normal runs whose mean keeps just
enough). At .05 they err in 15 %; at .002 in 1 %, and a cohort far from the limit takes four runs instead of three."""
_FIRST: Final = 3
"""Runs before the first look; of two that are alike by chance the interval would be too narrow to trust."""


@dataclass(frozen=True)
class CohortUtility:
    """Utilities of one simulated cohort: a pair for each run.

    Attributes:
        clients: number of clients.
        noised: by run, the utility under the noise; -inf where it failed.
        clear: by run, that of the same federation without noise.
        floor: by run, the best score that needs no federation; NaN where none is known, empty for NaN everywhere.
    """

    clients: int
    noised: tuple[float, ...]
    clear: tuple[float, ...]
    floor: tuple[float, ...] = ()

    def interval(self, keep: float) -> tuple[float, float]:
        """Return the ends of Student's interval of the mean of utility - least usable utility, each at `LEVEL`.

        The least usable utility is floor + keep (clear - floor); without a floor clear - (1 - keep) |clear|, as in
        `keeps`. A failed run makes both ends -inf, and so does a mean in the clear that does not exceed the floor;
        fewer than `_FIRST` runs say nothing.
        """
        if not np.isfinite((*self.noised, *self.clear)).all():
            return -math.inf, -math.inf
        if len(self.noised) < _FIRST:
            return -math.inf, math.inf
        floors = self.floor or (math.nan,) * len(self.clear)
        lost = [
            (1 - keep) * (abs(clear) if math.isnan(floor) else clear - floor)
            for clear, floor in zip(self.clear, floors, strict=True)
        ]
        if fmean(lost) < 0:
            return -math.inf, -math.inf
        above = [one - clear + less for one, clear, less in zip(self.noised, self.clear, lost, strict=True)]
        count = len(above)
        half = float(stdtrit(count - 1, 1 - LEVEL)) * float(np.std(above, ddof=1)) / math.sqrt(count)
        return fmean(above) - half, fmean(above) + half

    def decided(self, keep: float) -> bool:
        """Return whether the runs show that the cohort keeps enough utility, or that it does not."""
        low, high = self.interval(keep)
        return low >= 0 or high < 0


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
    keep: float,
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
        epsilon: the epsilon of all rounds together.
        delta: the delta that goes with epsilon.
        share: share of the clients whose sum the protocol opens at the least. Each client adds so much noise that the
            sum over this share meets epsilon; a sum over all clients then has 1 / sqrt(share) times the noise it needs.
        seeds: the seeds of the runs. A cohort is run until it is clear whether it keeps enough utility, or seeds are
            used up: large cohorts, whose runs take longest, scatter least.
        keep: share of the utility in the clear that is enough.
        cohorts: numbers of clients.
    """
    multiplier = calibrate(epsilon, delta, case.rounds) / math.sqrt(share)
    sized = replace(case, prepare=resampled(case.prepare, of, rows))

    def runs(clients: int) -> Iterator[tuple[float, float, float]]:
        for seed in seeds:
            noised = _utility(sized, source, clients, seed, norm, multiplier * norm)
            clear = _utility(sized, source, clients, seed, np.inf, 0.0)
            best = max(floors(sized, sized.prepare(source, clients, seed), seed).values(), default=math.nan)
            yield noised, clear, best

    return tuple(_until_decided(clients, runs(clients), keep) for clients in cohorts)


def _until_decided(clients: int, runs: Iterator[tuple[float, float, float]], keep: float) -> CohortUtility:
    """Take runs (utility under noise, in the clear, floor) until they decide or end."""
    found = CohortUtility(clients, (), ())
    for noised, clear, floor in runs:
        found = CohortUtility(clients, (*found.noised, noised), (*found.clear, clear), (*found.floor, floor))
        if found.decided(keep):
            break
    return found


def usable_from(found: Sequence[CohortUtility], keep: float) -> CohortUtility | None:
    """Return the smallest simulated cohort from which on every one is shown to keep enough utility.

    Args:
        found: utilities in order of the cohorts.
        keep: share of the utility in the clear that is enough.

    Returns:
        The cohort; `None` if the largest is not shown to.
    """
    smallest = None
    for one in reversed(found):
        if one.interval(keep)[0] < 0:
            break
        smallest = one
    return smallest


def keeps(utility: float, clear: float, keep: float) -> bool:
    """Return whether utility >= clear - (1 - keep) |clear|: for positive utilities, at least the share `keep` of clear.

    The absolute value makes the allowed loss a loss for negative utilities too. Where the run in the clear failed
    (-inf), the answer is no.

    Args:
        utility: under a defence.
        clear: utility without a defence.
        keep: share of `clear` that is enough, from 0 to 1.
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
        seed: the seed of everything random. It also seeds the noise: this is a simulation, which protects nobody.
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
