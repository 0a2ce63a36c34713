"""Budgets are read on one clock; under one that steps move, an audit does the same work on any machine."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pytest

from securefed import Dataset, audit_algorithm
from securefed.attacks._generic import StepClock, TimeBudget, WallClock, clock, on_clock
from securefed.errors import TranscriptError


def test_steps_alone_spend_a_budget_on_their_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    late = itertools.count(0, 1000)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(late)))
    with on_clock(StepClock(step=1.0, row=0.5)):
        budget = TimeBudget.of(6.0)
        for left in (4.0, 2.0, 0.0):
            budget.check()
            clock().count(rows=2)
            assert budget.remaining == left
        budget.check()
        clock().count(rows=0)
        with pytest.raises(TranscriptError, match="its 6 s were not enough"):
            budget.check()
    with on_clock(WallClock()):  # the control: there time passes by itself, and work that is counted adds nothing
        budget = TimeBudget.of(2500.0)
        clock().count(rows=10**9)
        budget.check()
        budget.check()
        with pytest.raises(TranscriptError, match="its 2500 s were not enough"):
            budget.check()


def test_a_clock_holds_in_its_block_and_its_thread() -> None:
    outer, steps, seen = clock(), StepClock(), []
    with on_clock(steps):
        assert clock() is steps
        thread = threading.Thread(target=lambda: seen.append(clock()))
        thread.start()
        thread.join()
    assert clock() is outer
    assert isinstance(seen[0], WallClock)


def test_an_audit_under_load_does_the_work_of_one_on_an_idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def clients(seed: int) -> list[Dataset]:
        return [Dataset(rows) for rows in np.random.default_rng(seed).normal(size=(3, 2, 3))]

    def ran() -> tuple[list[str], list[float]]:
        start, step = {"z": np.zeros(1)}, lambda rows, _: {"y": np.tanh(rows).sum(0)}
        report = audit_algorithm(step, clients, start=start, rounds=1, seeds=1, view=["server"], seconds=2.0)
        return list(report.skipped), [cell.leakage.mean for cell in report.cells]

    with on_clock(StepClock()):
        idle = ran()
    late = itertools.count(0, 10)  # each look at the wall's clock finds 10 s gone
    monkeypatch.setattr(time, "monotonic", lambda: float(next(late)))
    with on_clock(StepClock()):
        assert ran() == idle
    with on_clock(WallClock()):  # the control
        skipped, _ = ran()
    assert any("more `seconds`" in reason for reason in skipped)
    assert not any("more `seconds`" in reason for reason in idle[0])
