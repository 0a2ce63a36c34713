"""An audit of a torch loop divides its time over runs and views."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from securefed import audit_training
from securefed._auditing.report.cards import conclusion
from securefed._auditing.training.attack_inputs import AttackInputs, TooLittleTime, in_two_digits
from securefed._auditing.training.local_training import TorchTraining, TrainedRows
from securefed._auditing.training.observed_runs import SimulatedRuns
from securefed._auditing.training.row_attack import _affordable
from securefed._auditing.training.size_curve import SizeCurve
from securefed._auditing.training.training_subject import TrainingSubject
from securefed.attacks import views
from securefed.attacks._generic import TimeBudget, on_clock
from tests.auditing.hand_clock import HandClock


def test_sums_have_their_share_of_the_time_of_every_run(monkeypatch: Any) -> None:
    """Also of the last run, where the attacks on single changes take all the time that they are given."""
    clock, given = HandClock(), list[tuple[int, str, float]]()

    def spend(_: Any, seed: int, view: str, budget: Any, __: Any) -> None:
        given.append((seed, view, budget.seconds))
        clock.seconds += budget.seconds

    monkeypatch.setattr(TrainingSubject, "_attack", spend)
    training = TorchTraining(nn.Linear(2, 2), nn.CrossEntropyLoss(), None)
    held = [TrainedRows(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))] * 2
    both = (views.SERVER_VIEW, views.SUM_ONLY)
    for chosen in (both, both[::-1]):
        subject = TrainingSubject(training, SimulatedRuns(training, held, 2), held, None, 2, chosen, seconds=8.0)
        given.clear()
        with on_clock(clock):
            for seed in range(2):
                subject.audit_seed(seed)
        seconds = {views.SERVER_VIEW: 3.0, views.SUM_ONLY: 1.0}
        assert given == [(seed, view, seconds[view]) for seed in range(2) for view in chosen]


@pytest.mark.exhaustive
def test_what_the_strongest_membership_attack_did_not_see_is_said_beside_the_others(tmp_path: Any) -> None:
    """No time is left to simulate clients: the other scores say so, and the reason names seconds that would do."""

    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        slopes = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
        with torch.no_grad():
            for value, slope in zip(model.parameters(), slopes, strict=True):
                value.sub_(0.1 * slope)

    torch.manual_seed(0)
    clients = [(torch.rand(4, 5), torch.arange(4) % 2) for _ in range(3)]
    known = torch.rand(30, 5), torch.arange(30) % 2
    given = nn.Linear(5, 2), nn.CrossEntropyLoss(), step, clients
    short, enough = (audit_training(*given, population=known, seeds=2, seconds=seconds) for seconds in (1e-6, 1e3))
    for view in (views.SERVER_VIEW, views.SUM_ONLY):
        left_out, ran = (
            {c.attack: c for c in made.cells if (c.view, c.secret) == (view, "membership")} for made in (short, enough)
        )
        assert set(left_out) == {"membership/loss drop", "membership/gradient alignment"}
        for found in left_out.values():
            assert "not tested by the strongest attack, membership/shadow, which did not run" in found.remarks
            assert found.verdict.word != "not detected"  # the weaker attacks' silence is no finding
        assert set(ran) == {*left_out, "membership/shadow"} and not any(found.reach.without for found in ran.values())
        (reason,) = (line for line in short.skipped if line.startswith(f"{view}, membership/shadow"))
        assert reason.endswith("0 s left; allow more `seconds`")
    hints = [line for line in short.skipped if "`seconds=" in line]
    assert len(hints) == 1 and re.fullmatch(r"more time would test more: allow about `seconds=[1-9]\d*`", hints[0])
    assert "Whether a record can be told from a client's own messages was not tested" in " ".join(conclusion(short))
    assert "was not tested: membership" not in " ".join(conclusion(enough))
    short.save(tmp_path)
    page = (tmp_path / "audit.html").read_text()
    assert "membership/shadow, the strongest attack on membership, did not run" in page


@pytest.mark.parametrize(("share", "asked"), [(0.0, None), (0.05, 1300)])
def test_seconds_that_would_do_are_those_of_the_whole_audit(share: float, asked: int | None) -> None:
    """A view of a run that has a twentieth of the time: 4 s were spent, and 60 more are needed."""
    budget = TimeBudget.of(10.0)
    spent = TimeBudget(10.0, budget.until - 4.0)
    inputs = AttackInputs(None, None, (), None, 2, None, None, spent, share)  # type: ignore[arg-type] # time is asked alone
    error = inputs.too_little_time("it takes long", 60.0)
    assert str(error) == "it takes long; allow more `seconds`"
    assert (None if error.seconds is None else in_two_digits(error.seconds)) == asked
    assert [in_two_digits(seconds) for seconds in (0.2, 7.1, 99.5, 123.0, 4000.0)] == [1, 8, 100, 130, 4000]


def test_a_search_that_had_too_little_time_asks_for_seconds_of_the_audit() -> None:
    """It has a quarter of what is left, and would need several times as much."""
    network = SimpleNamespace(dtype=torch.float32, plain=None)
    budget = TimeBudget.of(0.004)
    inputs = AttackInputs(None, None, (1,), None, 2, None, None, budget, 0.5)  # type: ignore[arg-type] # time is asked alone
    inputs.__dict__["network"] = network  # in place of the cached property
    inversion = SimpleNamespace(features=1000, simulation=lambda _, __, x, ___: (x**3).sum(dim=0))
    problem = SimpleNamespace(point=None, targets=None)
    with pytest.raises(TooLittleTime, match="longer than the time left; allow more `seconds`") as raised:
        _affordable(inputs, inversion, problem, 0.001)  # type: ignore[arg-type] # stand-ins of a search
    assert raised.value.seconds is not None and raised.value.seconds > 2 * 0.004


def test_sizes_that_were_not_measured_are_listed_once_for_each_reason() -> None:
    curve = SizeCurve()
    curve.reasons |= {(1, 8): "no time", (2, 1): "no gradient", (2, 2): "no gradient", (5, 1): "no gradient"}
    assert curve.gaps() == [
        "rows recovered, not measured at 8 rows a client: no time",
        "rows recovered, not measured at 1 and 2 rows a client, the step run 2 times in a row; 1 row a client, the "
        "step run 5 times in a row: no gradient",
    ]
