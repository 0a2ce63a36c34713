"""The client's ledger: it counts every exchange once, whatever run it belongs to, on disk before it is answered."""

from __future__ import annotations

import json
import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed import DataUsage, Ledger, Limits, Public, Seal
from securefed._persistence import container
from securefed._runtime.ledger_entries import LedgerEntries, _added, _holds
from securefed.algorithms import SSI
from securefed.errors import BudgetSpent, ConfigError, ContradictionError, LedgerLost, RolledBackError, StorageError
from tests.test_privacy_cost import DELTA, DP_SGD, GAUSSIAN, NOISY, SKELLAM, planned


def ledger_at(path: Path, limits: Limits | None = None, **settings: Any) -> Ledger:
    return Ledger.create(path, limits or Limits(), spent=DataUsage(), **settings)


def test_an_exchange_counts_once_in_each_run(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path / "ledger")
    assert [ledger.charge("one", number, GAUSSIAN) for number in (0, 1, 1, 0, 5)] == [True, True, False, False, True]
    assert [ledger.charge("two", number, GAUSSIAN) for number in (1, 1)] == [True, False]
    assert ledger.spent == DataUsage(4, GAUSSIAN.epsilon(4), DELTA)
    with pytest.raises(ContradictionError, match="another cost"):
        ledger.charge("one", 5, SKELLAM)
    assert ledger.charge("one", 6, SKELLAM)
    with pytest.raises(ConfigError, match="from 0"):
        ledger.charge("one", -1, GAUSSIAN)
    assert Ledger.open(tmp_path / "ledger", Limits()).book == ledger.book
    assert ledger.book.counts == {GAUSSIAN: 4, SKELLAM: 1}


def test_ranges_hold_what_was_added_in_any_order() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        numbers = [int(n) for n in rng.integers(0, 30, 25)]
        ranges: Any = ()
        for number in numbers:
            if not _holds(ranges, number):
                ranges = _added(ranges, number)
        assert [n for start, stop in ranges for n in range(start, stop)] == sorted(set(numbers))
        assert all(first[1] < second[0] for first, second in pairwise(ranges))
        assert [_holds(ranges, n) for n in range(-1, 31)] == [n in numbers for n in range(-1, 31)]


def test_limits_end_it_before_anything_is_charged(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path / "ledger", Limits(exchanges=3, epsilon=GAUSSIAN.epsilon(2) + 1e-6))
    for number in range(2):
        ledger.charge("run", number, GAUSSIAN)
    before = (tmp_path / "ledger").read_bytes()
    with pytest.raises(BudgetSpent, match="limit is"):
        ledger.charge("run", 2, GAUSSIAN)
    assert (tmp_path / "ledger").read_bytes() == before
    assert ledger.spent.exchanges == 2
    assert not ledger.charge("run", 1, GAUSSIAN)  # counted before: nothing new is asked for
    raised = Ledger.open(tmp_path / "ledger", Limits(exchanges=3))
    assert raised.charge("run", 2, GAUSSIAN)
    with pytest.raises(BudgetSpent, match="allows 3 exchanges"):
        raised.charge("run", 3, GAUSSIAN)
    with pytest.raises(BudgetSpent, match="allows 3 exchanges"):
        Ledger.open(tmp_path / "ledger", Limits(exchanges=3)).charge("another run", 0, GAUSSIAN)


def test_other_terms_do_not_reset_it(tmp_path: Path) -> None:
    """As many exchanges of a smaller rank would be allowed again, were the ledger that of its terms."""
    public = Public(clients=6, cohort=6, features=10, rows=(40,) * 6, classes=0, feature_bound=1.0)
    costs = []
    for rank in (3, 4):
        layout = SSI(rank=rank).layout(public)
        costs.append(planned(NOISY["skellam"], layout)[1])
    assert costs[0] != costs[1]
    limit = costs[0].epsilon(10) * 1.001
    alone = ledger_at(tmp_path / "alone", Limits(epsilon=limit))
    for number in range(10):
        alone.charge("run", number, costs[1])  # ten of the other rank alone are within the limit
    path = tmp_path / "ledger"
    ledger = ledger_at(path, Limits(epsilon=limit))
    for number in range(10):
        ledger.charge("first", number, costs[0])
    with pytest.raises(BudgetSpent, match="in all runs"):
        Ledger.open(path, Limits(epsilon=limit)).charge("second", 0, costs[1])


@pytest.mark.parametrize("key", [None, bytes(range(32))])
def test_a_lost_ledger_is_refused_until_the_operator_says_what_is_spent(tmp_path: Path, key: bytes | None) -> None:
    seal = None if key is None else Seal(key, tmp_path / "elsewhere" / "anchor")
    path, limits = tmp_path / "client" / "ledger", Limits(exchanges=10, epsilon=GAUSSIAN.epsilon(8))
    with pytest.raises(LedgerLost, match=r"Ledger\.create\(path, limits, spent=DataUsage\("):
        Ledger.open(path, limits, seal)
    ledger = ledger_at(path, limits, seal=seal)
    for number in range(3):
        ledger.charge("run", number, GAUSSIAN)
    with pytest.raises(StorageError, match="there already"):
        Ledger.create(path, limits, spent=DataUsage(), seal=seal)
    assert Ledger.open(path, limits, seal).spent.exchanges == 3
    path.unlink()
    with pytest.raises(LedgerLost):
        ledger.charge("run", 3, GAUSSIAN)
    with pytest.raises(LedgerLost):
        Ledger.open(path, limits, seal)
    again = Ledger.create(path, limits, spent=DataUsage(exchanges=9, epsilon=0.5, delta=DELTA / 2), seal=seal)
    again.charge("run", 3, GAUSSIAN)
    with pytest.raises(BudgetSpent, match="allows 10"):
        again.charge("run", 4, GAUSSIAN)
    spent = Ledger.open(path, limits, seal).spent
    assert spent == DataUsage(10, 0.5 + GAUSSIAN.epsilon(1, DELTA / 2), DELTA)
    path.unlink()
    with pytest.raises(ConfigError, match="leaves nothing"):
        Ledger.create(path, limits, spent=DataUsage(1, 1.0, DELTA), seal=seal)
    unknown = Ledger.create(path, limits, spent=DataUsage(1, math.inf), seal=seal)
    with pytest.raises(BudgetSpent, match="epsilon inf"):
        Ledger.open(path, limits, seal).charge("run", 9, GAUSSIAN)
    assert unknown.spent.epsilon == math.inf


def test_a_sealed_ledger_is_neither_read_nor_altered_nor_set_back(tmp_path: Path) -> None:
    path, seal = tmp_path / "ledger", Seal(bytes(range(32)), tmp_path / "anchor")
    ledger = ledger_at(path, seal=seal)
    ledger.charge("a run's identifier", 0, GAUSSIAN)
    older = path.read_bytes()
    assert b"identifier" not in older
    ledger.charge("a run's identifier", 1, GAUSSIAN)
    newest = path.read_bytes()
    with pytest.raises(StorageError, match="sealed"):
        Ledger.open(path, Limits())
    path.write_bytes(older)
    with pytest.raises(RolledBackError):
        ledger.charge("a run's identifier", 2, GAUSSIAN)
    with pytest.raises(RolledBackError):
        Ledger.open(path, Limits(), seal)
    path.write_bytes(newest[:-1] + bytes([newest[-1] ^ 1]))
    with pytest.raises(StorageError, match="altered"):
        Ledger.open(path, Limits(), seal)
    path.write_bytes(newest)
    assert Ledger.open(path, Limits(), seal).spent.exchanges == 2


def test_a_file_in_clear_that_was_altered_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = ledger_at(path)
    ledger.charge("run", 0, GAUSSIAN)
    data = path.read_bytes()
    assert b"gaussian" in data
    path.write_bytes(data.replace(b"gaussian", b"gaussiam"))
    with pytest.raises(StorageError, match="altered"):
        ledger.charge("run", 1, GAUSSIAN)
    container.save(path, "ledger", {"book": json.dumps({"declared": {}, "charged": []})}, {})
    with pytest.raises(StorageError, match="lacks a field"):
        Ledger.open(path, Limits())
    path.write_bytes(data)
    assert ledger.charge("run", 1, GAUSSIAN)


def test_a_client_that_dies_between_charge_and_answer_has_spent(tmp_path: Path) -> None:
    path, limits = tmp_path / "ledger", Limits(exchanges=1)
    ledger_at(path, limits).charge("run", 0, GAUSSIAN)  # and the process is gone, its answer never made
    with pytest.raises(BudgetSpent):
        Ledger.open(path, limits).charge("run", 1, GAUSSIAN)
    assert not Ledger.open(path, limits).charge("run", 0, GAUSSIAN)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_charge_is_on_disk_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sealed: bool) -> None:
    """Every file that is renamed was flushed before, and its folder after: nothing else survives a power cut."""
    seal = Seal(bytes(32), tmp_path / "elsewhere" / "anchor") if sealed else None
    ledger = ledger_at(tmp_path / "ledger", seal=seal)
    events: list[tuple[str, int]] = []
    fsync, rename = os.fsync, Path.replace

    def flushed(descriptor: int) -> None:
        events.append(("flushed", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        events.append((f"renamed to {target.name}", self.stat().st_ino))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", renamed)
    ledger.charge("run", 0, GAUSSIAN)
    files = [tmp_path / "ledger", *([tmp_path / "elsewhere" / "anchor"] if sealed else [])]
    expected = []
    for file in files:
        new, folder = file.stat().st_ino, file.parent.stat().st_ino
        expected += [("flushed", new), (f"renamed to {file.name}", new), ("flushed", folder)]
    assert events == expected


@pytest.mark.parametrize("sealed", [False, True])
def test_a_disk_that_fails_charges_nothing_and_lets_nothing_be_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    path, seal = tmp_path / "ledger", Seal(bytes(32)) if sealed else None
    ledger = ledger_at(path, seal=seal)
    ledger.charge("run", 0, GAUSSIAN)
    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError(28, "no space left")))
        with pytest.raises(StorageError, match="no space left"):
            ledger.charge("run", 1, GAUSSIAN)
    assert ledger.spent.exchanges == Ledger.open(path, Limits(), seal).spent.exchanges == 1
    assert ledger.charge("run", 1, GAUSSIAN)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".ledger.lock", "ledger"]


def test_two_runs_at_once_share_one_ledger(tmp_path: Path) -> None:
    """Objects in two processes see each other's charges; a stale one does not write over the other's."""
    limits = Limits(exchanges=3)
    one = ledger_at(tmp_path / "ledger", limits)
    two = Ledger.open(tmp_path / "ledger", limits)
    one.charge("one", 0, GAUSSIAN)
    two.charge("two", 0, GAUSSIAN)
    one.charge("one", 1, SKELLAM)
    for ledger in (one, two):
        with pytest.raises(BudgetSpent):
            ledger.charge("late", 0, GAUSSIAN)
        assert ledger.spent.exchanges == 3


@pytest.mark.parametrize("sealed", [False, True])
def test_a_symbolic_link_leads_to_the_one_ledger(tmp_path: Path, sealed: bool) -> None:
    seal = Seal(bytes(32), tmp_path / "anchor-link") if sealed else None
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "anchor-link").symlink_to(tmp_path / "elsewhere" / "anchor")
    limits, real = Limits(exchanges=3), tmp_path / "elsewhere" / "ledger"
    ledger_at(real, limits, seal=seal)
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "linked").symlink_to(tmp_path / "link")
    for number, path in enumerate((tmp_path / "linked", real, tmp_path / "link")):
        assert Ledger.open(path, limits, seal).charge("run", number, GAUSSIAN)
    for path in (tmp_path / "linked", real, tmp_path / "link"):
        with pytest.raises(BudgetSpent):
            Ledger.open(path, limits, seal).charge("run", 3, GAUSSIAN)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "linked").is_symlink()
    assert (tmp_path / "anchor-link").is_symlink()
    assert {entry.name for entry in (tmp_path / "elsewhere").iterdir()} == (
        {"ledger", ".ledger.lock"} | ({"anchor"} if sealed else set())
    )


def test_in_memory_it_counts_the_same(tmp_path: Path) -> None:
    disk, memory = ledger_at(tmp_path / "ledger"), Ledger.in_memory()
    for number, cost in enumerate((GAUSSIAN, SKELLAM, DP_SGD, GAUSSIAN)):
        disk.charge("run", number, cost)
        memory.charge("run", number, cost)
    assert disk.book == memory.book
    kept = LedgerEntries.from_json(json.loads(json.dumps(memory.book.to_json())))
    resumed = Ledger.in_memory(Limits(exchanges=5), kept)
    assert resumed.spent == memory.spent
    resumed.charge("run", 4, GAUSSIAN)
    with pytest.raises(BudgetSpent):
        resumed.charge("run", 5, GAUSSIAN)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"exchanges": -1}, "exchanges"),
        ({"exchanges": 1.5}, "exchanges"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"unit": "row"}, "unit"),
    ],
)
def test_limits_outside_their_domain(settings: Any, says: str) -> None:
    Limits(exchanges=0, epsilon=1.0, delta=0.5, unit="record")
    with pytest.raises(ConfigError, match=f"^{says}"):
        Limits(**settings)


@pytest.mark.parametrize(("values", "says"), [((-1,), "exchanges"), ((0, -1.0), "epsilon"), ((0, 0.0, 1.0), "delta")])
def test_spending_outside_its_domain(values: Any, says: str) -> None:
    DataUsage(0, math.inf, 0.0)
    with pytest.raises(ConfigError, match=f"^{says}"):
        DataUsage(*values)


@pytest.mark.parametrize("seal", [None, Seal(bytes(32))], ids=["open", "sealed"])
def test_a_ledger_beside_a_state_takes_its_path_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seal: Seal | None
) -> None:
    path = str(tmp_path / "client-0.ledger")
    with pytest.raises(LedgerLost, match=r"client-0\.ledger"):
        Ledger.beside(path, seal, expected=True)
    create = Ledger.create

    def second(*arguments: Any, **settings: Any) -> Ledger:
        """Another process makes the ledger first."""
        create(*arguments, **settings).charge("run", 0, GAUSSIAN)
        return create(*arguments, **settings)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "create", second)
        raced = Ledger.beside(path, seal, expected=False)
    for ledger in (raced, Ledger.beside(path, seal, expected=False), Ledger.beside(path, seal, expected=True)):
        assert ledger.spent.exchanges == 1
    other = str(tmp_path / "client-1.ledger")
    assert Ledger.beside(other, seal, expected=False).spent.exchanges == 0
    assert Ledger.beside(Path(other), seal, expected=True).spent.exchanges == 0
    with pytest.raises(StorageError, match="client-1"):  # a file where a folder should be: no other process made it
        Ledger.beside(f"{other}/client.ledger", seal, expected=False)
