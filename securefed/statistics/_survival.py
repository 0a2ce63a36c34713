"""Kaplan-Meier curves and the log-rank test, from one sum over a public grid of times.

A time counts as the grid's next one (t in (t_(i-1), t_i] becomes t_i); rows that last longer than the grid leave it
alive. With d_i the events at t_i, and n_i the rows that reach t_i, all parties together:

    survival S(t_i) = prod_(j <= i) (1 - d_j / n_j)
    log-rank: observed less expected events of each group, sum_i d_ig - d_i n_ig / n_i, and their covariance

Each row adds 1 to one event and one exit, so both follow from counts, which are exact. A curve that falls by one
person's event is a statement about that person: with `least_events` k the curve is given only at times between which
at least k events lie. Its values there are those of the grid, not of coarser times. Groups with fewer events than k are
merged before they are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._tensors import Array
from securefed.errors import ConfigError, DataError
from securefed.parties._terms_parts import SummedTensor
from securefed.statistics._base import Statistic, check_table
from securefed.statistics._bounded import Bounded
from securefed.statistics._columns import Level, Wanted, checked_levels
from securefed.statistics._estimate import Labels, Sums
from securefed.statistics._tables import whole

LEAST_EVENTS: Final = 5
"""Fewest events between two times at which a curve is given, and of a group that is compared."""
_QUANTILE: Final = 1.959963984540054
"""Of the normal, for intervals of 95 %."""


@dataclass(frozen=True)
class LifeTable(Statistic):
    """Events and exits of each group at each time of a public grid.

    Attributes:
        times: the grid, ascending and positive.
        rows: most rows of one party.
        time: name of the column of times, which are not negative. In arrays it is the first column.
        event: name of the column that is 1 for an event and 0 for a row that left without one; in arrays the second.
        by: name of a column of groups, empty for none; in arrays the third, of codes.
        levels: the groups, texts or numbers, which all parties agree on.
        least_events: fewest events between two times, and of a group; 1 for any.

    Raises:
        ConfigError: times that do not ascend, or a number outside its domain.
    """

    times: tuple[float, ...]
    rows: int = 2**20
    time: str = field(default="time", kw_only=True)
    event: str = field(default="event", kw_only=True)
    by: str = field(default="", kw_only=True)
    levels: tuple[Level, ...] = field(default=(), kw_only=True)
    least_events: int = field(default=LEAST_EVENTS, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "times", checked_times(self.times))
        check_integer("rows", self.rows, 1)
        check_integer("least_events", self.least_events, 1)
        if self.by or self.levels:
            object.__setattr__(self, "levels", checked_levels(self.by, self.levels))

    @property
    def _groups(self) -> int:
        return max(len(self.levels), 1)

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return count, events at each time, and exits at each time and beyond; a row is in one entry of each."""
        rows, size = float(self.rows), len(self.times)
        return (
            SummedTensor("count", (), rows, sensitivity=1.0),
            SummedTensor("events", (self._groups, size), rows, sensitivity=1.0),
            SummedTensor("exits", (self._groups, size + 1), rows, sensitivity=1.0),
        )

    def _wanted(self) -> tuple[Wanted, ...]:
        groups = (Wanted(self.by, self.levels),) if self.levels else ()
        return (Wanted(self.time), Wanted(self.event), *groups)

    def _check(self, x: Array, y: Array | None) -> None:
        check_table(x, 2 + bool(self.levels), self.rows, of=" (time, event and perhaps a group)")

    def _within(self, x: Array, y: Array | None) -> Array:
        within = (x[:, 0] >= 0) & np.isin(x[:, 1], (0.0, 1.0))
        return np.asarray(within & np.isin(x[:, 2], np.arange(self._groups)) if self.levels else within)

    def _declared(self) -> str:
        groups = f", {self.by} is one of {', '.join(map(repr, self.levels))}" if self.levels else ""
        return f"times are not negative, events are 0 or 1{groups}"

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        places = np.searchsorted(self.times, x[:, 0])
        group = x[:, 2].astype(np.int64) if self.levels else np.zeros(len(x), np.int64)
        events, exits = (np.zeros((self._groups, len(self.times) + more)) for more in (0, 1))
        np.add.at(exits, (group, places), 1.0)
        happened = (x[:, 1] == 1) & (places < len(self.times))
        np.add.at(events, (group[happened], places[happened]), 1.0)
        return {"count": np.asarray(float(len(x))), "events": events, "exits": exits}

    def _table(self, sums: Sums) -> tuple[Bounded, Bounded]:
        """Return events and rows at risk, (groups, times)."""
        (events, moved), (exits, off) = whole(sums, "events"), whole(sums, "exits")
        later = np.cumsum(exits[:, ::-1], axis=1)[:, ::-1]
        return Bounded(events, np.asarray(moved)), Bounded(later[:, :-1], np.asarray(off * exits.shape[1]))


@dataclass(frozen=True)
class KaplanMeier(LifeTable):
    """Survival at each time of the grid; the value has shape (times,), or (groups, times) where there are groups.

    At times at which the curve is not given it is NaN; `detail["given"]` says where it is. `detail` also holds there
    `low` and `high`, the ends of the interval of 95 % (log-log, Greenwood's variance), `at_risk`, and the `median`, the
    first such time at which survival is at most a half, NaN where there is none.
    """

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        events, risk = self._table(sums)
        alive, spread = self._curve(events, risk)
        least = 1 if sums.noised else self.least_events
        given = np.stack([interval_ends(np.maximum(one, 0), least) for one in events.value])
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.log(alive.value)
            width = _QUANTILE * np.sqrt(spread) / log
            ends = [np.exp(log * np.exp(sign * width)) for sign in (-1, 1)]
        flat = alive.value == 1  # before the first event
        low, high = (np.where(flat, 1.0, end) for end in ends)
        shown = {"low": low, "high": high, "at_risk": risk.value}
        detail = {name: np.where(given, one, np.nan) for name, one in shown.items()}
        value = np.where(given, alive.value, np.nan)
        below = value <= 0.5
        median = np.where(below.any(1), np.array(self.times)[below.argmax(1)], np.nan)
        found = {**detail, "given": given, "median": median}
        if not self.levels:
            found = {name: one[0] for name, one in found.items()}
            return value[0], alive.error[0], found
        return value, np.array(alive.error), found

    def _curve(self, events: Bounded, risk: Bounded) -> tuple[Bounded, Array]:
        """Return survival and the sum of Greenwood's variance, (groups, times)."""
        ones = Bounded(np.ones(self._groups), np.zeros(self._groups))
        alive, columns = ones, []
        for at in range(len(self.times)):
            died = Bounded(events.value[:, at], events.error[:, at])
            left = Bounded(np.maximum(risk.value[:, at], 1.0), risk.error[:, at])
            alive = alive * (ones - died / left)
            columns.append(alive)
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = events.value / (risk.value * (risk.value - events.value))
        spread = np.cumsum(np.where(events.value > 0, terms, 0.0), axis=1)
        value, error = (np.stack([getattr(one, name) for one in columns], axis=1) for name in ("value", "error"))
        return Bounded(value, error), spread

    def _labels(self, value: Array) -> Labels:
        times = tuple(f"{time:g}" for time in self.times)
        return (tuple(map(str, self.levels)), times) if self.levels else (times,)


@dataclass(frozen=True)
class LogRank(LifeTable):
    """The log-rank test of groups with equal survival; the value, of shape (), is the chi-square statistic.

    `detail` holds `p`, `degrees`, and of each group the `observed` and `expected` events, and `merged`: the number of
    the group as which it was compared, where groups of fewer than `least_events` events were merged with the next
    larger.

    Raises:
        ConfigError: no groups.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.levels:
            raise ConfigError("LogRank compares groups: give by, the name of their column, and levels")

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        from scipy.special import chdtrc  # noqa: PLC0415 - loads SciPy

        events, risk = self._table(sums)
        merged = merged_groups(events.value.sum(1), 1 if sums.noised else self.least_events)
        groups = int(merged.max()) + 1
        if groups < 2:
            raise DataError(
                f"fewer than two groups have {self.least_events} events; agree on coarser groups, or on least_events"
            )
        died, left = (np.stack([one.value[merged == g].sum(0) for g in range(groups)]) for one in (events, risk))
        observed, expected, covariance = _compared(died, left)
        difference = (observed - expected)[:-1]
        value = np.asarray(float(difference @ np.linalg.pinv(covariance[:-1, :-1]) @ difference))
        degrees = groups - 1
        detail = {
            "p": np.asarray(chdtrc(degrees, value)), "degrees": np.asarray(float(degrees)),
            "observed": observed[merged], "expected": expected[merged], "merged": merged.astype(np.float64),
        }  # fmt: skip
        exact = not (events.error.any() or risk.error.any())
        return value, np.asarray(0.0 if exact else np.nan), detail


def _compared(died: Array, left: Array) -> tuple[Array, Array, Array]:
    """Return observed and expected events of each group, and the covariance of their difference."""
    all_died, all_left = died.sum(0), left.sum(0)
    used = (all_died > 0) & (all_left > 0)
    died, left, all_died, all_left = died[:, used], left[:, used], all_died[used], all_left[used]
    share = left / all_left
    spread = np.where(all_left > 1, all_died * (all_left - all_died) / np.maximum(all_left - 1, 1.0), 0.0)
    covariance = np.diag((share * spread).sum(1)) - (share * spread) @ share.T
    return died.sum(1), (share * all_died).sum(1), np.asarray(covariance)


def checked_times(times: Any) -> tuple[float, ...]:
    """Return a grid of times; raise `ConfigError` unless it is positive, finite and ascends."""
    fits = isinstance(times, list | tuple | range | np.ndarray) and len(times) > 0
    made = tuple(float(time) for time in times) if fits else ()
    if not fits or not np.isfinite(made).all() or made[0] <= 0 or any(a >= b for a, b in pairwise(made)):
        raise ConfigError(f"times must be a list of ascending, positive numbers, such as range(1, 61); got {times!r}")
    return made


def interval_ends(events: Array, least: int) -> Array:
    """Return at which times intervals end that hold at least so many events each, (times,).

    Args:
        events: at each time.
        least: fewest events of an interval; with 1 every time ends one.
    """
    ends = np.ones(len(events), bool)
    if least <= 1:
        return ends
    ends[:] = False
    held = 0.0
    for at, number in enumerate(events):
        held += number
        if held >= least:
            ends[at], held = True, 0.0
    if held > 0 and ends.any():  # the rest joins the interval before it
        ends[np.flatnonzero(ends)[-1]] = False
        ends[-1] = True
    return ends


def merged_groups(sizes: Array, least: int) -> Array:
    """Return for each group the number of the group that it is part of, the smallest merged with the next larger."""
    parts = [[group] for group in range(len(sizes))]
    while len(parts) > 1:
        parts.sort(key=lambda part: float(sizes[part].sum()))
        if sizes[parts[0]].sum() >= least:
            break
        smallest = parts.pop(0)
        parts[0] += smallest
    parts.sort(key=min)
    out = np.zeros(len(sizes), np.int64)
    for number, part in enumerate(parts):
        out[part] = number
    return out
