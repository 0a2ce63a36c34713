"""The guards on other sums of the same data hold where a committee opens the sums, at the doors that carry one.

The doors of `tests.contract.doors` have five clients; four of them are the committee, all of whom must answer.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from securefed._runtime.committee_memory import CommitteeMemory
from securefed.defenses import one_message
from securefed.parties import SumTerms
from tests.combinations import first_ones
from tests.contract import doors
from tests.contract.doors import (
    ALL,
    UPDATES,
    Door,
    N,
    PartyFolder,
    PartyFolderWithoutBase,
    Statistics,
    Sums,
    SumsWithoutBase,
)
from tests.contract.test_guards_at_every_door import absences, limits, named, two_runs

CARRIED = [door for door in doors.DOORS if not issubclass(door, PartyFolder)]
"""`securefed party` asks every client at every stage, and its command line offers no committee."""


def by_committee(**options: Any) -> Any:
    return one_message(committee=range(4), identities=options["identities"])


@pytest.fixture(autouse=True)
def a_committee_opens_at_every_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "secure_aggregation", by_committee)
    terms = SumTerms.like(UPDATES[0], clients=N, defense=doors.masking(), largest_weight=1.0, max_void=1)
    monkeypatch.setattr(Sums, "terms", terms)
    for door in (SumsWithoutBase, PartyFolderWithoutBase):
        monkeypatch.setattr(door, "terms", replace(terms, base=False))
    tables = replace(Statistics.statistic.terms(clients=N, defense=doors.masking()), max_void=1)
    monkeypatch.setattr(Statistics, "terms", tables)


@pytest.mark.parametrize("door", CARRIED, ids=named)
def test_members_refuse_a_second_set_of_clients(door: type[Door], tmp_path: Path) -> None:
    """In a second run of the same terms, from ledgers on disk; and limits count there as at every door."""
    two_runs(door(tmp_path / "runs"))
    absences(door(tmp_path / "absences"))
    limits(door(tmp_path / "limits"))


@pytest.mark.parametrize("door", first_ones(CARRIED, 2), ids=named)
def test_the_battery_finds_members_without_memory(
    door: type[Door], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommitteeMemory, "admitted", lambda memory, *_, **__: memory)
    with pytest.raises(AssertionError):
        two_runs(door(tmp_path))


@pytest.mark.parametrize("door", CARRIED, ids=named)
def test_a_member_remembers_every_client_of_a_sum(door: type[Door], tmp_path: Path) -> None:
    """So that the scenarios above did meet a committee."""
    made = door(tmp_path)
    assert made.play(ALL) == ALL
    assert set(made.ledger(0).sums.committee.parties) == set(doors.IDENTITIES.public.values())
    assert not made.ledger(4).sums.committee.parties


def test_the_plan_says_who_opens_no_sum_over_too_few_parties() -> None:
    said = "parties is released: members of the committee open none."
    assert any(said in assumption for assumption in Statistics.terms.plan.assumptions)
