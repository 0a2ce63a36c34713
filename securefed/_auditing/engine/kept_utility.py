"""Compute how much of a model's utility a protection keeps.

share = (utility - floor) / (clear - floor), where `clear` is the utility without protection and `floor` the best score
that needs no federation (`cases.utility_floors`). The three are measured in each run on the same data, so that the
intervals are of paired differences. If clear - floor is not shown to be above 0, there is no model to protect and no
share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import stdtrit

from securefed._auditing.engine.results import RunFacts
from securefed._auditing.engine.seed_result import SeedFloors
from securefed._auditing.sentences.table import NOTHING, say
from securefed._tensors import Array

LEVEL: Final = 0.05
"""Probability that a lower bound lies above what it bounds."""


@dataclass(frozen=True)
class Kept:
    """The share of a model's utility that a defence keeps.

    Attributes:
        floor: mean of the best floor; NaN where none is known.
        name: the method that reaches the floor, in words; empty where none is known.
        model: whether the runs in the clear are shown to exceed the floor; true where no floor is known.
        share: the share, computed from the means; NaN without a model or a floor.
        low: lower bound on that share at 95 %; NaN where there is no share, or one run.
    """

    floor: float = math.nan
    name: str = ""
    model: bool = True
    share: float = math.nan
    low: float = math.nan

    def keeps(self, least: float) -> bool:
        """Return whether the lower bound on the share is `least` or more; for a single run, whether the share is."""
        return self.model and (self.share if math.isnan(self.low) else self.low) >= least - 1e-9


@dataclass(frozen=True)
class AlgorithmUtility:
    """Utilities of one algorithm in an audit.

    Attributes:
        clear: mean utility of the runs in the clear, or of exact sums, which differ from them by rounding only.
        floors: by method that reaches it, the mean of each floor.
        kept: by defence, the share of the utility above the best floor that it keeps.
    """

    clear: float
    floors: Mapping[str, float]
    kept: Mapping[str, Kept]


def utilities(
    algorithms: Iterable[str], facts: Sequence[RunFacts], floors: Sequence[SeedFloors]
) -> dict[str, AlgorithmUtility]:
    """Compare the utilities of every algorithm with its floors, over the seeds of an audit.

    Args:
        algorithms: their names; one without floors is left out.
        facts: utilities of all runs; those without noise come first in the order of the report's defences.
        floors: floors of all seeds.
    """
    out = {}
    for name in algorithms:
        known = {one.seed: one.floors for one in floors if one.algorithm == name and one.floors}
        runs: dict[str, dict[int, float]] = {}
        for fact in facts:
            if fact.algorithm == name and not fact.view and fact.seed in known:
                runs.setdefault(fact.defense, {})[fact.seed] = fact.utility
        exact = {fact.defense for fact in facts if fact.epsilon is None}
        first = next((defense for defense in runs if defense in exact), None)
        if first is None:
            continue
        clear = runs[first]
        seeds = {defense: [seed for seed in clear if seed in found] for defense, found in runs.items()}
        out[name] = AlgorithmUtility(
            float(np.mean(list(clear.values()))),
            {one: float(np.mean([known[seed][one] for seed in clear])) for one in _common(list(known.values()))},
            {
                defense: kept([runs[defense][s] for s in of], [clear[s] for s in of], [known[s] for s in of])
                for defense, of in seeds.items()
            },
        )
    return out


def _common(floors: Sequence[Mapping[str, float]]) -> list[str]:
    """List the floors that every run has."""
    return [name for name in (floors[0] if floors else {}) if all(name in one for one in floors)]


def kept(utilities: Sequence[float], clear: Sequence[float], floors: Sequence[Mapping[str, float]]) -> Kept:
    """Compare utilities with those in the clear and with the best floor, run by run.

    Args:
        utilities: under a defence, one a run. Runs that are missing at the end are left out everywhere but for the
            question whether there is a model.
        clear: in the clear, one a run.
        floors: by name the floors of each run; one that some run lacks is left out.
    """
    names = _common(floors)
    if not names:
        return Kept()
    name = max(names, key=lambda known: float(np.mean([one[known] for one in floors])))
    floor = np.array([one[name] for one in floors])
    added = np.asarray(clear, float) - floor
    if not np.isfinite(added).all() or not _lower(added) > 0:
        return Kept(float(floor.mean()), name, model=False)
    count = len(utilities)
    if not count or not np.isfinite(utilities).all():
        return Kept(float(floor.mean()), name)
    left, all_of_it = np.asarray(utilities, float) - floor[:count], added[:count]
    share = float(left.mean() / all_of_it.mean()) if all_of_it.mean() > 0 else math.nan
    return Kept(float(floor.mean()), name, True, share, _least_share(left, all_of_it))


def _lower(values: Array) -> float:
    """Return the lower end of Student's one-sided interval of a mean; of one value the value."""
    if len(values) < 2:
        return float(values.mean())
    half = float(stdtrit(len(values) - 1, 1 - LEVEL)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()) - half


def _least_share(left: Array, added: Array) -> float:
    """Return the largest s for which mean(left - s added) is shown to be at least 0 (Fieller's bound on a ratio).

    It is NaN for one run, and -inf where so few runs do not show that `added` is above 0.
    """
    count = len(left)
    if count < 2:
        return math.nan
    cover = np.cov(left, added, ddof=1) * float(stdtrit(count - 1, 1 - LEVEL)) ** 2 / count
    a = added.mean() ** 2 - cover[1, 1]
    if not (a > 0 and added.mean() > 0):
        return -math.inf
    b, c = left.mean() * added.mean() - cover[0, 1], left.mean() ** 2 - cover[0, 0]
    return float((b - math.sqrt(max(b * b - a * c, 0.0))) / a)


def floor_sentence(measure: str, clear: float, found: Kept) -> str:
    """Say what a model adds to its floor, or that there is no model to protect; empty where no floor is known.

    Args:
        measure: what the utility measures, such as "accuracy".
        clear: mean utility in the clear.
        found: any defence of the algorithm, for its floor.
    """
    if math.isnan(found.floor):
        return ""
    reason = "model" if found.model else "no model" if clear <= found.floor else "not shown"
    places = {"measure": measure, "clear": clear, "name": found.name, "floor": found.floor}
    return say("floor", NOTHING, NOTHING, reason, **places)
