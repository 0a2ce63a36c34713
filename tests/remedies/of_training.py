"""Remedies of audits of a training loop in torch, and of its recordings."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from securefed import audit_training
from securefed._auditing.training.attack_inputs import AttackInputs
from securefed._auditing.training.local_training import TorchTraining, TrainedRows, _check_parameters
from securefed._auditing.training.membership_scores import Records, shadow_ratios
from securefed._auditing.training.model_inputs import scores
from securefed._auditing.training.observed_runs import SimulatedRuns
from securefed._auditing.training.step_probe import probe_step
from securefed._auditing.training.training_audit import _check_model, _pair, _rows
from securefed.attacks import views
from securefed.attacks._generic import TimeBudget
from securefed.torch import record
from tests.auditing.test_training_inputs import FEATURES, Scores, dense, descend, rows
from tests.remedies.followed import Followed, evaluated, found

AUDIT = "securefed/_auditing/training/training_audit.py"
DATA = TensorDataset(*rows())
NAMED = {"input_ids": torch.ones(4, 3), "labels": torch.arange(4)}


def batches(message: str) -> None:
    """Make one batch of the loader's data set, and of the data set, as the two messages say."""
    loader = DataLoader(DATA)
    made = evaluated("`(.*)`", message, loader=loader, default_collate=default_collate)
    assert _pair("rows", made)[0].shape == (4, 5)


def batch_of_a_set(message: str) -> None:
    made = evaluated("`(.*)`", message, data=DATA, torch=torch)
    assert _pair("rows", made)[0].shape == (4, 5)


class Measured:
    """Change of a model by a step: only its buffer moved, or its weights too."""

    model = nn.BatchNorm1d(2)

    @classmethod
    def of(cls, *moved: str) -> dict[str, Any]:
        return {name: torch.full((2,), float(name in moved)).numpy() for name in ("weight", "bias", "running_mean")}


def trained_inside(message: str) -> None:
    """Make the optimiser as the message says; its step moves the parameters."""
    model = nn.BatchNorm1d(2)
    before = {name: value.clone() for name, value in model.named_parameters()}
    optimiser = torch.optim.SGD(evaluated(r"of (model\.parameters\(\))$", message, model=model), lr=0.1)
    model(torch.randn(4, 2)).square().sum().backward()
    (model.bias.sum()).backward()
    optimiser.step()
    change = {name: (value - before[name]).detach().numpy() for name, value in model.named_parameters()}
    _check_parameters(model, change)


def recorded(folder: Path, ended: bool) -> object:
    with record(folder / "run.npz", rows=[4, 4], features=5, classes=3) as recording:
        recording.broadcast(dense())
        for client in range(2):
            recording.update(client, dense())
        recording.broadcast(dense())
        if not ended:
            return recording.transcript
    return recording.transcript


def checked(features: int, shape: Any = None) -> None:
    """Check a model of five features on one row, or on what the loss makes of the output."""
    x, y = rows(features=features)

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.CrossEntropyLoss()(output if shape is None else shape(output), target)

    _check_model(TorchTraining(dense(), loss, descend), TrainedRows(x, y))


def fitting(message: str) -> None:
    """Give rows of the model's shape, or a loss that does to the output what the step does."""
    assert "give rows of the type and shape that they take, or a loss that does to the output" in message
    checked(FEATURES)
    checked(FEATURES, lambda output: output[:, :3])


def shadowed(known: int) -> object:
    """Simulate a client of four rows from the rows that the attacker knows."""
    training, prior = TorchTraining(dense(), nn.CrossEntropyLoss(), descend), TrainedRows(*rows(8, seed=9))
    own = [TrainedRows(*rows(seed=seed)) for seed in range(2)]
    observed = SimulatedRuns(training, own, 1).observe(0, views.SERVER_VIEW)
    facts = probe_step(training, training.state, prior, 0)
    part = prior.part(slice(0, known))
    inputs = AttackInputs(training, observed, (4,), part, 3, None, facts, TimeBudget.of(1e5))
    return shadow_ratios(inputs, Records(own[0].part(slice(0, 1)), np.zeros(1, int), prior.part(slice(7, 8))), 0)


def with_population(message: str) -> object:
    assert found("give `(.*?)`", message) in inspect.signature(audit_training).parameters
    return shadowed(int(found(r"(\d+) known rows are needed", message)))


TABLE: dict[str, Followed] = {
    "a model that returns a list": Followed(
        "securefed/_auditing/training/model_inputs.py",
        "attacks need one tensor, or an object whose `logits` are one",
        lambda _: scores([torch.ones(2)]),
        lambda message, _: (
            torch.is_tensor(getattr(Scores(torch.ones(2)), found("whose `(.*?)`", message)))
            and torch.is_tensor(scores(Scores(torch.ones(2))))
            and torch.is_tensor(scores(torch.ones(2)))
        ),
    ),
    "a loader for rows": Followed(
        AUDIT,
        "must be a pair (x, y) of tensors or arrays",
        lambda _: _pair("client 0", DataLoader(DATA)),
        lambda message, _: batches(message),
    ),
    "a data set for x": Followed(
        AUDIT,
        ": x must be a tensor, an array or a dict of them",
        lambda _: _pair("client 0", (DATA, torch.ones(4))),
        lambda message, _: batch_of_a_set(message),
    ),
    "one tensor beside named inputs": Followed(
        AUDIT,
        "give all of them alike",
        lambda _: _rows("client 1", _pair("client 1", (NAMED, NAMED["labels"])), None),
        lambda *_: _rows("client 1", _pair("client 1", rows()), None),
    ),
    "a step that moved buffers alone": Followed(
        "securefed/_auditing/training/local_training.py",
        "moved no parameter of the model that it was given",
        lambda _: _check_parameters(Measured.model, Measured.of("running_mean")),
        lambda message, _: trained_inside(message),
    ),
    "a recording that has not ended": Followed(
        "securefed/torch/_record.py",
        "the transcript is there once the `with` block",
        lambda folder: recorded(folder, ended=False),
        lambda _, folder: recorded(folder, ended=True),
    ),
    "a loss that does not fit the output": Followed(
        AUDIT,
        "called with one row as it is given, raised ",
        lambda _: checked(FEATURES + 1),
        lambda message, _: fitting(message),
    ),
    "too few known rows": Followed(
        "securefed/_auditing/training/membership_scores.py",
        " known rows are needed, there are ",
        lambda _: shadowed(3),
        lambda message, _: with_population(message),
    ),
}
"""By name, the remedies that are followed."""
