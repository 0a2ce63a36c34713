"""The values of an advice, and their JSON: the settings that were tried, and the one that is advised.

`securefed.advise` (`advice.search`) returns an `Advice`; the page, the terminal and `audit.json` show it. A leak is the
leakage of an attack, 1 - error / error of a guess without messages: 1 is exact, 0 a guess. Its mean is over seeds, the
repetitions of a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, TypeVar

from securefed.errors import DataError

T = TypeVar("T")

MEASURED: Final = (
    "leak", "leak_upper", "detectable", "utility", "utility_clear", "bytes_up", "seconds_per_round",
    "utility_deviation", "smallest_leak",
)  # fmt: skip
"""Figures of a `Setting` that are NaN where it did not run, and `None` in JSON."""
LEAST_ACCEPTABLE: Final = 0.06
"""Smallest leak that a user may name as acceptable: the smallest that the attacks would notice."""


@dataclass(frozen=True)
class Setting:
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
        holds: whether `leak_upper` and `detectable` are at most the acceptable leak.
        epsilon: promise of differential privacy for one client over all rounds against the server; `None` without.
        utility: mean score of the final model on held-out rows; higher is better.
        utility_clear: the same without a defence, at the same sizes.
        bytes_up: bytes that one client sends in one round.
        seconds_per_round: wall-clock time of one round of the whole federation in one process.
        usable: whether the setting keeps enough of `utility_clear` (`Advice.keep`).
        usable_from: smallest simulated cohort at which the defence keeps enough utility; `None` where none did, or
            where nothing was simulated.
        note: what else the reader must know, in a sentence; empty if nothing.
        delta: of epsilon; `None` without it.
        utility_deviation: standard deviation of the utility of a single run; NaN where fewer than two ran.
        simulated: of the cohort `usable_from`, on what it was simulated and the utilities that it reached, in words;
            empty where that is `None`.
        smallest_rows: training rows of the smallest client; 0 where all have as many.
        smallest_leak: mean leakage of the strongest attack over the runs that attacked a client of so few rows.
        smallest_runs: number of these runs.
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

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values; NaN and infinity become `None`."""
        return _plain(asdict(self))

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Setting:
        """Read what `to_json` wrote.

        Raises:
            DataError: a value is missing or unknown.
        """
        return _read(Setting, values, MEASURED)


@dataclass(frozen=True)
class RecordSetting:
    """Noise that hides single rows of a client, not the client: its promise, and what it costs.

    Attributes:
        algorithm: name of the private algorithm.
        paste: the command that runs this setting; the user replaces nothing in it.
        clients: number of clients in a round.
        rounds: number of training rounds.
        epsilon: promise of differential privacy for one row of one client, there or not, over all rounds, against
            an attacker who sees every message.
        delta: of epsilon.
        guess: bound on the chance that an attacker who knows all other rows, and sees every message, tells rightly
            whether a row was there, where both were equally likely beforehand; one half is a coin.
        utility: mean score of the final model on held-out rows; higher is better.
        utility_clear: the same of the user's algorithm without a defence, at the same sizes.
        bytes_up: bytes that one client sends in one round.
        seconds_per_round: wall-clock time of one round of the whole federation in one process.
        usable: whether the setting keeps enough of `utility_clear` (`Advice.keep`).
        note: what epsilon does not cover, in a sentence.
        utility_deviation: standard deviation of the utility of a single run; NaN where fewer than two ran.
        changes: what the command sets otherwise than the user did, and why, in a sentence; empty if nothing.
        smallest_rows: training rows of the smallest client; 0 where all have as many.
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

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values; NaN and infinity become `None`."""
        return _plain(asdict(self))

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> RecordSetting:
        """Read what `to_json` wrote.

        Raises:
            DataError: a value is missing or unknown.
        """
        return _read(RecordSetting, values, MEASURED)


@dataclass(frozen=True)
class Advice:
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
        keep: share of the utility in the clear that a usable setting keeps.
        records: noise that hides single rows of a client, strongest promise first; empty where none was tried.
        records_note: why none was tried, in a sentence; empty otherwise.
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

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values, as they stand in `audit.json` under "advice"."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {
            "tried": [setting.to_json() for setting in self.tried],
            "records": [setting.to_json() for setting in self.records],
            "advised": None if self.advised is None else self.advised.to_json(),
            "sentences": list(self.sentences),
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Advice:
        """Read what `to_json` wrote.

        Raises:
            DataError: a value is missing or unknown.
        """
        advice = _read(Advice, values)
        return Advice(
            **{field.name: getattr(advice, field.name) for field in fields(advice)}
            | {
                "tried": tuple(Setting.from_json(one) for one in values["tried"]),
                "advised": None if values["advised"] is None else Setting.from_json(values["advised"]),
                "sentences": tuple(values["sentences"]),
                "records": tuple(RecordSetting.from_json(one) for one in values.get("records", ())),
            }
        )


def _beats(other: Setting, setting: Setting) -> bool:
    """Whether a setting is at least as good in every measure, and better in one."""

    def measures(one: Setting) -> tuple[float, ...]:
        promise = math.inf if one.epsilon is None else one.epsilon
        return one.leak_upper, -one.utility, one.bytes_up, promise

    pairs = list(zip(measures(other), measures(setting), strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN and infinity by `None`, since JSON has neither."""
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in values.items()}


def _read(kind: type[T], values: Mapping[str, Any], numbers: tuple[str, ...] = ()) -> T:
    """Make a dataclass of JSON values; of the fields in `numbers` a `None` becomes NaN."""
    named = {key: math.nan if value is None and key in numbers else value for key, value in values.items()}
    try:
        return kind(**named)
    except TypeError as error:
        raise DataError(f"this is no {kind.__name__.lower()} of an advice of this version: {error}") from error
