"""The base class of a statistic: what each party adds to the sum, and what follows from the sum.

All parties agree on `terms`, which fix the tensors that are summed, public bounds on their entries, and the defence:
how the sum is made (in the clear, masked, encrypted, noised). Each party computes its `summand`, `securefed.parties`
carries out the sum, and the holder of the result computes the `estimate`. Exact defences sum in fixed point: integers
that stand for multiples of a small step. So a sum has a known largest error. A tensor's sensitivity is the largest
change of its sum, in L2 norm, if one row is added or removed.

Noise for single rows has one standard deviation for all entries, in proportion to the sensitivity of all tensors
together. In the tensors' own units the sum of ages up to 120 would set the noise of the count beside it too, which
would drown. So each tensor is summed in a unit of its own, the power of two at or above its sensitivity: dividing by it
is exact, and each tensor then moves by at most 1. `_summand` and `_value` know nothing of units.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

import numpy as np

from securefed._hyperparameters import check_choice
from securefed._messages import ClientId
from securefed._tensors import Array, real_array
from securefed.datasets._tables.frames import one_column, real_rows
from securefed.defenses._base import Plan
from securefed.defenses._chain import Link, as_defense
from securefed.errors import ConfigError, DataError
from securefed.parties._guards import adds_noise
from securefed.parties._result import SumResult
from securefed.parties._server import SumServer
from securefed.parties._simulation import play_round
from securefed.parties._summed_tensor import SummedTensor
from securefed.parties._terms import SumTerms

Rows = Any
"""One party's rows: an array (rows, features), what `np.asarray` turns into one, or a data frame of numbers."""

Outliers = Literal["refuse", "omit"]
LEAST_ROWS: Final = 5
"""Fewest rows of a party in a statistic."""
LEAST_PARTIES: Final = 3
"""Fewest parties of a statistic: of two, each learns the other's part."""
_ROUNDING: Final = 1e-9
"""Relative rounding error that the products of a million rows stay far below."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """The value of a statistic.

    Attributes:
        value: the statistic; its shape is stated by its class.
        error: bound on the error by fixed point, of the shape of `value`; zeros where sums are made in the clear.
            It does not count noise, nor the rounding of float64 in each party's products and in the value.
        noise: standard deviation of the noise in an entry of each sum that the value is computed from, by name; empty
            without differential privacy.
        count: number of rows of the parties in the sum, as the sum says it (with noise: an estimate).
        survivors: ids of the parties in the sum; others dropped out.
        plan: the defence's plan.
        detail: further values that the class states, by name.
    """

    value: Array
    error: Array
    noise: Mapping[str, float]
    count: float
    survivors: tuple[ClientId, ...]
    plan: Plan = field(repr=False)
    detail: Mapping[str, Array]


@dataclass(frozen=True)
class Sums:
    """The sums of one round, as a statistic reads them.

    Attributes:
        total: by name, the sum over all parties.
        error: by name, the bound on the error of each entry by fixed point.
        noised: whether noise was added.
    """

    total: Mapping[str, Array]
    error: Mapping[str, float]
    noised: bool


@dataclass(frozen=True)
class Statistic(ABC):
    """A statistic that follows from one sum over all parties' rows.

    A class writes `tensors`, `_check`, `_within`, `_declared`, `_summand` and `_value`.

    Attributes:
        outliers: what happens to a row that is not finite or beyond the declared bounds. "refuse": its party takes no
            part. "omit": the row is left out of all sums, of the count too, so that the statistic is that of the other
            rows; noise for single rows needs this (see `terms`).

    Raises:
        ConfigError: another word.
    """

    outliers: Outliers = field(default="refuse", kw_only=True)

    def __post_init__(self) -> None:
        check_choice("outliers", self.outliers, get_args(Outliers))

    @abstractmethod
    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return the tensors that each party adds to the sum, the first of them `count`, with public bounds."""

    @abstractmethod
    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        """Compute one party's tensors, by name, from its rows, which are known to keep to the bounds."""

    @abstractmethod
    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        """Return the value, the bound on its fixed-point error (of its shape), and details by name, from the sums."""

    @abstractmethod
    def _check(self, x: Array, y: Array | None) -> None:
        """Raise `DataError` where shapes or the number of rows are not as declared."""

    @abstractmethod
    def _within(self, x: Array, y: Array | None) -> Array:
        """Return whether each row keeps to the declared bounds, (rows,), from rows that are finite."""

    @abstractmethod
    def _declared(self) -> str:
        """Return the bounds of a row in words, for errors."""

    def _units(self) -> dict[str, float]:
        """Return by name the unit in which each tensor is summed."""
        known = {tensor.name: tensor.sensitivity or 1.0 for tensor in self.tensors()}
        return {name: power_of_two(sensitivity) for name, sensitivity in known.items()}

    def terms(
        self, *, clients: int, defense: Link | None, cohort: int | None = None, epsilon: float | None = None,
        rounds: int | None = 1, least_rows: int | None = LEAST_ROWS, least_parties: int | None = LEAST_PARTIES,
    ) -> SumTerms:  # fmt: skip
        """Make the terms of the sum, for `securefed.parties`.

        Args:
            clients: number of parties.
            defense: how the sum is made; `None` in the clear, which has to be written out. With `chain(records(),
                gaussian(z), secure_aggregation())` it is private whether a row is there (to replace a row by another
                moves the sum by up to twice as much), with `chain(clip(norm), ...)` whether a party is, with a norm for
                what `summand` returns. The former needs `outliers="omit"`, and `rows` that are known to be more than
                any party has: a party with more takes no part, which noise does not hide.
            cohort: parties planned for the round; all by default.
            epsilon: privacy budget over all rounds with these terms.
            rounds: rounds at most.
            least_rows: fewest rows of a party; one with fewer sits out. `None` for any. Not used under noise, which
                hides a row only if no other follows from it.
            least_parties: fewest parties of a result: the terms plan for as many, and clients open no sum over fewer.
                `None` for any.

        A party's rows are the same in every sum, so two sums over all parties and over all but one subtract to those
        of that one. With identities each party's ledger refuses such sums, for all statistics of its rows; without
        them have the same parties in each, and let clients answer one round only, or add noise with `epsilon`.

        Raises:
            ConfigError: noise for single rows where `outliers` is "refuse": one row beyond the bounds would take its
                whole party out of the sum, by more than the noise hides.
            ConfigError, PlanError: as `SumTerms`.
        """
        units = self._units()
        tensors = tuple(
            replace(
                tensor, bound=tensor.bound / units[tensor.name],
                sensitivity=tensor.sensitivity and tensor.sensitivity / units[tensor.name],
            )
            for tensor in self.tensors()
        )  # fmt: skip
        layer = as_defense(defense)
        terms = SumTerms(
            tensors, clients, clients if cohort is None else cohort, layer, largest_weight=1.0,
            weighted=False, base=False, epsilon=epsilon, rounds=rounds,
            least_rows=None if adds_noise(layer) else least_rows, least_parties=least_parties,
        )  # fmt: skip
        privacy = terms.plan.privacy
        if privacy is not None and privacy.unit == "record" and self.outliers == "refuse":
            raise ConfigError(
                "noise for single rows does not hide that one row beyond the declared bounds takes its whole party out "
                f"of the sum; leave such rows out instead: {type(self).__name__}(..., outliers='omit')"
            )
        return terms

    def summand(self, x: Rows, y: Rows | None = None) -> dict[str, Array]:
        """Compute one party's part of the sum: the update for `SumClient.receive`, each tensor in its own unit.

        Give it as a function, `receive(request, lambda: statistic.summand(x))`: a party for which it raises then takes
        no part, and the server does not learn which party that was. A plain call raises instead.

        Args:
            x: rows, (rows, features); of a data frame (pandas, Polars, Arrow) all columns must be numbers.
            y: targets, (rows,), for statistics that have them.

        Raises:
            DataError: another number of columns, columns that hold no numbers (by name, with their types), or more
                rows than declared; where `outliers` is "refuse", also a row that is not finite or beyond the declared
                bounds.
        """
        if isinstance(x, tuple) and y is None:
            raise DataError("x is a pair, as `simulate` takes it; here rows and targets are two: summand(x, y)")
        rows = np.atleast_1d(np.asarray(real_rows(x, "x"), np.float64))
        rows = rows[:, None] if rows.ndim == 1 else rows
        target = None if y is None else np.asarray(real_array(one_column(y, "y"), "y"), np.float64)
        self._check(rows, target)
        kept = self._kept(rows, target)
        units, own = self._units(), self._summand(rows[kept], None if target is None else target[kept])
        return {t.name: _within_bound(own[t.name], t.bound) / units[t.name] for t in self.tensors()}

    def _kept(self, x: Array, y: Array | None) -> Array:
        """Return which rows are summed, (rows,), or refuse them all."""
        finite = np.asarray(np.isfinite(x).all(1))
        if y is not None:
            finite = finite & np.isfinite(y)
        kept = np.zeros(len(x), bool)
        kept[finite] = self._within(x[finite], None if y is None else y[finite])
        if self.outliers == "omit" or kept.all():
            return kept
        first = int(np.argmin(kept))
        reason = f"beyond what was declared: {self._declared()}" if finite[first] else "not finite"
        raise DataError(
            f"{np.count_nonzero(~kept)} of {len(x)} rows cannot be summed; the first, row {first}, is {reason}. "
            "Mend the rows, alike at all parties, or leave such rows out of all sums with outliers='omit'"
        )

    def estimate(self, result: SumResult) -> Estimate:
        """Compute the statistic from the result of the sum.

        Raises:
            ConfigError: no result of a sum.
            DataError: the sum holds too few rows for the statistic.
        """
        if result is None:
            raise ConfigError("no round is complete: `result` is None until the server has received all replies")
        if not isinstance(result, SumResult):
            raise ConfigError(f"estimate needs a SumServer's `result`; got {type(result).__name__}")
        noised, units = result.plan.noised, self._units()
        error = {name: result.error[name] * result.weight * units[name] for name in result.total}
        total = {name: value * units[name] for name, value in result.total.items()}
        noise = {name: deviation * units[name] for name, deviation in result.noise.items()}
        if not noised and error["count"] < 0.5:  # whole rows: rounding is exact
            total["count"], error["count"] = np.rint(total["count"]), 0.0
        if not noised and total["count"] < 1:
            raise DataError("no party in the sum has any rows")
        value, bound, detail = self._value(Sums(total, error, noised))
        return Estimate(value, bound, noise, float(total["count"]), result.survivors, result.plan, detail)

    def simulate(self, parties: Sequence[Rows], defense: Link | None = None) -> Estimate:
        """Compute the statistic where all parties' rows are in this process, whatever their number.

        Args:
            parties: one array of rows for each party, or one pair (x, y).
            defense: how the sum is made; in the clear without one.

        Raises:
            DataError, ConfigError, PlanError: as `summand` and `terms`.
            RoundVoid: fewer parties than the defence needs.
        """
        summands = [self.summand(*party) if isinstance(party, tuple) else self.summand(party) for party in parties]
        if not summands:
            raise ConfigError("a statistic needs at least one party's rows")
        terms = self.terms(clients=len(summands), defense=defense, least_rows=None, least_parties=None)
        return self.estimate(play_round(SumServer(terms), [{"update": summand} for summand in summands]))


def _within_bound(total: Array, bound: float) -> Array:
    """Take back what rounding added beyond a bound, which exact sums keep to and which would void the round."""
    return np.where(np.abs(total) <= bound * (1 + _ROUNDING), np.clip(total, -bound, bound), total)


def power_of_two(size: float) -> float:
    """Return the least power of two that is at least `size`: dividing by it is exact."""
    return 2.0 ** math.ceil(math.log2(size))


def check_table(x: Array, columns: int, most: int, *, of: str = "") -> None:
    """Raise `DataError` unless `x` is a table with so many columns, and with `most` rows at the most.

    Args:
        x: one party's rows.
        columns: number of columns.
        most: number of rows that is declared as the most of one party.
        of: what the columns hold, such as " of codes", for the error.
    """
    if x.ndim != 2 or x.shape[1] != columns:
        raise DataError(f"x must have {columns} columns{of}, as declared (features=...); got shape {x.shape}")
    if len(x) > most:
        raise DataError(f"{len(x)} rows, and {most} are declared as the most of one party; declare more")
