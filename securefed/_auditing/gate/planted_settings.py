"""Settings whose word of safety is known, by which `self_check` checks the rule behind "held".

A planted setting is a report of made-up attempts: in the clear one client's data are exposed, under a protection each
view is kept, leaks, was attacked in vain, or was not attacked. The report must say of it what the rule says, and name
what the word does not cover.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.audit_result import AUDIT
from securefed._auditing.engine.gathering import gather
from securefed._auditing.engine.results import CLIENT, Attempt, RunFacts
from securefed._auditing.report.cards import conclusion
from securefed._auditing.report.outcomes import rulings
from securefed.attacks.views import CHANGING_SURVIVORS, SMALLEST_SUM, SUM_ONLY

_NAME: Final = "pca/localpower"
_SEEDS: Final = 4
"""Runs of a planted setting; its attempts are made up, so that more would show nothing else."""
_KEPT, _LEAKS, _FAILED = "kept", "leaks", "failed"
_SUMS: Final = {SUM_ONLY: _KEPT, SMALLEST_SUM: _KEPT, CHANGING_SURVIVORS: _KEPT}


@dataclass(frozen=True)
class PlantedSetting:
    """A protection, what attacks found in its views, and what must be said of it.

    Attributes:
        name: the situation in words.
        views: by view, whether it is kept, leaks, or was attacked in vain; others were not attacked.
        word: the right word (`allowed_views.Ruling.word`).
        said: what must stand among its limits.
        unsaid: what must not stand in the report's conclusion.
        defense: the protection.
        shared: further settings of the audit.
    """

    name: str
    views: Mapping[str, str]
    word: str
    said: tuple[str, ...] = ()
    unsaid: str = ""
    defense: str = "secure_aggregation"
    shared: Mapping[str, Any] = field(default_factory=dict)


PLANTED_SETTINGS: Final = (
    PlantedSetting("sums kept in every view", _SUMS, "held", ("1 client or more together with the server",)),
    PlantedSetting(
        "sums that leak where clients come and go",
        _SUMS | {CHANGING_SURVIVORS: _LEAKS},
        "fixed",
        ("as long as the same clients", "Where clients stay away"),
    ),
    PlantedSetting(
        "sums that were attacked in vain where clients come and go",
        _SUMS | {CHANGING_SURVIVORS: _FAILED},
        "fixed",
        ("as long as the same clients", "it is not known what sums over clients that come and go"),
    ),
    PlantedSetting(
        "sums that were not attacked where clients come and go",
        {SUM_ONLY: _KEPT, SMALLEST_SUM: _KEPT},
        "fixed",
        ("as long as the same clients", "Not tested under secure aggregation: sums over clients that come and go"),
    ),
    PlantedSetting(
        "sums that leak to a declared colluder",
        _SUMS | {"collusion(1)": _LEAKS},
        "leaks",
        unsaid="no leak above",
        shared={"colluders": 1},
    ),
    PlantedSetting(
        "sums that were not attacked with a declared colluder's help",
        _SUMS,
        "not tested",
        unsaid="no leak above",
        shared={"colluders": 1},
    ),
    PlantedSetting(
        "sums kept from the server and a declared colluder",
        _SUMS | {"collusion(1)": _KEPT},
        "held",
        ("2 clients or more together with the server",),
        shared={"colluders": 1},
    ),
    PlantedSetting(
        "sums that a key holder opens", _SUMS, "held", ("as long as the key holder does not help",), defense="paillier"
    ),
)


def check_setting(planted: PlantedSetting) -> tuple[bool, str]:
    """Whether the rule says of a planted setting what is right, and what it says."""
    report = _report(planted)
    ruling = rulings(report, _NAME)[planted.defense]
    limits, concluded = " ".join(ruling.limits), " ".join(conclusion(report))
    right = ruling.word == planted.word and all(said in limits for said in planted.said)
    if planted.unsaid and planted.unsaid in concluded:
        return False, f"{ruling.word}; {concluded}"
    return right, f"{ruling.word}: {limits or 'no limits'}"


def _report(planted: PlantedSetting) -> Report:
    """Make the report of an audit with one planted setting, from the same functions as every report."""
    places = {("plain", "server"): _LEAKS} | {(planted.defense, view): found for view, found in planted.views.items()}
    attempts = [_attempt(*place, seed, found) for place, found in places.items() for seed in range(_SEEDS)]
    facts = [
        RunFacts(_NAME, defense, seed, utility=1.0, bytes_per_client_round=1.0, seconds_per_round=1.0, rounds=3)
        for defense in ("plain", planted.defense)
        for seed in range(_SEEDS)
    ]
    shared = {"clients": 8, "seeds": _SEEDS, "acceptable": 0.1, "data": "made up"} | dict(planted.shared)
    settings = {_NAME: {"secret": "gram", "rounds": 3}, AUDIT: shared}
    return Report("", "", {}, settings, tuple(gather(attempts, _SEEDS)), tuple(facts))


def _attempt(defense: str, view: str, seed: int, found: str) -> Attempt:
    """Make an attempt that reads all, or nothing; one in vain does not explain its messages."""
    leak = 1.0 - 1e-4 * seed if found == _LEAKS else -0.01 * (seed % 2)
    fits = found != _FAILED
    return Attempt(
        _NAME, defense, view, seed, 0, "gram/power", CLIENT, leakage=leak, null_leakage=-0.01, error=1 - leak,
        baseline=1.0, residual=0.0 if fits else 0.5, explained=fits, null_explained=fits,
    )  # fmt: skip
