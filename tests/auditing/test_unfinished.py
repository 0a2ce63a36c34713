"""An audit that is cut off goes on where it stopped, and only where settings, data and file are the same."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from securefed import audit
from securefed._auditing.engine import unfinished_tasks as unfinished
from securefed._auditing.engine.worker_processes import run_all
from securefed._auditing.registered import registered_audit as matrix
from securefed._auditing.registered.registered_subject import RegisteredSubject
from tests.combinations import first_ones

SMALL = {"algorithms": ["ssi"], "defenses": ["plain"], "attacks": ["gram/power"], "clients": 4, "workers": 1}


class CutOff(Exception):
    """Stands for whatever ends a process."""


def cut_off_after(count: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let so many tasks run, and say which seeds ran."""
    ran: list[int] = []
    usual = RegisteredSubject.audit_seed

    def run(subject, seed):
        if len(ran) == count:
            raise CutOff
        ran.append(seed)
        return usual(subject, seed)

    monkeypatch.setattr(RegisteredSubject, "audit_seed", run)
    return ran


@pytest.fixture
def halfway(tmp_path, monkeypatch):
    """The folder of an audit of four seeds that was cut off after two."""
    with monkeypatch.context() as patched:
        cut_off_after(2, patched)
        with pytest.raises(CutOff):
            audit(**SMALL, seeds=4, keep=tmp_path)
    assert len(list(tmp_path.glob("*.task"))) == 2
    return tmp_path


def test_it_goes_on_where_it_stopped_and_finds_the_same(halfway, monkeypatch) -> None:
    outcomes = []
    usual = matrix.make_report
    monkeypatch.setattr(matrix, "make_report", lambda *a, **k: outcomes.append(a[1]) or usual(*a, **k))
    audit(**SMALL, seeds=4)
    ran = cut_off_after(9, monkeypatch)
    seen: list[tuple[int, int]] = []
    audit(**SMALL, seeds=4, keep=halfway, progress=lambda done, total, _: seen.append((done, total)))
    assert ran == [2, 3]
    assert seen == [(3, 4), (4, 4)]
    assert not halfway.exists()
    for ours, theirs in zip(*reversed(outcomes), strict=True):
        np.testing.assert_equal([asdict(a) for a in ours.attempts], [asdict(a) for a in theirs.attempts])
        np.testing.assert_equal([t.errors for t in ours.traces], [t.errors for t in theirs.traces])
        for a, b in zip(ours.artifacts, theirs.artifacts, strict=True):
            np.testing.assert_array_equal(a.estimate, b.estimate)
            assert a.image_shape == b.image_shape


@pytest.mark.parametrize("change", first_ones([{"clients": 5}, {"epsilon": 1.0}]))
def test_other_settings_find_nothing(halfway, monkeypatch, change) -> None:
    ran = cut_off_after(9, monkeypatch)
    audit(**SMALL | change, seeds=4, keep=halfway)
    assert ran == [1, 0, 2, 3]


def test_other_code_finds_nothing(halfway, monkeypatch) -> None:
    monkeypatch.setattr(unfinished, "_code", lambda: "other")
    ran = cut_off_after(9, monkeypatch)
    audit(**SMALL, seeds=4, keep=halfway)
    assert ran == [1, 0, 2, 3]


@pytest.mark.parametrize("damage", first_ones([lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: data[:-3]]))
def test_a_damaged_file_is_run_again(halfway, monkeypatch, damage) -> None:
    path = sorted(halfway.glob("*.task"))[0]
    path.write_bytes(damage(path.read_bytes()))
    ran = cut_off_after(9, monkeypatch)
    audit(**SMALL, seeds=4, keep=halfway)
    assert ran in ([0, 2, 3], [1, 2, 3])  # seeds 1 and 0 were kept, and one of the two is damaged


def test_tasks_of_one_worker_run_on_one_thread_and_leave_the_caller_its_threads() -> None:
    def threads() -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info()}

    def cut_off(_) -> None:
        raise CutOff

    seen = []
    with threadpool_limits(2):
        run_all([1], 1, lambda _: threads(), lambda _, found: seen.append(found))
        assert threads() == {2}
        with pytest.raises(CutOff):
            run_all([1], 1, cut_off, lambda *_: None)
        assert threads() == {2}
    assert seen == [{1}]
