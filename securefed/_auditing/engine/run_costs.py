"""Costs of the runs of an algorithm under a defence, once for each of them: utility, traffic, time and epsilon.

Since a defence such as secure aggregation leaves the sums as they are, most views are made from one cheaper run with
the same sums, and only some runs are of the defence itself (`RunFacts.real`): these give its bytes and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from securefed._auditing.engine.results import NOT_COVERED, RunFacts


@dataclass(frozen=True)
class RunCosts:
    """The runs of one algorithm under one defence, as means over the seeds.

    Attributes:
        algorithm: its name.
        defense: name of the defence.
        view: the one view that the runs were made for; empty for the runs that all other views are made of.
        utility: mean utility of the final models.
        bytes_per_client_round: mean traffic of one client in one round.
        seconds_per_round: mean time of one round.
        epsilon: the epsilon of differential privacy, for what the server publishes; `None` without noise.
        covered: views that this epsilon covers; `None` without noise.
        note: how the runs were made, where not all of them are the defence itself.
    """

    algorithm: str
    defense: str
    view: str = ""
    utility: float = math.nan
    bytes_per_client_round: float = math.nan
    seconds_per_round: float = math.nan
    epsilon: float | None = None
    covered: tuple[str, ...] | None = None
    note: str = ""

    def promised(self, view: str) -> float | str | None:
        """Return what epsilon promises against a view: a number, `NOT_COVERED`, or `None` without noise."""
        if self.covered is None:
            return None
        return self.epsilon if view in self.covered else NOT_COVERED


def costs_of(facts: Iterable[RunFacts], covered: Mapping[str, Collection[str]]) -> tuple[RunCosts, ...]:
    """Average the runs of each algorithm, defence and view.

    Args:
        facts: costs of all runs.
        covered: by defence with noise, the views that its epsilon covers.
    """
    runs: dict[tuple[str, str, str], list[RunFacts]] = {}
    for fact in facts:
        runs.setdefault((fact.algorithm, fact.defense, fact.view), []).append(fact)
    return tuple(_costs(*key, group, covered) for key, group in runs.items())


def _costs(
    algorithm: str, defense: str, view: str, runs: Sequence[RunFacts], covered: Mapping[str, Collection[str]]
) -> RunCosts:
    real = [run for run in runs if run.real]
    return RunCosts(
        algorithm,
        defense,
        view,
        mean_known([run.utility for run in runs]),
        mean_known([run.bytes_per_client_round for run in real]),
        mean_known([run.seconds_per_round for run in real]),
        runs[0].epsilon,
        tuple(covered[defense]) if defense in covered else None,
        _note(runs, real),
    )


def _note(runs: Sequence[RunFacts], real: Sequence[RunFacts]) -> str:
    """Say which runs are the defence itself; empty if all are."""
    if not real:
        return "no seed ran the defence itself: its view is made from the sums of the run in the clear"
    # a real run whose sums were compared with the cheap run's may have fewer rounds
    compared = min((run.rounds for run in real if run.identical is not None), default=0)
    part = f", {compared} rounds of it" if 0 < compared < max(run.rounds for run in runs) else ""
    if not part and len(real) == len(runs):
        return ""
    return (
        f"{len(real)} of {len(runs)} seeds ran the defence itself{part} (a defence without noise is compared bit for "
        "bit with the quantised run); the other views come from the run with the same sums of integers"
    )


def mean_known(values: Sequence[float]) -> float:
    """Average the values that are not NaN."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
