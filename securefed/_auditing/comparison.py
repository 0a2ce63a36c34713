"""Two audits beside each other: which leaks grew, which shrank, and what it cost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from securefed._auditing.audit_cells import AUDIT, Cell
from securefed._auditing.finding import strongest
from securefed._auditing.statistics import INCONCLUSIVE, Interval, Verdict, widened
from securefed.errors import DataError

Change = Literal[
    "grew",
    "no longer known",
    "shrank",
    "known now",
    "within the intervals",
    "unknown in both",
    "only after",
    "only before",
]
GREW: Final = "grew"
LOST: Final = "no longer known"
SHRANK: Final = "shrank"
SETTLED: Final = "known now"
SAME: Final = "within the intervals"
UNKNOWN: Final = "unknown in both"
ADDED: Final = "only after"
GONE: Final = "only before"
QUIET: Final = (SAME, UNKNOWN)
"""Changes that are none."""
VISIBLE: Final = 0.005
"""Smallest change of a mean that counts: half of the last digit that a report shows."""
Key = tuple[str, ...]
Triple = tuple[float, float, float]
_FIELDS = ("algorithm", "defense", "view", "attack", "secret")
_LEAK = ("mean", "low", "high")


@dataclass(frozen=True)
class Compared:
    """One cell of two audits, or what the strongest attack of each found in one view.

    Attributes:
        algorithm, defense, view, attack, secret: which; of two strongest attacks that differ, both.
        before, after: mean leakages; `None` where only one audit has the cell.
        intervals: (low, high) of both, likewise.
        change: see `change_of`.      verdicts: of both, likewise.
        utility: after less before.      bytes, seconds: after over before; `None` where one is missing or zero.
        epsilons: of both, as the cells have them.
    """

    algorithm: str
    defense: str
    view: str
    attack: str
    secret: str
    before: float | None
    after: float | None
    intervals: tuple[tuple[float, float] | None, tuple[float, float] | None]
    change: Change
    verdicts: tuple[str | None, str | None]
    utility: float | None
    bytes: float | None
    seconds: float | None
    epsilons: tuple[float | str | None, float | str | None]

    @property
    def moved(self) -> float:
        """How far the leak moved; below 0, where nothing is learned, it stands still."""
        return 0.0 if self.before is None or self.after is None else max(self.after, 0.0) - max(self.before, 0.0)

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Difference:
    """A setting in which two audits differ, `None` where one does not have it."""

    where: str
    what: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if not self.where:
            return f"{self.what} {self.before} before, {self.after} after"
        return f"{self.where}: {self.what} was {self.before}, is {self.after}"


@dataclass(frozen=True)
class Cost:
    """What one defence of one algorithm costs in two audits.

    Attributes:
        measure: what `utility` is.      utility, bytes, seconds, epsilon: (before, after); bytes are a client's in
            both directions and seconds the federation's, a round.
    """

    algorithm: str
    defense: str
    measure: str
    utility: tuple[float, float]
    bytes: tuple[float, float]
    seconds: tuple[float, float]
    epsilon: tuple[float | None, float | None]

    @property
    def changed(self) -> bool:
        """Whether utility, bytes or epsilon did; seconds are never the same twice."""
        (u, v), (a, b) = self.utility, self.bytes
        return abs(v - u) >= VISIBLE or abs(b - a) > 0.01 * a or self.epsilon[0] != self.epsilon[1]

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        pairs = {name: [_known(value) for value in getattr(self, name)] for name in ("utility", "bytes", "seconds")}
        return asdict(self) | pairs


@dataclass(frozen=True)
class Member:
    """An adversary who asks whose rows were there, in two audits.

    Attributes:
        auc: (value, low, high) of both.      change: as `Compared.change`, of the AUC above .5.
    """

    algorithm: str
    defense: str
    adversary: str
    auc: tuple[Triple, Triple]
    change: Change
    verdicts: tuple[str, str]

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def read(path: Path) -> Mapping[str, Any]:
    """An `audit.json`.

    Raises:
        DataError: it cannot be read, or is not the JSON of an audit.
    """
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not JSON ({error}); `securefed audit` writes audit.json") from error
    cells = report.get("cells") if isinstance(report, dict) else None
    if not isinstance(cells, list) or not all(_is_cell(cell) for cell in cells):
        raise DataError(f"{path} is JSON, but not of an audit: `securefed audit` writes audit.json with `cells`")
    return report


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Compared]:
    """Every cell of either audit, those of `after` first, in their order."""
    old, new = ({_key(cell): cell for cell in cells_of(report)} for report in (before, after))
    return [_compared(old.get(key), new.get(key)) for key in dict.fromkeys([*new, *old])]


def compare_views(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Compared]:
    """For each (algorithm, defence, view, secret) what the strongest attack of either audit found, as the report's
    first tables show it: a stronger attack of the later audit shows here, where `compare` has no cell beside it."""
    old, new = (strongest(cells_of(report)) for report in (before, after))
    return [_compared(old.get(key), new.get(key)) for key in dict.fromkeys([*new, *old])]


def compare_costs(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Cost]:
    """Each defence of each algorithm that both audits have, as its first view ran."""
    old, new = (_first_of(cells_of(report)) for report in (before, after))
    out = []
    for (algorithm, defense), cells in new.items():
        if (algorithm, defense) in old:
            a, b = old[algorithm, defense], cells
            measure = after.get("settings", {}).get(algorithm, {}).get("utility", "utility")
            out.append(
                Cost(
                    algorithm,
                    defense,
                    measure,
                    (a[0].utility, b[0].utility),
                    (a[0].bytes_per_client_round, b[0].bytes_per_client_round),
                    (a[0].seconds_per_round, b[0].seconds_per_round),
                    (_epsilon(a), _epsilon(b)),
                )
            )
    return out


def compare_members(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Member]:
    """Each adversary of membership that both audits have."""

    def rows(report: Mapping[str, Any]) -> dict[Key, Mapping[str, Any]]:
        return {(row["algorithm"], row["defense"], row["adversary"]): row for row in report.get("membership", ())}

    old, new = rows(before), rows(after)
    return [_member(old[key], new[key]) for key in new if key in old]


def change_of(old: Cell, new: Cell) -> Change:
    """What became of a leak.

    It grew or shrank where the two 95 % intervals do not overlap, which errs on the side of "same"; below 10 seeds
    they are widened to Student's, as for verdicts, and one seed has none. Of 1000 pairs of one normal law .2, .6, .6
    and 1.8 % differ at 2, 3, 5 and 10 seeds (bootstrapped alone: 31, 12, 6 and 2 %). Below 0 nothing is learned, so
    that -2 and -.3 are the same, and a mean that moves less than `VISIBLE` did not move. Where the later attacks
    failed, a leak that looks smaller is no longer known; where the earlier ones failed, whatever is smaller is known
    now.
    """
    blind = [cell.verdict.word == INCONCLUSIVE for cell in (old, new)]
    if all(blind):
        return UNKNOWN
    if _beyond(old, new):
        return GREW
    if any(blind):
        return LOST if blind[1] else SETTLED
    return SHRANK if _beyond(new, old) else SAME


def fell(old: Cell, new: Cell) -> bool:
    """Whether the leak of `new` lies below that of `old`, beyond both intervals; whatever its attacks can tell."""
    return _beyond(new, old)


def cells_of(report: Mapping[str, Any]) -> list[Cell]:
    """The cells of an `audit.json`; what an older version did not write is NaN."""
    return [_cell(values) for values in report["cells"]]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """What makes the comparison uneven: other data, clients, seeds, hyper-parameters, versions."""
    found = []
    if before.get("version") != after.get("version"):
        found.append(Difference("", "securefed", before.get("version"), after.get("version")))
    old, new = (report.get("settings", {}) for report in (before, after))
    for name in sorted(old.keys() & new.keys(), key=lambda name: (name != AUDIT, name)):
        a, b = _flat(old[name]), _flat(new[name])
        found += [Difference(name, key, a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys())]
    return [item for item in found if item.before != item.after]


def settings_that_differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """`differences` in sentences."""
    return map(str, differences(before, after))


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in settings.items():
        out |= value if isinstance(value, Mapping) else {key: value}
    return out


def _is_cell(values: Any) -> bool:
    needed = {*_FIELDS, "leakage", "verdict", "utility", "bytes_per_client_round"}
    if not isinstance(values, dict) or not needed <= values.keys() or not isinstance(values["leakage"], dict):
        return False
    return all(isinstance(values["leakage"].get(name), int | float) for name in _LEAK)


def _cell(values: Mapping[str, Any]) -> Cell:
    """A cell of `audit.json`, where NaN is `null`."""
    known: dict[str, Any] = {field.name: values.get(field.name) for field in fields(Cell)}
    for field in fields(Cell):
        if field.type == "float" and known[field.name] is None:
            known[field.name] = math.nan
    known["leakage"], known["null_leakage"] = (_interval(values.get(name)) for name in ("leakage", "null_leakage"))
    detectable = values.get("detectable")
    known["verdict"] = Verdict(values["verdict"], math.nan if detectable is None else detectable)
    return Cell(**known)


def _interval(values: Mapping[str, Any] | None) -> Interval:
    held = values or {}
    mean, low, high, deviation = (held.get(name, math.nan) for name in (*_LEAK, "deviation"))
    return Interval(mean, low, high, held.get("seeds", 0), deviation)


def _first_of(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    out: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        out.setdefault((cell.algorithm, cell.defense), []).append(cell)
    return out


def _epsilon(cells: Iterable[Cell]) -> float | None:
    return next((cell.epsilon for cell in cells if isinstance(cell.epsilon, float)), None)


def _member(old: Mapping[str, Any], new: Mapping[str, Any]) -> Member:
    a, b = (_triple(row["auc"]) for row in (old, new))
    change: Change = SAME
    if max(b[1], 0.5) > max(a[2], 0.5) and b[0] - a[0] >= VISIBLE:
        change = GREW
    elif max(a[1], 0.5) > max(b[2], 0.5) and a[0] - b[0] >= VISIBLE:
        change = SHRANK
    return Member(new["algorithm"], new["defense"], new["adversary"], (a, b), change, (old["verdict"], new["verdict"]))


def _triple(values: Iterable[float]) -> Triple:
    value, low, high = values
    return value, low, high


def _key(cell: Cell) -> Key:
    return tuple(str(getattr(cell, name)) for name in _FIELDS)


def _compared(old: Cell | None, new: Cell | None) -> Compared:
    one = new or old
    assert one is not None
    attacks = dict.fromkeys(cell.attack for cell in (old, new) if cell is not None)
    both = None if old is None or new is None else (old, new)
    return Compared(
        algorithm=one.algorithm,
        defense=one.defense,
        view=one.view,
        attack=", then ".join(attacks),
        secret=one.secret,
        before=None if old is None else old.leakage.mean,
        after=None if new is None else new.leakage.mean,
        intervals=(_ends(old), _ends(new)),
        change=change_of(*both) if both else ADDED if old is None else GONE,
        verdicts=(None if old is None else old.verdict.word, None if new is None else new.verdict.word),
        utility=_known(both[1].utility - both[0].utility) if both else None,
        bytes=_ratio(cell.bytes_per_client_round for cell in both) if both else None,
        seconds=_ratio(cell.seconds_per_round for cell in both) if both else None,
        epsilons=(None if old is None else old.epsilon, None if new is None else new.epsilon),
    )


def _ends(cell: Cell | None) -> tuple[float, float] | None:
    return None if cell is None else (cell.leakage.low, cell.leakage.high)


def _beyond(old: Cell, new: Cell) -> bool:
    """Whether the leak of `new` lies above that of `old`."""
    a, b = old.leakage, new.leakage
    low, high = b.mean - widened(b), max(a.high, a.mean + widened(a))
    return max(low, 0.0) > max(high, 0.0) and max(b.mean, 0.0) - max(a.mean, 0.0) >= VISIBLE


def _ratio(values: Iterable[float]) -> float | None:
    before, after = values
    return _known(after / before) if before and after else None


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
