"""Cox regression on times that are rounded to a public grid, by Newton's method, each iteration from one secure sum.

With r = exp(theta z), d_t the events at grid time t, sums over the rows at risk at t, and sums over the events at t:

    Breslow:  log L = sum_events theta z - sum_t d_t log R0(t)        R_k(t) = sum_(at risk) r z^k
    Efron:    log L = sum_events theta z - sum_t sum_(l < d_t) log(R0(t) - l / d_t E0(t))
              E_k(t) = sum_(events at t) r z^k

Each party adds r z^k, k = 0, 1, 2, of the rows that leave at each time; all parties' sums at risk are their sums over
later times. A row leaves at the grid's next time.

At a time with one event the sums would be that person's covariates, to the holder of the sum too. So a first sum counts
events, and times are merged until each has at least `least_events`; the model is that of the merged grid, which
`detail["times"]` states. A shift of z moves neither theta nor log L, so ranges of columns are always used.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np

from securefed._hyperparameters import check_choice, check_integer
from securefed._tensors import Array
from securefed.errors import CollinearityError, ConfigError, DataError
from securefed.parties._terms_parts import SummedTensor
from securefed.statistics._base import check_table
from securefed.statistics._columns import Wanted
from securefed.statistics._design import Design, check_dependence
from securefed.statistics._estimate import Estimate, Sums
from securefed.statistics._fitted import Fitted
from securefed.statistics._iterations import SETTLED, Iterated, separated, stuck
from securefed.statistics._moments import symmetric
from securefed.statistics._survival import LEAST_EVENTS, checked_times, interval_ends

Ties = Literal["efron", "breslow"]


@dataclass(frozen=True)
class _Lives(Design):
    """Rows with covariates, a time and an event.

    Attributes:
        times: the grid, ascending and positive.
        event: name of the column that is 1 for an event and 0 for a row that left without one. In arrays it is the last
            column of x, and y holds the times.
    """

    ignores_shift: ClassVar[bool] = True

    times: tuple[float, ...] = field(default=(), kw_only=True)
    event: str = field(default="event", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "intercept", False)
        object.__setattr__(self, "target_bound", 1.0)
        object.__setattr__(self, "times", checked_times(self.times))
        super().__post_init__()
        if self.weights:
            raise ConfigError("Cox regression takes no weights")

    def _wanted(self) -> tuple[Wanted, ...]:
        return (*self._sources(), Wanted(self.event)) if self.columns else ()

    def _check(self, x: Array, y: Array | None) -> None:
        check_table(x, self.features + 1, self.rows, of=" (covariates and the event)")
        if y is None or y.shape != (len(x),):
            raise DataError(f"y must hold one time for each of {len(x)} rows; got {None if y is None else y.shape}")

    def _within(self, x: Array, y: Array | None) -> Array:
        near = (np.abs(x[:, : self.features] - np.asarray(self.shift)) <= np.asarray(self.bound)).all(1)
        return np.asarray(near & np.isin(x[:, self.features], (0.0, 1.0)) & (np.asarray(y) >= 0))

    def _declared(self) -> str:
        bounds = ", ".join(f"{bound:g}" for bound in np.ravel(self.bound))
        return f"entries of x are at most {bounds} from their shift, events are 0 or 1, times are not negative"

    def _places(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Return the place of each row's time on the grid, and whether it has an event there."""
        places = np.searchsorted(self.times, y)
        return places, (x[:, self.features] == 1) & (places < len(self.times))


@dataclass(frozen=True)
class EventCounts(_Lives):
    """Number of events at each time of the grid; the value has shape (times,)."""

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return count and events."""
        rows = float(self.rows)
        return (
            SummedTensor("count", (), rows, sensitivity=1.0),
            SummedTensor("events", (len(self.times),), rows, sensitivity=1.0),
        )

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        places, happened = self._places(x, np.asarray(y))
        events = np.bincount(places[happened], minlength=len(self.times)).astype(np.float64)
        return {"count": np.asarray(float(len(x))), "events": events}

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        value = sums.total["events"] if sums.noised else np.rint(sums.total["events"])
        return value, np.full(value.shape, float(sums.error["events"])), {}

    def _labels(self, value: Array) -> tuple[tuple[str, ...], ...]:
        return (tuple(f"{time:g}" for time in self.times),)


@dataclass(frozen=True)
class CoxStep(_Lives):
    """One iteration of a Cox regression: the value is the score at `theta`, (features,); `detail` holds the rest.

    Attributes:
        theta: parameters of z, public.
        deaths: events at each time, public from the first sum.
        ties: "efron" or "breslow".
    """

    theta: tuple[float, ...] = field(default=(), kw_only=True)
    deaths: tuple[float, ...] = field(default=(), kw_only=True)
    ties: Ties = field(default="efron", kw_only=True)

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return count, the events' sum of z, and sums of r, r z and r z z^T of the rows that leave at each time."""
        reach, rows, size = float(np.abs(self.theta) @ self.scaled_bounds), float(self.rows), len(self.times)
        most, root = math.exp(reach), math.sqrt(self.square)
        names = ("risk", "tied") if self.ties == "efron" else ("risk",)
        out = [
            SummedTensor("count", (), rows, sensitivity=1.0),
            SummedTensor("covariates", (self.features,), rows * self.largest, sensitivity=root),
        ]
        for name in names:
            length = size + (name == "risk")
            out += [
                SummedTensor(f"{name}0", (length,), rows * most, sensitivity=most),
                SummedTensor(f"{name}1", (length, self.features), rows * most * self.largest, sensitivity=most * root),
                SummedTensor(
                    f"{name}2", (length, self.entries), rows * most * self.largest**2, sensitivity=most * self.square
                ),
            ]
        return tuple(out)

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        z, _ = self.rows_of(x)
        places, happened = self._places(x, np.asarray(y))
        risk = np.exp(z @ np.array(self.theta))
        upper = np.triu_indices(self.features)
        products = (z[:, :, None] * z[:, None, :])[:, upper[0], upper[1]]
        powers = (risk, risk[:, None] * z, risk[:, None] * products)
        out = {"count": np.asarray(float(len(x))), "covariates": z[happened].sum(0)}
        chosen = {"risk": np.ones(len(z), bool)} | ({"tied": happened} if self.ties == "efron" else {})
        for name, rows in chosen.items():
            for power, values in enumerate(powers):
                total = np.zeros((len(self.times) + (name == "risk"), *values.shape[1:]))
                np.add.at(total, places[rows], values[rows])
                out[f"{name}{power}"] = total
        return out

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        zero, one, two = (np.cumsum(sums.total[f"risk{k}"][::-1], axis=0)[::-1][:-1] for k in range(3))
        score = sums.total["covariates"].copy()
        information = np.zeros((self.features, self.features))
        likelihood = float(np.array(self.theta) @ score)
        terms = 0.0  # sum of 1 / base
        for at in np.flatnonzero(np.array(self.deaths) > 0):
            deaths = int(self.deaths[at])
            shares = np.arange(deaths) / deaths if self.ties == "efron" else np.zeros(deaths)
            tied = [sums.total[f"tied{k}"][at] if self.ties == "efron" else np.zeros(()) for k in range(3)]
            base = zero[at] - shares * tied[0]
            if not (base > 0).all():
                raise DataError("noise or rounding has made a sum at risk negative; agree on fewer times")
            means = (one[at] - shares[:, None] * tied[1]) / base[:, None]
            second = two[at] * (1 / base).sum() - tied[2] * (shares / base).sum()
            score -= means.sum(0)
            information += symmetric(second, self.features) - means.T @ means
            likelihood -= float(np.log(base).sum())
            terms += float((1 / base).sum())
        detail = {
            "information": information,
            "likelihood": np.asarray(likelihood),
            "score_error": self._spread(sums.error, terms),
            "score_noise": self._spread(sums.noise, terms),
        }
        return score, np.full(self.features, float(detail["score_error"])), detail

    def _spread(self, of_sums: Mapping[str, float], terms: float) -> Array:
        """Return how far the score is off, to first order in what the sums are off by: errors, or noise."""
        off = {name: of_sums.get(name, 0.0) for name in ("covariates", "risk0", "risk1", "tied0", "tied1")}
        moved = (len(self.times) + 1) * (off["risk1"] + off["risk0"] * self.largest)
        moved += off["tied1"] + off["tied0"] * self.largest
        return np.asarray((off["covariates"] + moved * terms) * math.sqrt(self.features))


@dataclass(frozen=True)
class CoxModel(Iterated, _Lives):
    """Cox proportional hazards on a public grid of times; the value has shape (features,), log hazard ratios.

    The result has scikit-learn's `coef_`, `standard_errors_`, `p_values_` and `summary()`; `detail` holds the `times`
    that were used, the `log_likelihood`, and the number of `events`. `fit(ask)` and `simulate(parties, defense)` take
    one sum for the events, and one for each iteration. With noise its standard errors do not count it.

    Attributes:
        ties: "efron" or "breslow".
        least_events: fewest events at a time; times are merged until each has as many. 1 keeps the grid.
    """

    ties: Ties = field(default="efron", kw_only=True)
    least_events: int = field(default=LEAST_EVENTS, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("ties", self.ties, ("efron", "breslow"))
        check_integer("least_events", self.least_events, 1)

    def fitting(self) -> Generator[Any, Any, Fitted]:
        """Yield the statistic of each sum, receive its estimate, and return the fitted model."""
        settings = {one.name: getattr(self, one.name) for one in fields(_Lives)}
        counted = yield EventCounts(**settings)
        events = np.maximum(np.rint(counted.value), 0.0)
        if events.sum() < 1:
            raise DataError("no row has an event by the last of the times; agree on later ones")
        ends = interval_ends(events, self.least_events)
        if not ends.any():
            raise DataError(f"{events.sum():g} events, and least_events is {self.least_events}; agree on fewer")
        settings["times"] = tuple(np.array(self.times)[ends].tolist())
        last = int(np.flatnonzero(ends)[-1])
        merged = np.add.reduceat(events[: last + 1], np.append(0, np.flatnonzero(ends)[:-1] + 1))
        theta, names, sizes = np.zeros(self.features), self.parameter_names(), list[float]()
        move = theta
        for iteration in range(1, self.iterations + 1):
            step = CoxStep(**settings, theta=tuple(theta.tolist()), deaths=tuple(merged.tolist()), ties=self.ties)
            found = yield step
            matrix = found.detail["information"] + np.diag(self.penalty())
            try:
                smallest = check_dependence(matrix, 0.0, names)
            except CollinearityError as error:
                if iteration == 1:
                    raise
                raise separated(move, names, found) from error
            move = np.linalg.solve(matrix, found.value - self.penalty() * theta)
            floor = float(found.detail["score_error"]) / smallest
            size = float(np.abs(move).max())
            theta = theta + move
            if size <= max(SETTLED, 4 * (floor + float(found.detail["score_noise"]) / smallest)):
                return self._fitted(found, theta, size + floor, settings["times"], merged.sum())
            sizes.append(size)
            if stuck(sizes):
                raise separated(move, names, found)
        raise self._unsettled(move, names)

    def _fitted(self, found: Estimate, theta: Array, bound: float, times: tuple[float, ...], events: float) -> Fitted:
        """Return the model in the units of x."""
        to_natural = np.diag(1 / self.column_units)
        covariance = np.full((self.features, self.features), math.nan)
        if not self.ridge:
            covariance = to_natural @ np.linalg.inv(found.detail["information"]) @ to_natural
        detail = {
            "intercept": np.asarray(0.0), "covariance": covariance, "log_likelihood": found.detail["likelihood"],
            "times": np.array(times), "events": np.asarray(float(events)),
        }  # fmt: skip
        made = replace(
            found, value=to_natural @ theta, error=np.full(self.features, bound) / self.column_units, detail=detail,
            labels=self._labels(theta),
        )  # fmt: skip
        facts = {one.name: getattr(made, one.name) for one in fields(Estimate)}
        merged = "" if len(times) == len(self.times) else f", {len(self.times)} times merged to {len(times)}"
        return Fitted(**facts, names=self.parameter_names(), law="z", kind=f"Cox regression, {self.ties} ties{merged}")
