"""Remedies of audits of a training loop in torch, and of its recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from securefed._auditing.training.local_training import _check_parameters
from securefed._auditing.training.model_inputs import scores
from securefed._auditing.training.training_audit import _pair, _rows
from securefed.torch import record
from tests.auditing.test_training_inputs import Scores, dense, rows
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
}
"""By name, the remedies that are followed."""
