"""A Flower run's messages, by their shapes alone, become a transcript that is attacked like our own."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securefed import Dataset, Transcript
from securefed.algorithms import FedAvg
from securefed.attacks import SampleFit, Target, views
from securefed.attacks._diagnosis import explained, resolution
from securefed.attacks.scores import match, relative_error
from securefed.errors import ConfigError, DataError, TranscriptError
from securefed.problems import SoftmaxRegression
from securefed.recording import FlowerRecording
from securefed.recording._flower import arrays_of
from securefed.recording._recording import public_of

NODES = (901, 17, 333)  # Flower's node ids are large random numbers
FEATURES, CLASSES, STEPS, RATE = 6, 3, 3, 0.1
RNG = np.random.default_rng(5)
DATA = {
    node: Dataset(RNG.uniform(0, 1, (n, FEATURES)), np.arange(n) % CLASSES)
    for node, n in zip(NODES, (1, 2, 1), strict=True)
}


@dataclass
class FakeArray:
    """What Flower's `Array` offers here."""

    value: Any

    def numpy(self) -> Any:
        return self.value


@dataclass
class FakeMessage:
    """What Flower's `Message` offers here: a record of records, metadata, and whether it is an error."""

    arrays: dict[str, Any]
    examples: int | None = None
    src: int = 0
    kind: str = "train"
    failed: bool = False
    content: Any = field(init=False)
    metadata: Any = field(init=False)

    def __post_init__(self) -> None:
        metrics = {} if self.examples is None else {"metrics": {"num-examples": self.examples, "loss": 0.5}}
        record = {"arrays": {name: FakeArray(value) for name, value in self.arrays.items()}} if self.arrays else {}
        self.content = SimpleNamespace(array_records=record, metric_records=metrics)
        self.metadata = SimpleNamespace(src_node_id=self.src, message_type=self.kind)

    def has_error(self) -> bool:
        return self.failed


def trained(model: list[Any], data: Dataset) -> list[Any]:
    """A client of another framework: softmax regression by gradient descent, written without our algorithms."""
    weight, bias = (np.array(part) for part in model)
    for _ in range(STEPS):
        z = data.x @ weight.T + bias
        p = np.exp(z - z.max(axis=1, keepdims=True))
        off = (p / p.sum(axis=1, keepdims=True) - np.eye(CLASSES)[data.labels()]) / data.rows
        weight, bias = weight - RATE * off.T @ data.x, bias - RATE * off.sum(axis=0)
    return [weight, bias]


def mean(models: dict[int, list[Any]]) -> list[Any]:
    share = {node: DATA[node].rows / sum(DATA[n].rows for n in models) for node in models}
    return [sum(share[node] * models[node][k] for node in models) for k in range(2)]


def first() -> list[Any]:
    return [np.zeros((CLASSES, FEATURES)), np.zeros(CLASSES)]


def app(recording: FlowerRecording, rounds: int = 6, kind: type = np.float64) -> list[Any]:
    """A server app's loop on a watched grid; a round of evaluation and a failed reply among its messages."""
    model = [part.astype(kind) for part in first()]

    class Grid:
        run_id = 7

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[FakeMessage]:
            out = []
            for node in NODES:
                own = [part.astype(kind) for part in trained(model, DATA[node])]
                out.append(FakeMessage({"fc.weight": own[0], "fc.bias": own[1]}, DATA[node].rows, node, "train"))
            return [*out, FakeMessage({}, None, 4, failed=True)]

    grid = recording.watch(Grid())
    assert grid.run_id == 7
    for _ in range(rounds):
        sent = [FakeMessage({"fc.weight": model[0], "fc.bias": model[1]}) for _ in NODES]
        replies = grid.send_and_receive(sent, timeout=1.0)
        back = {r.metadata.src_node_id: r for r in replies if not r.has_error()}
        arrays = {n: [a.numpy() for a in r.content.array_records["arrays"].values()] for n, r in back.items()}
        model = [part.astype(kind) for part in mean(arrays)]
    recording.messages([FakeMessage({"fc.weight": model[0]}, kind="evaluate")], [])
    return model


def recording(**changes: Any) -> FlowerRecording:
    return FlowerRecording(features=FEATURES, classes=CLASSES, names=["weight", "bias"], **changes)


def algorithm(rate: float = RATE) -> FedAvg:
    return FedAvg(problem=SoftmaxRegression(l2=0.0), learning_rate=rate, local_steps=STEPS)


def test_a_watched_apps_rows_are_found_from_the_file(tmp_path: Any) -> None:
    told = recording()
    model = app(told)
    told.finish().save(tmp_path / "run.transcript")
    transcript = Transcript.load(tmp_path / "run.transcript")
    assert transcript.meta["nodes"] == [str(node) for node in sorted(NODES)]
    assert transcript.meta["rows"] == [2, 1, 1]
    np.testing.assert_allclose(transcript.output["weight"], model[0], rtol=1e-12)
    target = Target(algorithm(), public_of(transcript))
    for client, node in enumerate(sorted(NODES)):
        seen = views.server(transcript, client)
        found = SampleFit().run(seen, target, np.random.default_rng(0))
        truth = DATA[node].x
        assert explained(found, seen)
        assert relative_error(match(found.value, truth), truth) < 1e-6
    wrong = SampleFit().run(seen, Target(algorithm(1.2 * RATE), target.public), np.random.default_rng(0))
    assert explained(wrong, seen) is False


def test_float32_models_stay_float32_and_count_as_such() -> None:
    told = recording()
    app(told, kind=np.float32)
    seen = views.server(told.finish(), 1)
    assert seen.rounds[0].message["delta.weight"].dtype == np.float32
    assert 1e-7 < resolution(seen) < 1e-4


def packed(arrays: list[Any]) -> SimpleNamespace:
    """Flower's `Parameters`."""
    out = []
    for value in arrays:
        stream = io.BytesIO()
        np.save(stream, value, allow_pickle=False)
        out.append(stream.getvalue())
    return SimpleNamespace(tensors=out, tensor_type="numpy.ndarray")


def test_the_older_strategies_give_the_same_transcript() -> None:
    new, old = recording(), recording()
    app(new, rounds=2)
    model = first()
    for _ in range(2):
        models = {node: trained(model, DATA[node]) for node in NODES}
        results = [
            (
                SimpleNamespace(node_id=node) if node == 17 else SimpleNamespace(cid=str(node)),
                SimpleNamespace(parameters=packed(models[node]), num_examples=DATA[node].rows),
            )
            for node in NODES
        ]
        old.fit(SimpleNamespace(parameters=packed(model)), results)
        model = mean(models)
    a, b = new.finish(), old.finish()
    for x, y in zip(a.records, b.records, strict=True):
        for name in x.total:
            np.testing.assert_allclose(x.total[name], y.total[name], rtol=1e-12, atol=1e-15)


def test_models_themselves_can_be_kept() -> None:
    told = recording(form="models")
    app(told, rounds=1)
    seen = views.server(told.finish(), 0)
    np.testing.assert_allclose(seen.rounds[0].message["weight"], trained(first(), DATA[17])[0], rtol=1e-12)


def test_what_no_transcript_can_be_made_of_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="form must be one of 'updates', 'models'; got 'model'"):
        recording(form="model")
    with pytest.raises(TranscriptError, match="no training round"):
        recording().finish()
    told, one = recording(), {"fc.weight": first()[0], "fc.bias": first()[1]}
    other = {**one, "fc.bias": np.ones(CLASSES)}
    with pytest.raises(DataError, match="different models"):
        told.messages([FakeMessage(one), FakeMessage(other)], [])
    with pytest.raises(DataError, match="needs an ArrayRecord"):
        told.messages([FakeMessage({})], [])
    told.messages([FakeMessage(one)], [FakeMessage(one, None, 3)])
    with pytest.raises(DataError, match="num-examples"):
        told.finish()
    with pytest.raises(DataError, match="as many different names"):
        recording().messages([FakeMessage({"fc.weight": first()[0]})], [])
    pickled = b"\x80\x04}\x94."  # {}: what must never be loaded
    for held in ([pickled], [b"x"]):
        with pytest.raises(DataError, match="NumPy arrays"):
            arrays_of(SimpleNamespace(tensors=held))
    assert len(arrays_of(packed(first()))) == 2  # the control
