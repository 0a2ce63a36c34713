"""Members of a committee remember other clients' sums: both rules, on disk, over new data and new committees."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed import DataUsage, Ledger, Limits
from securefed._runtime import committee_memory
from securefed._runtime.committee_memory import CommitteeMemory
from securefed._runtime.sum_memory import SumMemory, SumRule
from securefed.defenses import Identities, one_message
from securefed.defenses._aggregation import Release
from securefed.errors import AuthenticationError, ClientDeclines, ConfigError, ContradictionError, DataError
from securefed.parties import hand_over_committee, take_over_committee

IDENTITIES = Identities.generate(9)
COMMITTEE = one_message(committee=range(6), identities=IDENTITIES, corrupt=1, lost=1)


def release(clients: tuple[int, ...], source: bytes = b"s", **others: bytes) -> Release:
    """A sum over these clients; `others` gives some of them another source, by `c` and their id."""
    members = tuple(IDENTITIES.public[client] for client in clients)
    sources = tuple(others.get(f"c{client}", source).ljust(32, b"\0") for client in clients)
    return Release(clients, b"", members, sources=sources)


def admitted(memory: SumMemory, asked: Release, least: int = 1) -> SumMemory:
    return memory.admitted("run", asked, SumRule(least_block=least))


def test_contributions_from_one_base_enter_sums_over_one_set_whoever_is_asked() -> None:
    memory = admitted(SumMemory(), release((0, 1, 2, 3)))
    assert admitted(memory, release((0, 1, 2, 3))).committee == memory.committee
    for clients in ((0, 1, 2), (0, 1, 2, 3, 4), (3, 5, 6)):
        with pytest.raises(ContradictionError, match="entered a sum over other survivors"):
            admitted(memory, release(clients))
    assert admitted(memory, release((4, 5, 6)))  # none of them was summed
    assert admitted(memory, release((0, 1, 2), b"t"))  # another base


def test_a_source_of_its_own_is_of_its_client_alone() -> None:
    """Clients with memory: their state differs by the last sum that counted them."""
    memory = admitted(SumMemory(), release((0, 1, 2, 3), c3=b"late"))
    with pytest.raises(ContradictionError):
        admitted(memory, release((3, 4, 5), b"late"))
    assert admitted(memory, release((4, 5, 6), b"late"))
    assert admitted(memory, release((0, 1, 2), b"new"))


def test_sums_without_a_base_tell_no_small_group_apart() -> None:
    rule = SumRule(sources=False, least_block=2)
    memory = SumMemory().admitted("run", release((0, 1, 2, 3, 4)), rule)
    with pytest.raises(ContradictionError):
        memory.admitted("other run", release((0, 1, 2, 3)), rule)
    memory = memory.admitted("other run", release((0, 1, 2)), rule)
    with pytest.raises(ContradictionError):
        memory.admitted("third run", release((1, 2, 3)), rule)


def test_a_members_own_sums_and_those_of_others_are_apart_and_new_data_end_its_own_only() -> None:
    memory = admitted(SumMemory(), release((0, 1, 2, 3)))
    assert not memory.sums
    after = memory.of_new_data()
    assert after.data == 1
    with pytest.raises(ContradictionError):
        admitted(after, release((0, 1, 2)))


def test_it_outlives_the_process_in_the_ledgers_file(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger", Limits(), spent=DataUsage())
    rule = SumRule(least_block=2)
    ledger.change_sums(lambda sums: sums.admitted("run", release((0, 1, 2, 3)), rule))
    again = Ledger.open(tmp_path / "ledger")
    again.change_sums(lambda sums: sums, always=True)
    assert again.sums.committee == ledger.sums.committee
    with pytest.raises(ContradictionError):
        again.change_sums(lambda sums: sums.admitted("run", release((0, 1, 2)), rule))


def test_a_full_memory_lets_no_sum_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committee_memory, "MOST_ENTRIES", 6)
    memory = admitted(SumMemory(), release((0, 1, 2, 3)))
    with pytest.raises(ClientDeclines, match="remembers"):
        admitted(memory, release((4, 5, 6)))


SETS = st.sets(st.integers(0, 8), min_size=1).map(lambda clients: tuple(sorted(clients)))
SUMS = st.lists(st.tuples(SETS, st.sampled_from([b"a", b"b"])), max_size=6)


def taught(sums: list[tuple[tuple[int, ...], bytes]]) -> CommitteeMemory:
    memory = SumMemory()
    for clients, source in sums:
        try:
            memory = admitted(memory, release(clients, source))
        except ContradictionError:
            continue
    return memory.committee


@given(SUMS)
def test_no_client_is_in_two_sets_of_one_source_and_bytes_keep_all(sums: list[tuple[tuple[int, ...], bytes]]) -> None:
    memory = taught(sums)
    for sets in memory.entries.values():
        named = [place for places in sets.values() for place in places]
        assert len(named) == len(set(named))
    assert CommitteeMemory.from_bytes(memory.to_bytes()) == memory


@given(SUMS, SUMS, SETS, st.sampled_from([b"a", b"b"]))
def test_a_merged_memory_refuses_what_either_refuses(first, second, clients, source) -> None:
    one, two = taught(first), taught(second)
    asked = release(clients, source)

    def refuses(memory: CommitteeMemory) -> bool:
        try:
            memory.admitted(asked, 1, sources=True)
        except ContradictionError:
            return True
        return False

    assert refuses(one.merged(two)) == (refuses(one) or refuses(two))


@pytest.mark.parametrize("data", [b"{}", b"no", b'{"parties": ["00"], "entries": {"00": {"00": [1]}}, "blocks": []}'])
def test_bytes_that_are_no_memory_are_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="no memory of a committee"):
        CommitteeMemory.from_bytes(data)


# --- handing over ----------------------------------------------------------------------------------------------------


def old_ledgers() -> dict[int, Ledger]:
    """A quorum of 4 signed the sum: the honest members 1, 2, 3 and the corrupt member 0, who forgets it."""
    ledgers = {member: Ledger.in_memory() for member in range(6)}
    for member in (1, 2, 3):
        ledgers[member].change_sums(lambda sums: admitted(sums, release((0, 1, 2, 3, 4, 5))))
    return ledgers


def test_the_next_committee_refuses_what_the_last_one_would() -> None:
    """Of 4 of the 6 members at least one is honest and signed."""
    statements = {m: hand_over_committee(ledger, COMMITTEE, m) for m, ledger in old_ledgers().items()}
    assert COMMITTEE.committee.handing_over == 4
    for given_ in ((0, 4, 5, 1), (0, 4, 5, 3), range(6)):
        ledger = Ledger.in_memory()
        take_over_committee(ledger, COMMITTEE, [statements[m] for m in given_])
        with pytest.raises(ContradictionError):
            ledger.change_sums(lambda sums: admitted(sums, release((0, 1, 2, 3, 4))))
    fresh = Ledger.in_memory()
    fresh.change_sums(lambda sums: admitted(sums, release((0, 1, 2, 3, 4))))  # control: without the hand-over it signs


def test_too_few_or_forged_statements_are_refused() -> None:
    ledgers = old_ledgers()
    statements = [hand_over_committee(ledgers[m], COMMITTEE, m) for m in range(6)]
    ledger = Ledger.in_memory()
    for few in (statements[:3], [statements[0]] * 6):
        with pytest.raises(ConfigError, match="4 are needed"):
            take_over_committee(ledger, COMMITTEE, few)
    forged = statements[1].replace(b'"member": 1', b'"member": 4')
    with pytest.raises(AuthenticationError):
        take_over_committee(ledger, COMMITTEE, [*statements[:4], forged])
    with pytest.raises(DataError, match="no hand-over"):
        take_over_committee(ledger, COMMITTEE, [b"{}"])
    with pytest.raises(ConfigError, match="no member"):
        hand_over_committee(ledger, COMMITTEE, 7)
    take_over_committee(ledger, COMMITTEE, statements)
    assert ledger.sums.committee.entries
