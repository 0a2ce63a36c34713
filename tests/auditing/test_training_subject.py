"""An audit of a torch loop divides its time over runs and views."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from securefed._auditing.training import training_subject
from securefed._auditing.training.local_training import TorchTraining, TrainedRows
from securefed._auditing.training.observed_runs import SimulatedRuns
from securefed._auditing.training.training_subject import TrainingSubject
from securefed.attacks import views


def test_sums_have_their_share_of_the_time_of_every_run(monkeypatch: Any) -> None:
    """Also of the last run, where the attacks on single changes take all the time that they are given."""
    clock, given = [0.0], list[tuple[int, str, float]]()

    def spend(_: Any, seed: int, view: str, budget: Any, __: Any) -> None:
        given.append((seed, view, budget.seconds))
        clock[0] += budget.seconds

    monkeypatch.setattr(TrainingSubject, "_attack", spend)
    monkeypatch.setattr(training_subject, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    training = TorchTraining(nn.Linear(2, 2), nn.CrossEntropyLoss(), None)
    held = [TrainedRows(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))] * 2
    both = (views.SERVER_VIEW, views.SUM_ONLY)
    for chosen in (both, both[::-1]):
        subject = TrainingSubject(training, SimulatedRuns(training, held, 2), held, None, 2, chosen, seconds=8.0)
        given.clear()
        for seed in range(2):
            subject.audit_seed(seed)
        seconds = {views.SERVER_VIEW: 3.0, views.SUM_ONLY: 1.0}
        assert given == [(seed, view, seconds[view]) for seed in range(2) for view in chosen]
