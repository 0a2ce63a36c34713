"""Recorded torch loops: the transcripts are those of the same runs in this package, and attacks read them."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import securefed.torch
from securefed import Dataset, Federation, Transcript, audit_transcript
from securefed.algorithms import DSGD
from securefed.errors import ConfigError, DataError, TranscriptError
from securefed.problems import TorchModule
from securefed.torch import LoopRecording

ROWS, FEATURES, CLASSES = (4, 6, 5), 7, 3
PROBLEM = TorchModule(module=partial(nn.Linear, FEATURES, CLASSES), precision="float64")


def clients() -> list[Dataset]:
    rng = np.random.default_rng(0)
    return [Dataset(rng.uniform(-1, 1, (n, FEATURES)), np.arange(n) % CLASSES) for n in ROWS]


def facts() -> dict[str, object]:
    return {"rows": list(ROWS), "features": FEATURES, "classes": CLASSES}


def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES, dtype=torch.float64)


def descend(net: nn.Module, data: Dataset, rate: float) -> nn.Module:
    net.zero_grad()
    nn.functional.cross_entropy(net(torch.from_numpy(data.x)), torch.from_numpy(data.labels())).backward()
    with torch.no_grad():
        for value in net.parameters():
            value.sub_(rate * value.grad)
    return net


def run_fedavg(recording: LoopRecording, rounds: int = 3) -> nn.Module:
    net = model()
    for _ in range(rounds):
        recording.broadcast(net)
        locals_ = []
        for client, data in enumerate(clients()):
            locals_.append(descend(copy.deepcopy(net), data, 0.5))
            recording.update(client, locals_[-1] if client else locals_[-1].state_dict())
        with torch.no_grad():
            for name, value in net.named_parameters():
                value.copy_(sum(n * dict(m.named_parameters())[name] for n, m in zip(ROWS, locals_, strict=True)) / 15)
    return net


def test_a_recorded_loop_sends_what_our_fedavg_sends_from_the_same_models(tmp_path: Path) -> None:
    with securefed.torch.record(tmp_path / "run.transcript", **facts()) as recording:
        net = run_fedavg(recording)
        recording.broadcast(net)
    transcript = Transcript.load(tmp_path / "run.transcript")
    assert len(transcript.records) == 3
    before, after = (record.broadcast for record in transcript.records[:2])
    for name, value in before.items():
        moved = sum(transcript.contributions[0, client][f"delta.{name}"] for client in range(3)) / 3
        np.testing.assert_allclose(value + moved, after[name], atol=1e-14)
        np.testing.assert_array_equal(transcript.output[name], net.state_dict()[name].numpy())
    assert transcript.meta["framework"] == "torch"


@pytest.mark.exhaustive
def test_the_audit_reads_the_rows_off_recorded_gradients_of_single_rows_and_not_off_their_means() -> None:
    data = [Dataset(one.x[k : k + 1], one.labels()[k : k + 1]) for k, one in enumerate(clients())]
    best = []
    for masked in (False, True):
        with securefed.torch.record(rows=[1, 1, 1], features=FEATURES, classes=CLASSES) as recording:
            net = model()
            for _ in range(2):
                recording.broadcast(net)
                grads = [descend(copy.deepcopy(net), own, 0.0) for own in data]
                if masked:
                    pooled = Dataset(np.concatenate([d.x for d in data]), np.concatenate([d.labels() for d in data]))
                    recording.mean_gradient(descend(net, pooled, 0.0))
                else:
                    for client, local in enumerate(grads):
                        recording.gradient(client, local)
        algorithm = DSGD(problem=PROBLEM, learning_rate=0.5)
        audit = audit_transcript(recording.transcript, algorithm, clients=data, attacks=["networks/inversion"])
        best.append(max((finding.leakage for finding in audit.findings), default=0.0))
    assert best[0] > 0.999
    assert best[1] < 0.9


def test_recorded_gradients_are_those_of_our_run() -> None:
    ours = Federation(DSGD(problem=PROBLEM, learning_rate=0.5), clients(), seed=0).run(1).transcript
    broadcast = ours.records[0].broadcast
    net = model()
    net.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in broadcast.items()})
    with securefed.torch.record(**facts()) as recording:
        recording.broadcast(net)
        for client, data in enumerate(clients()):
            recording.gradient(client, descend(copy.deepcopy(net), data, 0.0))
    for key, own in ours.contributions.items():
        for name, value in own.items():
            np.testing.assert_allclose(recording.transcript.contributions[key][name], value, atol=1e-12)


def test_of_a_masked_run_the_sum_alone_is_recorded() -> None:
    with securefed.torch.record(rows=[5, 5, 5], features=FEATURES, classes=CLASSES) as recording:
        net = model()
        for _ in range(2):
            recording.broadcast(net)
            descend(net, clients()[0], 0.1)
            recording.mean_gradient(net)
    transcript = recording.transcript
    assert not transcript.contributions
    assert transcript.records[1].survivors == (0, 1, 2)
    gradient = dict(net.named_parameters())["weight"].grad
    np.testing.assert_allclose(transcript.records[1].total["gradient.weight"], 15 * gradient.numpy())


def test_narrow_types_models_and_counters() -> None:
    net = nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4)).to(torch.bfloat16)
    with securefed.torch.record(rows=[2], features=FEATURES, form="models") as recording:
        recording.broadcast(net.state_dict())
        recording.update(0, net.state_dict())
    sent = recording.transcript.contributions[0, 0]
    assert "1.running_mean" in sent
    assert "1.num_batches_tracked" not in sent
    assert sent["0.weight"].dtype == np.float32


def test_what_the_loop_changes_later_is_not_in_the_record() -> None:
    with securefed.torch.record(rows=[2], features=FEATURES) as recording:
        net = model()
        recording.broadcast(net)
        before = net.weight.detach().clone().numpy()
        with torch.no_grad():
            net.weight += 1
        recording.update(0, net)
        with torch.no_grad():
            net.weight += 1
    np.testing.assert_array_equal(recording.transcript.records[0].broadcast["weight"], before)
    np.testing.assert_allclose(recording.transcript.contributions[0, 0]["delta.weight"], 1, atol=1e-12)


def test_misuse_is_named_and_nothing_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "run.transcript"
    with (
        pytest.raises(ConfigError, match="form must be one of"),
        securefed.torch.record(rows=[1], features=1, form="x"),
    ):
        raise AssertionError
    with pytest.raises(TranscriptError, match="holds no round"), securefed.torch.record(path, rows=[1], features=1):
        pass
    with pytest.raises(DataError, match="call broadcast"), securefed.torch.record(path, **facts()) as recording:
        recording.update(0, model())
    with pytest.raises(DataError, match="numbered 0 to 2"), securefed.torch.record(path, **facts()) as recording:
        recording.broadcast(model())
        recording.update(3, model())
    with pytest.raises(DataError, match="send once"), securefed.torch.record(path, **facts()) as recording:
        recording.broadcast(model())
        recording.update(0, model())
        recording.update(0, model())
    with pytest.raises(DataError, match="other names or shapes"), securefed.torch.record(path, **facts()) as recording:
        recording.broadcast(model())
        recording.update(0, nn.Linear(2, 2))
    with pytest.raises(DataError, match="no gradient"), securefed.torch.record(path, **facts()) as recording:
        recording.broadcast(model())
        recording.gradient(0, model())
    with (
        pytest.raises(DataError, match="weights all clients"),
        securefed.torch.record(path, **facts()) as recording,
    ):
        recording.broadcast(model())
        recording.mean_gradient(model())
    with pytest.raises(TranscriptError, match="has ended"), securefed.torch.record(path, **facts()) as recording:
        _ = recording.transcript
    assert not path.exists()


def test_our_fedavg_explains_the_recorded_updates() -> None:
    """From the same model a client of our FedAvg sends what the loop's client sent."""
    with securefed.torch.record(**facts()) as recording:
        run_fedavg(recording)
    transcript = recording.transcript
    for record in transcript.records:
        for client, data in enumerate(clients()):
            gradient = PROBLEM.gradient(record.broadcast, data.x, data.labels())
            for name, value in gradient.items():
                sent = transcript.contributions[record.round, client][f"delta.{name}"]
                np.testing.assert_allclose(sent, -0.5 * ROWS[client] / 5 * value, atol=1e-12)
