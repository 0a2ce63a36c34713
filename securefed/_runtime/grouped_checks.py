"""Check that an algorithm can go on from robust means."""

from __future__ import annotations

from typing import Any

from securefed._public import Public
from securefed.algorithms._base import Algorithm
from securefed.defenses._base import Defense
from securefed.defenses._grouped_sums import Grouped, check_cohort
from securefed.errors import ConfigError


def check_grouped(defense: Defense, algorithm: Algorithm[Any, Any], public: Public) -> None:
    """Raise `ConfigError` where sums made group by group do not fit the algorithm or the cohort.

    Args:
        defense: of the run.
        algorithm: refused under a robust mean where it declares `exact_sums`, or needs the outcome of a round as
            updates of duals do.
        public: numbers of clients, in all and planned for a sum.
    """
    grouped = defense.aggregation
    if not isinstance(grouped, Grouped):
        return
    if grouped.robust and (algorithm.exact_sums or algorithm.needs_outcome):
        raise ConfigError(
            f"{type(algorithm).__name__} keeps running sums or duals that follow from the exact sum of all survivors, "
            f"and {grouped} gives a robust mean in its place; take `secure_aggregation()` without groups, or "
            "an algorithm that begins anew from each sum, such as FedAvg(...)"
        )
    check_cohort(defense, public.cohort, public.clients)
