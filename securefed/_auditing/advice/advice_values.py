"""The values of an advice, and their JSON: the settings that were tried, and the one that is advised.

`securefed.advise` (`advice.search`) returns an `Advice`; the page, the terminal and `audit.json` show it. A leak is the
leakage of an attack, 1 - error / error of a guess without messages: 1 is exact, 0 a guess. Its mean is over seeds, the
repetitions of a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Self

from securefed._auditing.alerts.alert import Alert
from securefed._auditing.engine.results import finite_or_none
from securefed.errors import DataError


@dataclass(frozen=True)
class _Values:
    """A dataclass that JSON holds."""

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values, as they stand in `audit.json` under "advice"; NaN and infinity become `None`."""
        values: dict[str, Any] = finite_or_none(asdict(self))
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; of a figure `None` becomes NaN.

        Raises:
            DataError: a value is missing or unknown.
        """
        figures = {field.name for field in fields(cls) if field.type == "float"}
        try:
            return cls(
                **{key: math.nan if value is None and key in figures else value for key, value in values.items()}
            )
        except TypeError as error:
            raise DataError(f"this is no {cls.__name__.lower()} of an advice of this version: {error}") from error


@dataclass(frozen=True)
class Setting(_Values):
    """One defence at one size of federation: what it leaks, and what it costs.

    Attributes:
        algorithm: name of the algorithm.
        defense: the defence and its parameters in words.
        paste: the command that runs this setting; the user replaces nothing in it.
        clients: number of clients in a round.
        rows_per_client: rows of the attacked client.
        rounds: number of training rounds.
        leak: mean leakage of the strongest attack on the server's view; NaN where it was not measured.
        leak_upper: upper bound on the mean leakage of every attack: the largest of the upper ends of their confidence
            intervals, 95 % for all settings of the search together.
        detectable: smallest mean leak that at least one attack would most likely have noticed; it says nothing of leaks
            that these attacks cannot find. NaN where that is not known.
        holds: whether `leak_upper` and `detectable` are at most the acceptable leak, and the same figures of the
            smallest client too.
        epsilon: promise of differential privacy for one client over all rounds against the server; `None` without.
        utility: mean score of the final model on held-out rows; higher is better.
        utility_clear: the same without a defence, at the same sizes.
        bytes_up: bytes that one client sends in one round.
        seconds_per_round: wall-clock time of one round of the whole federation in one process.
        usable: whether the setting is shown to keep enough of what `utility_clear` exceeds its floor by
            (`Advice.keep`).
        usable_from: smallest simulated cohort at which the defence keeps enough utility; `None` where none did, or
            where nothing was simulated.
        note: what else the reader must know, in a sentence; empty if nothing.
        delta: the delta of epsilon; `None` without it.
        utility_deviation: standard deviation of the utility of a single run; NaN where fewer than two ran.
        simulated: on what data the cohort `usable_from` was simulated, and the utilities that it reached, in words;
            empty where that is `None`.
        smallest_rows: training rows of the smallest client; 0 where all have as many.
        smallest_leak: mean leakage of the strongest attack on the client of fewest rows, over all runs.
        smallest_runs: number of these runs.
        pooled_leak: mean leakage of the strongest attack on all clients' data together, from the same sums; NaN where
            none applied.
        people_leak: mean leakage of the row of one person, or of the mean of a few, in these sums, over the runs in
            which few people share a category; NaN where there are none.
        people: the people who were read best, in words; empty where there are none.
        member_leak: mean leakage of whether a given row was among all clients' rows; NaN where that was not tested.
        smallest_upper: as `leak_upper`, of that client; NaN where all have about as many rows.
        floor: mean of the best score that needs no federation; NaN where none is known.
        floor_name: what reaches the floor, in words.
        model: whether the runs in the clear are shown to exceed the floor; true where none is known.
        share: share of `utility_clear` - `floor` that the setting keeps; NaN without a model.
        share_low: lower bound on that share at 95 %, of paired runs; NaN without a model.
        limits: for which schedule and which help of clients the leak was measured, in a sentence; empty if it does not
            hold.
    """

    algorithm: str
    defense: str
    paste: str
    clients: int
    rows_per_client: int
    rounds: int
    leak: float
    leak_upper: float
    detectable: float
    holds: bool
    epsilon: float | None
    utility: float
    utility_clear: float
    bytes_up: float
    seconds_per_round: float
    usable: bool = True
    usable_from: int | None = None
    note: str = ""
    delta: float | None = None
    utility_deviation: float = math.nan
    simulated: str = ""
    smallest_rows: int = 0
    smallest_leak: float = math.nan
    smallest_runs: int = 0
    pooled_leak: float = math.nan
    people_leak: float = math.nan
    people: str = ""
    member_leak: float = math.nan
    smallest_upper: float = math.nan
    floor: float = math.nan
    floor_name: str = ""
    model: bool = True
    share: float = math.nan
    share_low: float = math.nan
    limits: str = ""


MEASURED: Final = tuple(field.name for field in fields(Setting) if field.type == "float")
"""Figures of a `Setting`, which are NaN where it did not run, and `None` in JSON."""


@dataclass(frozen=True)
class RecordSetting(_Values):
    """Noise that hides single rows of a client, not the client: its promise, and what it costs.

    Attributes:
        algorithm: name of the private algorithm.
        paste: the command that runs this setting; the user replaces nothing in it.
        clients: number of clients in a round.
        rounds: number of training rounds.
        epsilon: promise of differential privacy for one row of one client, there or not, over all rounds, against
            an attacker who sees every message.
        delta: the delta of epsilon.
        guess: bound on the chance that an attacker who knows all other rows, and sees every message, tells rightly
            whether a row was there, where both were equally likely beforehand; one half is a coin.
        utility: mean score of the final model on held-out rows; higher is better.
        utility_clear: the same of the user's algorithm without a defence, at the same sizes.
        bytes_up: bytes that one client sends in one round.
        seconds_per_round: wall-clock time of one round of the whole federation in one process.
        usable: as of a `Setting`.
        note: what epsilon does not cover, in a sentence.
        utility_deviation: standard deviation of the utility of a single run; NaN where fewer than two ran.
        changes: what the command sets otherwise than the user did, and why, in a sentence; empty if nothing.
        smallest_rows: training rows of the smallest client; 0 where all have as many.
        floor: as of a `Setting`.
        share: as of a `Setting`.
        share_low: as of a `Setting`.
    """

    algorithm: str
    paste: str
    clients: int
    rounds: int
    epsilon: float
    delta: float
    guess: float
    utility: float
    utility_clear: float
    bytes_up: float
    seconds_per_round: float
    usable: bool
    note: str = ""
    utility_deviation: float = math.nan
    changes: str = ""
    smallest_rows: int = 0
    floor: float = math.nan
    share: float = math.nan
    share_low: float = math.nan


@dataclass(frozen=True)
class Advice(_Values):
    """Advice on the leaks of one algorithm, for the user's data and sizes.

    Attributes:
        algorithm: name of the algorithm.
        data: name of the data set.
        acceptable: leakage that the user can live with.
        view: what the attacker of the search sees, in words.
        tried: every setting of the search, in the order of trying; the first is without a defence.
        advised: the setting to use: of those that hold and are usable the one of highest utility, of equals the
            cheapest. `None` where there is none at this cohort size.
        sentences: two sentences: what to do, and what it costs.
        clients_needed: where `advised` is `None`, the smallest simulated cohort from which on a setting holds and is
            usable; `None` where none of those simulated is large enough.
        keep: share of what the utility in the clear exceeds its floor by that a usable setting keeps.
        records: noise that hides single rows of a client, strongest promise first; empty where none was tried.
        records_note: why none was tried, in a sentence; empty otherwise.
        alerts: what the data themselves open, found before anything ran.
        measure: what the utility measures, such as "accuracy".
    """

    algorithm: str
    data: str
    acceptable: float
    view: str
    tried: tuple[Setting, ...]
    advised: Setting | None
    sentences: tuple[str, str]
    clients_needed: int | None
    keep: float = 0.9
    records: tuple[RecordSetting, ...] = ()
    records_note: str = ""
    alerts: tuple[Alert, ...] = ()
    measure: str = "utility"

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values; each alert says whether it is personal data."""
        return super().to_json() | {"alerts": [alert.to_json() for alert in self.alerts]}

    @property
    def record(self) -> RecordSetting | None:
        """Choose among the usable settings that hide single rows: the strongest promise."""
        return min((one for one in self.records if one.usable), key=lambda one: one.epsilon, default=None)

    @property
    def frontier(self) -> tuple[Setting, ...]:
        """Select the settings that no other tried one beats in leak, utility, bytes and promise (epsilon) at once."""
        known = [setting for setting in self.tried if not math.isnan(setting.leak_upper)]
        return tuple(setting for setting in known if not any(_beats(other, setting) for other in known))

    @property
    def nearest(self) -> Setting | None:
        """Choose what comes nearest where nothing is advised: it holds, or has the lowest bound; then most utility."""
        known = [one for one in self.tried if one.paste and not math.isnan(one.leak_upper)]
        if self.advised is not None or not known:
            return None

        def distance(one: Setting) -> tuple[bool, float, float]:
            return not one.holds, 0.0 if one.holds else one.leak_upper, -one.utility

        return min(known, key=distance)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote.

        Raises:
            DataError: a value is missing or unknown.
        """
        made = super().from_json(values)
        parts: dict[str, Any] = {
            "tried": tuple(map(Setting.from_json, values["tried"])),
            "advised": None if values["advised"] is None else Setting.from_json(values["advised"]),
            "sentences": tuple(values["sentences"]),
            "records": tuple(map(RecordSetting.from_json, values.get("records", ()))),
            "alerts": tuple(map(Alert.from_json, values.get("alerts", ()))),
        }
        return replace(made, **parts)


def _beats(other: Setting, setting: Setting) -> bool:
    """Whether a setting is at least as good in every measure, and better in one."""

    def measures(one: Setting) -> tuple[float, ...]:
        promise = math.inf if one.epsilon is None else one.epsilon
        return one.leak_upper, -one.utility, one.bytes_up, promise

    pairs = list(zip(measures(other), measures(setting), strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
