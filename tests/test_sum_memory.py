"""A client's ledger remembers sums, and lets out no sum that subtracts from them."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from securefed import DataUsage, Ledger, Limits
from securefed._runtime import sum_memory
from securefed._runtime.cohorts import allowed_within
from securefed._runtime.sum_memory import FULL, REFUSAL, SumMemory, SumRule, what_absences_give
from securefed.defenses._aggregation import Release
from securefed.defenses._plan import Blocks, SumsSoFar, refined, smallest
from securefed.errors import ClientDeclines, ConfigError, ContradictionError, DataError

RNG = np.random.default_rng(3)
KEYS = [bytes([i]) * 32 for i in range(12)]


def release(parties: tuple[int, ...], source: str = "s") -> Release:
    return Release(parties, source.encode().ljust(32), tuple(KEYS[i] for i in parties))


def blocks_of(sets: list[set[int]]) -> Blocks:
    blocks: Blocks = ()
    for parties in sets:
        blocks = refined(blocks, parties)
    return blocks


def test_blocks_are_the_parties_that_lie_in_the_same_sets() -> None:
    for _ in range(200):
        sets = [set(np.flatnonzero(RNG.random(8) < 0.6).tolist()) for _ in range(4)]
        signatures = {i: tuple(i in parties for parties in sets) for i in range(8)}
        groups = [{i for i in signatures if signatures[i] == key} for key in set(signatures.values()) if any(key)]
        assert set(blocks_of(sets)) == set(map(frozenset, groups))


def test_no_combination_of_sums_holds_fewer_parties_than_the_smallest_block() -> None:
    """The proof in the docstring, checked: all combinations with small whole weights, of many families of sets."""
    fewer = 0
    for _ in range(150):
        sets = [set(np.flatnonzero(RNG.random(7) < 0.6).tolist()) for _ in range(3)]
        members = np.array([[i in parties for i in range(7)] for parties in sets], float)
        least = smallest(blocks_of(sets))
        for weights in itertools.product(range(-2, 3), repeat=3):
            held = np.count_nonzero(np.array(weights) @ members)
            assert held == 0 or held >= least
            fewer += 0 < held < 2
    assert fewer > 100  # positive control: such sets do show single parties


def test_sets_that_rotate_are_refused_though_each_differs_from_the_last_by_two() -> None:
    sets = [(0, 1, 2, 3, 4), (2, 3, 4), (0, 1, 2, 3, 4), (0, 3, 4)]
    members = np.array([[i in parties for i in range(5)] for parties in [*sets, (1, 3, 4)]], float)
    weights = np.linalg.lstsq(members.T, np.eye(5)[0], rcond=None)[0]
    np.testing.assert_allclose(members.T @ weights, np.eye(5)[0], atol=1e-12)  # together they show client 0
    memory, rule = SumMemory(), SumRule(sources=False, least_block=2)
    for parties in sets[:3]:
        memory = memory.admitted("run", release(parties), rule)
    with pytest.raises(ContradictionError, match="entered a sum over other survivors"):
        memory.admitted("another run", release(sets[3]), rule)
    assert memory.admitted("another run", release((2, 3, 4)), rule) is memory


def test_a_server_keeps_what_it_may_ask_for() -> None:
    so_far = SumsSoFar(least=2).with_sum(range(6))
    assert so_far.smallest_with(range(5)) == 1
    kept = allowed_within(so_far, range(5), lambda parties, count: parties[:count])
    assert kept == (1, 2, 3, 4)
    assert allowed_within(so_far.with_sum(kept), (1, 2, 3, 4, 5), lambda parties, count: parties[:count]) == kept
    for _ in range(200):
        least = int(RNG.integers(2, 4))
        so_far = SumsSoFar(least=least)
        for _ in range(5):
            alive = np.flatnonzero(RNG.random(9) < 0.8).tolist()
            if kept := allowed_within(so_far, alive, lambda parties, count: parties[:count]):
                so_far = so_far.with_sum(kept)
                assert set(kept) <= set(alive)
                assert smallest(so_far.blocks) >= least


def test_one_text_for_every_refusal_of_a_sum_that_subtracts() -> None:
    texts = set()
    for rule in (SumRule(), SumRule(sources=False, least_block=2), SumRule(least_block=3)):
        memory = SumMemory().admitted("run", release((0, 1, 2, 3)), rule)
        for parties in ((0, 1, 2), (1, 2, 3), (0, 1, 2, 3, 4)):
            with pytest.raises(ContradictionError) as refused:
                memory.admitted("run", release(parties), rule)
            texts.add(str(refused.value))
    assert len(texts) == 1
    assert REFUSAL in texts.pop()


def test_parties_are_identities_and_not_numbers() -> None:
    memory = SumMemory().admitted("run", release((0, 1, 2)), SumRule())
    other = replace(release((0, 1, 2)), members=tuple(KEYS[5:8]))
    with pytest.raises(ContradictionError):
        memory.admitted("run", other, SumRule())
    renumbered = replace(release((2, 1, 0)), survivors=(4, 5, 6))
    assert memory.admitted("run", renumbered, SumRule()) is memory


def test_without_identities_the_memory_is_of_a_run_and_bounded() -> None:
    rule = SumRule(least_block=2)
    anonymous = replace(release((0, 1, 2)), members=())
    memory = SumMemory().admitted("run 0", anonymous, rule)
    with pytest.raises(ContradictionError):
        memory.admitted("run 0", replace(release((0, 1)), members=()), rule)
    for number in range(1, 40):
        memory = memory.admitted(f"run {number}", anonymous, rule)
    assert not memory.sums
    assert len(memory.runs) == 16


def test_at_its_bound_the_memory_forgets_nothing_and_lets_out_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sum_memory, "MOST_SUMS", 3)
    memory = SumMemory()
    for number in range(3):
        memory = memory.admitted("run", release((0, 1, 2), f"base {number}"), SumRule())
    with pytest.raises(ClientDeclines, match="until its operator declares new data") as full:
        memory.admitted("run", release((0, 1, 2), "base 3"), SumRule())
    assert FULL in str(full.value)
    assert memory.admitted("run", release((0, 1, 2), "base 0"), SumRule()) is memory
    memory.of_new_data().admitted("run", release((0, 1), "base 3"), SumRule())


def test_a_memory_is_written_and_read() -> None:
    memory = SumMemory().with_most_out(3, 4)
    for number, parties in enumerate(((0, 1, 2), (0, 1, 2), (3, 4, 5))):
        memory = memory.admitted("run", release(parties, f"base {number}"), SumRule(least_block=3))
    memory = memory.admitted("run", replace(release((0, 1, 2)), members=()), SumRule(least_block=3))
    memory = memory.with_absence(b"s" * 32).with_absence(b"")
    assert SumMemory.from_tensors(memory.to_tensors()) == memory
    assert SumMemory.from_tensors({}) == SumMemory()
    broken = memory.to_tensors() | {"set_of": np.asarray([9, 9, 9], np.int32)}
    with pytest.raises(DataError, match="no memory of sums"):
        SumMemory.from_tensors(broken)


def test_absences_of_a_base_and_in_all_are_counted_and_raised(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "data", Limits(), spent=DataUsage())
    for _ in range(8):
        ledger.change_sums(lambda sums: sums.checked_absences(b"a" * 32).with_absence(b"a" * 32))
    with pytest.raises(ClientDeclines, match="sat out of too many"):
        ledger.sums.checked_absences(b"a" * 32)
    ledger.sums.checked_absences(b"b" * 32)
    memory = SumMemory()
    for number in range(64):
        memory = memory.checked_absences(str(number).encode().ljust(32)).with_absence(str(number).encode().ljust(32))
    with pytest.raises(ClientDeclines):
        memory.checked_absences(b"another".ljust(32))
    assert ledger.allow_absences(16, 128) == what_absences_give(128)
    Ledger.open(tmp_path / "data", Limits()).sums.checked_absences(b"a" * 32)


def test_changed_rows_begin_a_new_memory_and_few_of_them_are_refused(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "data", Limits(), spent=DataUsage())
    ledger.change_sums(lambda sums: sums.admitted("run", release((0, 1, 2)), SumRule()))
    ledger.change_rows(0)
    for few in (1, 4):
        with pytest.raises(ConfigError, match="wait until 5 or more changed"):
            ledger.change_rows(few)
    assert (ledger.sums.data, len(ledger.sums.sums)) == (0, 1)
    ledger.change_rows(5)
    again = Ledger.open(tmp_path / "data", Limits())
    assert (again.sums.data, len(again.sums.sums)) == (1, 0)
    again.change_sums(lambda sums: sums.admitted("run", release((0, 1)), SumRule()))


def test_of_runs_in_parallel_one_reserves_the_source(tmp_path: Path) -> None:
    """Check and reservation are one locked write: each thread opens the file for itself, as a process does."""
    path = tmp_path / "data"
    Ledger.create(path, Limits(), spent=DataUsage())

    def reserve(left_out: int) -> bool:
        parties = tuple(i for i in range(8) if i != left_out)
        try:
            Ledger.open(path, Limits()).change_sums(lambda sums: sums.admitted("run", release(parties), SumRule()))
        except ContradictionError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(reserve, range(8))) == 1
