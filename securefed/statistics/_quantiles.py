"""Quantiles, and the k-th smallest and largest entry of each column, from one histogram over a public grid.

The entry of rank j lies in the bin in which the cumulative counts pass j. So its place is known up to that bin: the
value is the middle of what is possible, and `error` half its width. A quantile or an extreme known to the last digit is
one person's value; so the interval of a rank is widened, bin by bin, until it holds at least `least_cell` rows, and the
smallest and the largest entry are not to be had at all.

A finer grid costs no further exchange but a longer message. `refined` makes the statistic of a second exchange, whose
grid is fine where the first one found the quantiles.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from securefed._hyperparameters import check_integer, check_number
from securefed._tensors import Array
from securefed.errors import ConfigError
from securefed.statistics._bins import LEAST_CELL, Binned
from securefed.statistics._estimate import Estimate, Labels, Sums
from securefed.statistics._moments import details
from securefed.statistics._tables import numbers_of_rows, whole


@dataclass(frozen=True)
class _Ranks(Binned):
    """Entries of given ranks, of each column.

    Attributes:
        edges: ascending edges of the public grid, the same for each column, or a mapping from names of columns to the
            edges of each. Entries beyond the grid are counted below or above it.
        features: number of columns, where they have no names.
        rows: most rows of one party.
        least_cell: fewest rows in the interval of a rank; 1 for any.
        columns: names of the columns, read from tables with named columns.

    Raises:
        ConfigError: edges that are no numbers or do not ascend, or a number outside its domain.
    """

    @property
    def _sizes(self) -> tuple[int, ...]:
        """Number of bins of each column, those below and above the grid included."""
        return tuple(len(edges) + 1 for edges in self.edges_by_column)

    @property
    def _bins(self) -> tuple[int, ...]:
        return (sum(self._sizes),)

    @abstractmethod
    def _names(self) -> tuple[str, ...]:
        """Return a label for each rank."""

    @abstractmethod
    def _ranks(self, rows: float) -> Array:
        """Return the ranks of a column with so many entries, from 0, fractions between two; NaN where there is none."""

    def _labels(self, value: Array) -> Labels:
        return self._column_labels(), self._names()

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        bins = []
        for column, edges, size in zip(x.T, self.edges_by_column, self._sizes, strict=True):
            places = np.searchsorted(edges, column[~np.isnan(column)], side="right")
            bins.append(np.bincount(places, minlength=size).astype(np.float64))
        return numbers_of_rows(self, x) | {"bins": np.concatenate(bins)}

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        bins, _ = whole(sums, "bins")
        least = 1 if sums.noised else self.least_cell
        low, high = np.zeros((2, self.features, len(self._names())))
        ends = np.cumsum(self._sizes)
        for at, (edges, size, end) in enumerate(zip(self.edges_by_column, self._sizes, ends, strict=True)):
            counts = np.maximum(bins[end - size : end], 0.0)
            for place, rank in enumerate(self._ranks(float(counts.sum()))):
                low[at, place], high[at, place] = _between(counts, np.array([-np.inf, *edges, np.inf]), rank, least)
        with np.errstate(invalid="ignore"):
            value, error = (low + high) / 2, (high - low) / 2
        value, error = np.where(np.isfinite(error), value, np.nan), np.where(np.isfinite(error), error, np.inf)
        return value, error, {"low": low, "high": high, **details(sums)}

    def refined(self, found: Estimate, bins: int = 64) -> Self:
        """Return the statistic of a further exchange, with a finer grid where the entries were found to lie.

        Args:
            found: the result with the present grid.
            bins: number of bins into which each interval is divided.

        Raises:
            ConfigError: a number outside its domain.
        """
        check_integer("bins", bins, 2)
        made = []
        for at, edges in enumerate(self.edges_by_column):
            finer = {edges[0], edges[-1]}
            for low, high in zip(found.detail["low"][at], found.detail["high"][at], strict=True):
                if math.isfinite(low) and math.isfinite(high):
                    finer |= set(np.linspace(low, high, bins + 1).tolist())
            made.append(tuple(sorted(finer)))
        return replace(self, edges=tuple(made))


@dataclass(frozen=True)
class Quantiles(_Ranks):
    """Quantiles of each column, the median by default; the value has shape (features, probabilities).

    They are those of `numpy.quantile`, with linear interpolation between entries, up to `error`: half the width of the
    grid's interval in which they lie. `detail` holds its ends, `low` and `high`. A quantile beyond the grid is NaN.

    Attributes:
        probabilities: from 0 to 1, both excluded.
    """

    probabilities: tuple[float, ...] = field(default=(0.5,), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.probabilities, list | tuple) or not self.probabilities:
            raise ConfigError(f"probabilities must be a list, such as [0.25, 0.5, 0.75]; got {self.probabilities!r}")
        for probability in self.probabilities:
            check_number("a probability", probability, below=1.0, positive=True)
        object.__setattr__(self, "probabilities", tuple(map(float, self.probabilities)))

    def _names(self) -> tuple[str, ...]:
        return tuple(f"{100 * probability:g}%" for probability in self.probabilities)

    def _ranks(self, rows: float) -> Array:
        return np.array(self.probabilities) * (rows - 1) if rows >= 1 else np.full(len(self.probabilities), np.nan)


@dataclass(frozen=True)
class OrderStatistics(_Ranks):
    """The k-th smallest and the k-th largest entry of each column; the value has shape (features, 2).

    They are known up to `error`, half the width of the grid's interval in which they lie (`detail`: `low`, `high`). An
    entry beyond the grid is NaN.

    Attributes:
        k: at least `least_cell`: the extreme itself is one person's value.
    """

    k: int = field(default=LEAST_CELL, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("k", self.k, self.least_cell, note="(least_cell): more extreme entries are single people's")

    def _names(self) -> tuple[str, ...]:
        return f"{self.k}th smallest", f"{self.k}th largest"

    def _ranks(self, rows: float) -> Array:
        return np.array([self.k - 1.0, rows - self.k]) if rows >= self.k else np.full(2, np.nan)


def _between(counts: Array, edges: Array, rank: float, least: int) -> tuple[float, float]:
    """Return the ends of the interval in which the entry of a rank lies, a fraction between two of them.

    Args:
        counts: entries in each bin.
        edges: of the bins, the outermost infinite.
        rank: from 0.
        least: fewest entries of an interval.
    """
    if not math.isfinite(rank):
        return -math.inf, math.inf
    lower = math.floor(rank)
    share = rank - lower
    ends = [_interval(counts, edges, whole_rank, least) for whole_rank in (lower, lower + (share > 0))]
    low, high = ((1 - share) * ends[0][side] + share * ends[1][side] if share else ends[0][side] for side in (0, 1))
    return low, high


def _interval(counts: Array, edges: Array, rank: int, least: int) -> tuple[float, float]:
    """Return the ends of the bins around one rank that hold at least so many entries."""
    ends = np.cumsum(counts)
    first = last = min(int(np.searchsorted(ends, rank, side="right")), len(counts) - 1)
    while counts[first : last + 1].sum() < min(least, ends[-1]):
        below = edges[first] - edges[first - 1] if first > 0 else math.inf
        above = edges[last + 2] - edges[last + 1] if last + 2 < len(edges) else math.inf
        if first > 0 and (below <= above or last + 2 >= len(edges)):
            first -= 1
        else:
            last += 1
    return float(edges[first]), float(edges[last + 1])
