"""Entries of a ledger: the exchanges answered in each run, and the privacy cost of each.

An exchange makes one sum, and is numbered in its run. `Ledger` keeps the entries in a file and enforces limits; here
is only the arithmetic.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from securefed._hyperparameters import check_integer, check_limit, check_number
from securefed._messages import SERVER
from securefed._runtime.privacy_cost import PrivacyCost, epsilon_of_all
from securefed.defenses._base import Unit
from securefed.errors import ConfigError, ContradictionError

Ranges = tuple[tuple[int, int], ...]
"""Numbers of exchanges as ascending half-open ranges (first, last + 1), which neither touch nor overlap."""


@dataclass(frozen=True)
class DataUsage:
    """Total use of a client's data: exchanges, epsilon and delta.

    Attributes:
        exchanges: exchanges answered.
        epsilon: privacy loss of all of them together; infinite where one of them carried no noise.
        delta: probability with which epsilon may fail.

    Raises:
        ConfigError: a value outside its domain.
    """

    exchanges: int = 0
    epsilon: float = 0.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_integer("exchanges", self.exchanges, 0)
        check_limit("epsilon", self.epsilon, least=0)
        check_number("delta", self.delta, 0, below=1)


@dataclass(frozen=True)
class LedgerEntries:
    """All entries of a ledger, immutable: adding an entry returns a new value.

    Attributes:
        declared: the privacy cost before this ledger, as the operator declared it.
        charged: for each cost, which exchanges of each run were charged at it.
    """

    declared: DataUsage = DataUsage()
    charged: Mapping[PrivacyCost, Mapping[str, Ranges]] = field(default_factory=dict)

    @property
    def counts(self) -> dict[PrivacyCost, int]:
        """Number of exchanges charged at each cost."""
        return {
            cost: sum(stop - start for ranges in runs.values() for start, stop in ranges)
            for cost, runs in self.charged.items()
        }

    @property
    def exchanges(self) -> int:
        """Exchanges answered, declared ones included."""
        return self.declared.exchanges + sum(self.counts.values())

    def spent(self, delta: float, unit: Unit) -> DataUsage:
        """Add up all use of the data: epsilon is the declared one plus that of all charges.

        The charges are composed at the part of `delta` that was not declared as used before (basic composition).

        Args:
            delta: probability with which the returned epsilon may fail; more than the declared delta.
            unit: whether a record or a client is protected; the declared epsilon is taken to protect the same.
        """
        epsilon = epsilon_of_all(self.counts, delta - self.declared.delta, unit)
        return DataUsage(self.exchanges, self.declared.epsilon + epsilon, delta)

    def with_charge(self, run: str, exchange: int, cost: PrivacyCost) -> Self:
        """Return the entries with one more exchange, or the same object if they hold it already.

        Raises:
            ConfigError: the number is negative.
            ContradictionError: it was charged at another cost.
        """
        if exchange < 0:
            raise ConfigError(f"exchanges are numbered from 0; got {exchange}")
        for known, runs in self.charged.items():
            if _holds(runs.get(run, ()), exchange):
                if known == cost:
                    return self
                raise ContradictionError(SERVER, f"exchange {exchange} was charged before, at another cost")
        runs = self.charged.get(cost, {})
        return replace(self, charged={**self.charged, cost: {**runs, run: _added(runs.get(run, ()), exchange)}})

    def to_json(self) -> dict[str, Any]:
        """Return JSON values. Inverse: `from_json`."""
        declared = self.declared
        epsilon = None if math.isinf(declared.epsilon) else declared.epsilon
        return {
            "declared": {"exchanges": declared.exchanges, "epsilon": epsilon, "delta": declared.delta},
            "charged": [
                {"cost": cost.to_json(), "runs": {run: [list(pair) for pair in ranges] for run, ranges in runs.items()}}
                for cost, runs in self.charged.items()
            ],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read the entries from JSON values. Inverse of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: it did not come from `to_json`.
        """
        declared = dict(values["declared"])
        spent = DataUsage(**declared | ({"epsilon": math.inf} if declared["epsilon"] is None else {}))
        charged: dict[PrivacyCost, Mapping[str, Ranges]] = {}
        for entry in values["charged"]:
            runs = {
                run: tuple((int(start), int(stop)) for start, stop in pairs) for run, pairs in entry["runs"].items()
            }
            charged[PrivacyCost.from_json(entry["cost"])] = runs
        return cls(spent, charged)


def _holds(ranges: Ranges, number: int) -> bool:
    """Tell whether one of the ranges contains the number."""
    place = bisect_right(ranges, number, key=lambda pair: pair[0])  # number of ranges that begin at or before it
    return place > 0 and number < ranges[place - 1][1]


def _added(ranges: Ranges, number: int) -> Ranges:
    """Return the ranges with one more number, which they do not hold yet; ranges that touch are joined."""
    place = bisect_right(ranges, number, key=lambda pair: pair[0])
    before, after = ranges[:place], ranges[place:]
    start, stop = number, number + 1
    if before and before[-1][1] == start:
        start, before = before[-1][0], before[:-1]
    if after and after[0][0] == stop:
        stop, after = after[0][1], after[1:]
    return (*before, (start, stop), *after)
