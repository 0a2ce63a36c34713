"""The callback for Hugging Face's Trainer: it records what the plain calls would, and attacks read it."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import securefed.torch
from securefed import Dataset, Transcript, audit_transcript
from securefed.algorithms import DSGD
from securefed.errors import ConfigError, DataError
from securefed.torch import LoopRecording, RecordingCallback
from tests.torch.test_record import CLASSES, FEATURES, PROBLEM, ROWS, clients, descend, facts, model

RATE = 0.5
ZERO = SimpleNamespace(is_world_process_zero=True)
PLAIN = SimpleNamespace(max_grad_norm=0.0, fp16=False)


def called(callback: RecordingCallback, net: nn.Module, data: Any, args: Any = PLAIN) -> None:
    """Call the events of one step of training, as a Trainer does."""
    callback.on_init_end(args, ZERO, None)
    callback.on_train_begin(args, ZERO, None, model=net)
    descend(net, data, 0.0)  # fills the gradients
    callback.on_pre_optimizer_step(args, ZERO, None, model=net)
    callback.on_log(args, ZERO, None, logs={})
    descend(net, data, RATE)
    callback.on_train_end(args, ZERO, None, model=net)


def by_hand(rounds: int = 2) -> Transcript:
    """The recording without a Trainer."""
    with securefed.torch.record(**facts()) as recording:
        net = model()
        for _ in range(rounds):
            recording.broadcast(net)
            locals_ = [descend(copy.deepcopy(net), data, RATE) for data in clients()]
            for client, local in enumerate(locals_):
                recording.update(client, local)
            average(net, locals_)
    return recording.transcript


def average(net: nn.Module, locals_: list[nn.Module]) -> None:
    with torch.no_grad():
        for name, value in net.named_parameters():
            value.copy_(sum(n * dict(m.named_parameters())[name] for n, m in zip(ROWS, locals_, strict=True)) / 15)


def same(ours: Transcript, theirs: Transcript, atol: float = 0.0) -> None:
    assert len(ours.records) == len(theirs.records)
    for one, other in zip(ours.records, theirs.records, strict=True):
        assert one.survivors == other.survivors
        for kind in ("broadcast", "total"):
            mine, yours = getattr(one, kind), getattr(other, kind)
            assert set(mine) == set(yours)
            for name in yours:
                np.testing.assert_allclose(mine[name], yours[name], rtol=0, atol=atol)


def test_updates_are_those_of_the_plain_calls() -> None:
    with securefed.torch.record(**facts()) as recording:
        net = model()
        for _ in range(2):
            recording.broadcast(net)
            locals_ = [copy.deepcopy(net) for _ in ROWS]
            for client, data in enumerate(clients()):
                called(RecordingCallback(recording, client), locals_[client], data)
            average(net, locals_)
    same(recording.transcript, by_hand())


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_step_is_a_round_where_no_client_is_named(ranks: int) -> None:
    data = clients()[0]
    with securefed.torch.record(rows=[4] * ranks, features=FEATURES, classes=CLASSES) as recording:
        net = model()
        called(RecordingCallback(recording), net, data)
    with securefed.torch.record(rows=[4] * ranks, features=FEATURES, classes=CLASSES) as plain:
        other = model()
        plain.broadcast(other)
        plain.mean_gradient(descend(other, data, 0.0))
        plain.broadcast(descend(other, data, RATE))
    same(recording.transcript, plain.transcript)
    assert len(recording.transcript.contributions) == (ranks == 1)
    for name, value in plain.transcript.output.items():
        np.testing.assert_array_equal(recording.transcript.output[name], value)


def started(recording: LoopRecording) -> nn.Module:
    net = model()
    recording.broadcast(net)
    return net


@pytest.mark.parametrize("change", [{"max_grad_norm": 1.0}, {"fp16": True}])
def test_gradients_that_are_changed_after_they_were_shared_are_refused(change: dict[str, Any]) -> None:
    """Of one client's update they are that client's own business."""
    arguments = SimpleNamespace(**{**vars(PLAIN), **change})
    with (
        pytest.raises(ConfigError, match=r"max_grad_norm=0\.0"),
        securefed.torch.record(rows=[4], features=FEATURES, classes=CLASSES) as recording,
    ):
        called(RecordingCallback(recording), model(), clients()[0], arguments)
    with securefed.torch.record(**facts()) as recording:
        called(RecordingCallback(recording, 0), started(recording), clients()[0], arguments)
    assert len(recording.transcript.records) == 1


def test_a_training_from_another_model_is_refused() -> None:
    recording = securefed.torch.record(**facts())
    with pytest.raises(DataError, match="client 1 begins from another model"), recording as loop:
        net = started(loop)
        with torch.no_grad():
            next(net.parameters()).add_(1e-12)
        called(RecordingCallback(loop, 1), net, clients()[1])


def test_other_ranks_record_nothing_and_unknown_attributes_are_none() -> None:
    with securefed.torch.record(**facts()) as recording:
        net = started(recording)
        callback = RecordingCallback(recording, 0)
        callback.on_train_end(PLAIN, SimpleNamespace(is_world_process_zero=False), None, model=net)
        called(callback, net, clients()[0])
    assert [record.survivors for record in recording.transcript.records] == [(0,)]
    with pytest.raises(AttributeError):
        callback.off_train_end  # noqa: B018 - reading it is the test


# ------------------------------------------------------------------------------------------------- the real package


class Labelled(nn.Module):
    """A linear classifier in the form that a Trainer asks for."""

    def __init__(self) -> None:
        super().__init__()
        net = model()
        self.weight, self.bias = nn.Parameter(net.weight.detach()), nn.Parameter(net.bias.detach())

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = nn.functional.linear(x, self.weight, self.bias)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def trained(net: nn.Module, data: Any, callback: Any, place: Path, steps: int = 1, **more: Any) -> None:
    transformers = pytest.importorskip("transformers")
    arguments = transformers.TrainingArguments(
        output_dir=str(place), max_steps=steps, per_device_train_batch_size=len(data.x), report_to="none",
        use_cpu=True, save_strategy="no", disable_tqdm=True, learning_rate=RATE, lr_scheduler_type="constant",
        **{"max_grad_norm": 0.0, **more},
    )  # fmt: skip
    rows = [{"x": torch.from_numpy(x), "labels": int(y)} for x, y in zip(data.x, data.labels(), strict=True)]
    optimiser = torch.optim.SGD(net.parameters(), lr=RATE)
    transformers.Trainer(net, arguments, train_dataset=rows, callbacks=[callback], optimizers=(optimiser, None)).train()


@pytest.mark.exhaustive
def test_a_real_trainer_records_what_the_plain_calls_do(tmp_path: Path) -> None:
    with securefed.torch.record(tmp_path / "run.transcript", **facts()) as recording:
        net: nn.Module = Labelled()
        for _ in range(2):
            recording.broadcast(net)
            locals_ = [copy.deepcopy(net) for _ in ROWS]
            for client, data in enumerate(clients()):
                trained(locals_[client], data, RecordingCallback(recording, client), tmp_path)
            average(net, locals_)
    same(recording.transcript, by_hand(), atol=1e-12)  # a Trainer shuffles rows, so sums differ in their last digits


@pytest.mark.exhaustive
def test_a_real_trainers_steps_are_rounds_that_an_audit_reads(tmp_path: Path) -> None:
    first = clients()[0]
    data = Dataset(first.x[:1], first.labels()[:1])
    with securefed.torch.record(rows=[1], features=FEATURES, classes=CLASSES) as recording:
        net: nn.Module = Labelled()
        with pytest.raises(ConfigError, match="max_grad_norm"):
            trained(net, data, RecordingCallback(recording), tmp_path, max_grad_norm=1.0)
        trained(net, data, RecordingCallback(recording), tmp_path, steps=2)
    transcript = recording.transcript
    algorithm = DSGD(problem=PROBLEM, learning_rate=RATE)
    step = {name: transcript.records[0].broadcast[name] - RATE * transcript.records[0].total[f"gradient.{name}"]
            for name in ("weight", "bias")}  # fmt: skip
    for name, value in step.items():
        np.testing.assert_allclose(transcript.records[1].broadcast[name], value, atol=1e-12)
    audit = audit_transcript(transcript, algorithm, clients=[data], attacks=["networks/inversion"])
    np.testing.assert_allclose(audit.findings[0].found.value, data.x, atol=1e-9)
