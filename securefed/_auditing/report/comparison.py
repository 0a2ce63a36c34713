"""Compare two audits: which leaks grew, which shrank, and what that cost.

The command `securefed compare` calls it, for its page and for its gate (`grown_leaks`), which fails where leaks grew.
Both audits are the JSON values of their `audit.json`. A cell is one attack on one secret in one view (what an attacker
sees), over all runs. A leak changed if the two 95 % intervals do not overlap; `change_of` states the rule, and which
value of `Change` says what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from securefed._auditing.engine.audit_result import AUDIT
from securefed._auditing.engine.results import Cell, finite_or_none
from securefed._auditing.engine.run_costs import RunCosts
from securefed._auditing.engine.statistics import INCONCLUSIVE, widened
from securefed._auditing.report.audit_json import PLACE, AuditJson, cells_of, costs_of
from securefed._auditing.report.selections import strongest

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
LOST: Final = "no longer known"  # the later audit's attacks failed
SHRANK: Final = "shrank"
SETTLED: Final = "known now"  # the earlier audit's attacks failed
SAME: Final = "within the intervals"
UNKNOWN: Final = "unknown in both"
ADDED: Final = "only after"  # the earlier audit has no such cell
GONE: Final = "only before"
QUIET: Final = (SAME, UNKNOWN)
"""Values of `Compared.change` that mean no change."""
VISIBLE: Final = 0.005
"""Smallest change of a mean that counts: half of the last digit that a report shows."""
Triple = tuple[float, float, float]
"""(value, low, high)."""


@dataclass(frozen=True)
class Compared:
    """One cell of two audits, or what the strongest attack of each found in one situation.

    Attributes:
        algorithm: its name.
        defense: name of the defence.
        view: name of the view.
        attack: name of the attack; of two strongest attacks that differ, both names.
        secret: what was looked for.
        before: mean leakage of the earlier audit; `None` if it has no such cell.
        after: mean leakage of the later audit; `None` if it has no such cell.
        intervals: (low, high) of both leakages; `None` for an audit without such a cell.
        change: as `change_of` states.
        verdicts: words of both verdicts; `None` for an audit without such a cell.
        utility: the utility of the final models, after less before; `None` if one is missing.
        bytes: the bytes of traffic, after over before; `None` if one is missing or zero.
        seconds: the seconds, after over before; `None` if one is missing or zero.
        epsilons: the epsilons of both, as the cells have them.
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
    def situation(self) -> tuple[str, str, str, str]:
        """Where the cell stands, as `selections.strongest` counts it."""
        return self.algorithm, self.defense, self.view, self.secret

    @property
    def moved(self) -> float:
        """Change of the mean; leakages below 0 count as 0, since nothing is learned there."""
        return 0.0 if self.before is None or self.after is None else max(self.after, 0.0) - max(self.before, 0.0)


@dataclass(frozen=True)
class Difference:
    """A setting in which two audits differ.

    Attributes:
        where: the algorithm; `audit` for settings of all; empty for the version of the package.
        what: name of the setting.
        before: its value in the earlier audit; `None` if that has no such setting.
        after: its value in the later audit; `None` if that has no such setting.
    """

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
        algorithm: its name.
        defense: name of the defence.
        measure: what `utility` is.
        utility: (before, after) of the final model.
        bytes: (before, after) of one client in one round, both directions.
        seconds: (before, after) of the whole federation in one round.
        epsilon: (before, after) for all rounds; `None` without noise.
    """

    algorithm: str
    defense: str
    measure: str
    utility: tuple[float, float]
    bytes: tuple[float, float]
    seconds: tuple[float, float]
    epsilon: tuple[float | None, float | None]

    @property
    def look(self) -> str:
        """Style class of the change of utility."""
        before, after = self.utility
        return "" if abs(after - before) < VISIBLE else "better" if after > before else "worse"

    @property
    def changed(self) -> bool:
        """Whether utility, bytes (by 1 %) or epsilon changed; seconds are never the same twice."""
        (u, v), (a, b) = self.utility, self.bytes
        return abs(v - u) >= VISIBLE or abs(b - a) > 0.01 * a or self.epsilon[0] != self.epsilon[1]

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {key: finite_or_none(value) for key, value in asdict(self).items()}


@dataclass(frozen=True)
class Member:
    """A membership adversary in two audits.

    Attributes:
        algorithm: its name.
        defense: name of the noise.
        adversary: what the adversary knows.
        auc: (value, low, high) of both audits.
        change: as `Compared.change`, of the AUC above .5.
        verdicts: words of both audits.
    """

    algorithm: str
    defense: str
    adversary: str
    auc: tuple[Triple, Triple]
    change: Change
    verdicts: tuple[str, str]


def compare(before: AuditJson, after: AuditJson) -> list[Compared]:
    """Compare every cell of either audit, those of `after` first, in their order."""
    old, new = ({_key(one.cell): one for one in _sides(report)} for report in (before, after))
    return [_compared(old.get(key), new.get(key)) for key in dict.fromkeys([*new, *old])]


def compare_views(before: AuditJson, after: AuditJson) -> list[Compared]:
    """Compare what the strongest attack of either audit found in each situation (algorithm, defence, view, secret).

    The report's first tables show these. A stronger attack that only the later audit has shows here, whereas `compare`
    has no cell to set beside it.
    """
    old, new = (_strongest(report) for report in (before, after))
    return [_compared(old.get(key), new.get(key)) for key in dict.fromkeys([*new, *old])]


def compare_costs(before: AuditJson, after: AuditJson) -> list[Cost]:
    """Compare the costs of each defence of each algorithm that both audits have, by the first view of its run."""
    old, new = (_by_defense(report) for report in (before, after))
    out = []
    for (algorithm, defense), b in new.items():
        if (a := old.get((algorithm, defense))) is not None:
            measure = after.get("settings", {}).get(algorithm, {}).get("utility", "utility")
            out.append(
                Cost(
                    algorithm,
                    defense,
                    measure,
                    utility=(a[0].utility, b[0].utility),
                    bytes=(a[0].bytes_per_client_round, b[0].bytes_per_client_round),
                    seconds=(a[0].seconds_per_round, b[0].seconds_per_round),
                    epsilon=(_epsilon(a), _epsilon(b)),
                )
            )
    return out


def compare_members(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Member]:
    """Compare each membership adversary that both audits have."""
    old, new = members_of(before), members_of(after)
    return [_member(old[key], new[key]) for key in new if key in old]


def members_of(report: Mapping[str, Any]) -> dict[tuple[str, str, str], Mapping[str, Any]]:
    """Map (algorithm, noise, adversary) to the rows of the membership part."""
    return {(row["algorithm"], row["defense"], row["adversary"]): row for row in report.get("membership", ())}


def change_of(old: Cell, new: Cell) -> Change:
    """Classify the change of a leak.

    It grew or shrank if the two 95 % intervals do not overlap, which errs on the side of "same". Below 10 seeds the
    bootstrap's intervals are widened to Student's, as for verdicts; one seed has none. False alarms: of 1000 pairs of
    audits with leakages from one normal distribution .2, .6, .6 and 1.8 % count as changed at 2, 3, 5 and 10 seeds
    (31, 12, 6 and 2 % without the widening). Leakages below 0 count as 0, since nothing is learned there, and a mean
    that moves less than `VISIBLE` did not move. If the later attacks failed, a leak that looks smaller is no longer
    known; if the earlier ones failed, it is known now.
    """
    failed = [cell.verdict.word == INCONCLUSIVE for cell in (old, new)]
    if all(failed):
        return UNKNOWN
    if beyond(old, new):
        return GREW
    if any(failed):
        return LOST if failed[1] else SETTLED
    return SHRANK if beyond(new, old) else SAME


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """List what makes the comparison uneven: other data, clients, seeds, hyper-parameters, versions."""
    found = []
    if before.get("version") != after.get("version"):
        found.append(Difference("", "securefed", before.get("version"), after.get("version")))
    old, new = (report.get("settings", {}) for report in (before, after))
    for name in sorted(old.keys() & new.keys(), key=lambda name: (name != AUDIT, name)):
        a, b = _flat(old[name]), _flat(new[name])
        found += [Difference(name, key, a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys())]
    return [item for item in found if item.before != item.after]


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in settings.items():
        out |= value if isinstance(value, Mapping) else {key: value}
    return out


def _by_defense(report: AuditJson) -> dict[tuple[str, str], list[RunCosts]]:
    out: dict[tuple[str, str], list[RunCosts]] = {}
    for run in costs_of(report):
        out.setdefault((run.algorithm, run.defense), []).append(run)
    return out


def _epsilon(runs: Iterable[RunCosts]) -> float | None:
    return next((run.epsilon for run in runs if run.epsilon is not None), None)


@dataclass(frozen=True)
class _Side:
    """A cell of one audit, with the costs of its runs."""

    cell: Cell
    costs: RunCosts


def _sides(report: AuditJson) -> list[_Side]:
    runs = {(run.algorithm, run.defense, run.view): run for run in costs_of(report)}
    unknown = RunCosts("", "")
    return [
        _Side(c, runs.get((c.algorithm, c.defense, c.view)) or runs.get((c.algorithm, c.defense, ""), unknown))
        for c in cells_of(report)
    ]


def _strongest(report: AuditJson) -> dict[tuple[str, str, str, str], _Side]:
    found = {id(one.cell): one for one in _sides(report)}
    return {key: found[id(cell)] for key, cell in strongest(one.cell for one in found.values()).items()}


def _member(old: Mapping[str, Any], new: Mapping[str, Any]) -> Member:
    a, b = (tuple(row["auc"]) for row in (old, new))
    change: Change = SAME
    if max(b[1], 0.5) > max(a[2], 0.5) and b[0] - a[0] >= VISIBLE:
        change = GREW
    elif max(a[1], 0.5) > max(b[2], 0.5) and a[0] - b[0] >= VISIBLE:
        change = SHRANK
    return Member(new["algorithm"], new["defense"], new["adversary"], (a, b), change, (old["verdict"], new["verdict"]))


def _key(cell: Cell) -> tuple[str, ...]:
    return tuple(str(getattr(cell, name)) for name in PLACE)


def _compared(old: _Side | None, new: _Side | None) -> Compared:
    one = new or old
    assert one is not None
    attacks = dict.fromkeys(side.cell.attack for side in (old, new) if side is not None)
    both = None if old is None or new is None else (old, new)

    def pair(read: Callable[[_Side], Any]) -> Any:
        return tuple(None if side is None else read(side) for side in (old, new))

    before, after = pair(lambda side: side.cell.leakage.mean)
    return Compared(
        algorithm=one.cell.algorithm,
        defense=one.cell.defense,
        view=one.cell.view,
        attack=", then ".join(attacks),
        secret=one.cell.secret,
        before=before,
        after=after,
        intervals=pair(lambda side: (side.cell.leakage.low, side.cell.leakage.high)),
        change=change_of(both[0].cell, both[1].cell) if both else ADDED if old is None else GONE,
        verdicts=pair(lambda side: side.cell.verdict.word),
        utility=finite_or_none(both[1].costs.utility - both[0].costs.utility) if both else None,
        bytes=_ratio(side.costs.bytes_per_client_round for side in both) if both else None,
        seconds=_ratio(side.costs.seconds_per_round for side in both) if both else None,
        epsilons=pair(lambda side: side.costs.promised(side.cell.view)),
    )


def beyond(old: Cell, new: Cell) -> bool:
    """Whether the leak of `new` lies above that of `old`, beyond both intervals."""
    a, b = old.leakage, new.leakage
    low, high = b.mean - widened(b), max(a.high, a.mean + widened(a))
    return max(low, 0.0) > max(high, 0.0) and max(b.mean, 0.0) - max(a.mean, 0.0) >= VISIBLE


def _ratio(values: Iterable[float]) -> float | None:
    before, after = values
    return finite_or_none(after / before) if before and after else None
