"""The guards on other sums of the same data hold at every door where sums are made group by group.

The doors of `tests.contract.doors` have five clients, which make one group; its mean is the plain sum, so that the
scenarios are those without groups. Guards of several groups are tested in `tests/test_grouped_runs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from securefed.defenses import grouped, secure_aggregation
from securefed.parties import SumTerms
from tests.combinations import each_value
from tests.contract import doors
from tests.contract.doors import ALL, DOORS, UPDATES, Door, N, PartyFolderWithoutBase, Statistics, Sums, SumsWithoutBase
from tests.contract.test_guards_at_every_door import SCENARIOS, named


def in_a_group(**options: Any) -> Any:
    return grouped(secure_aggregation(**options), groups=1, aggregator="mean")


@pytest.fixture(autouse=True)
def every_door_sums_in_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "secure_aggregation", in_a_group)
    terms = SumTerms.like(UPDATES[0], clients=N, defense=doors.masking(), largest_weight=1.0, max_void=1)
    monkeypatch.setattr(Sums, "terms", terms)
    for door in (SumsWithoutBase, PartyFolderWithoutBase):
        monkeypatch.setattr(door, "terms", replace(terms, base=False))
    tables = replace(Statistics.statistic.terms(clients=N, defense=doors.masking()), max_void=1)
    monkeypatch.setattr(Statistics, "terms", tables)


@pytest.mark.parametrize(("door", "scenario"), each_value(DOORS, SCENARIOS), ids=named)
def test_a_guard_holds_at_every_door(door: type[Door], scenario: Callable[[Door], None], tmp_path: Path) -> None:
    scenario(door(tmp_path))


@pytest.mark.parametrize("door", DOORS, ids=named)
def test_the_ledger_keeps_the_group_at_every_door(door: type[Door], tmp_path: Path) -> None:
    """So that the scenarios above did meet groups."""
    made = door(tmp_path)
    assert made.play(ALL) == ALL
    assert made.ledger(0).sums.group == frozenset(doors.IDENTITIES.public.values())
