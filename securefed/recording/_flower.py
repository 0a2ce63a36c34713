"""Record a Flower run: its training messages become a `Transcript` that every view and attack reads.

A transcript holds what the server sent and received in each round. Attacks on it show what the server could have
learned of the clients' rows. A node is one of Flower's clients.

Flower is not imported: messages are read by their attributes, so that a recording needs only NumPy.

    recording = FlowerRecording(features=64, classes=10, names=["weight", "bias"])
    strategy.start(grid=recording.watch(grid), ...)        # Flower's message API (ServerApp): records every round
    recording.fit(self.sent, results)                      # Flower's older API, inside a strategy's `aggregate_fit`
    recording.finish().save("run.transcript")

The server of a plain Flower app sees the model of each client, and these models are recorded. Under Flower's own secure
aggregation the server sees only their sum: pass it to `Recording.sums`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import numpy as np

from securefed._hyperparameters import check_choice
from securefed._messages import ClientId, Transcript
from securefed._persistence.file_errors import NO_NPZ
from securefed._tensors import Array, Tensors
from securefed.errors import DataError, TranscriptError
from securefed.recording._recording import Form, Recording, as_floats, contribution, named, relative_weights

EXAMPLES: Final = "num-examples"
"""Flower's name of the number of rows among a reply's metrics."""
_TRAIN: Final = "train"  # Flower's type of training messages


@dataclass(frozen=True)
class _RecordedRound:
    """One round: the model that the server sent, and each node's reply: its model and its number of rows."""

    sent: Tensors
    models: Mapping[int, Tensors]
    rows: Mapping[int, int]


@dataclass
class FlowerRecording:
    """Collect the models of each round; `finish` turns them into contributions like those of this package's algorithms.

    A contribution is what a client sends for the server's sum.

    Attributes:
        features: width of the rows, as in `Recording`.
        classes: number of labels, as in `Recording`.
        feature_bound: declared range, as in `Recording`.
        names: names of the model's arrays, in their order, as the attacked problem calls them (softmax: `weight`,
            `bias`); by default Flower's names are kept.
        form: `updates` or `models`. With `updates` a contribution is what `optimization/fedavg` sends, `delta.NAME` =
            n_i / mean(n) (y_i - x), where client i with n_i rows trained model x to y_i. With `models` it is `NAME` =
            y_i.
        weighted: whether the server weights models by their number of rows (Flower's strategies do).

    Clients are numbered in the order of their nodes' ids; `meta["nodes"]` holds the ids. A client's number of rows is
    the largest that it reported. Arrays keep their types, so that attacks on float32 models get no more digits than the
    server had.
    """

    features: int
    classes: int = 0
    feature_bound: float = 1.0
    names: Sequence[str] | None = None
    form: Form = "updates"
    weighted: bool = True
    _rounds: list[_RecordedRound] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check `form`; raise `ConfigError` for another word."""
        check_choice("form", self.form, get_args(Form))

    def messages(self, sent: Iterable[Any], replies: Iterable[Any]) -> None:
        """Record a round of Flower `Message`s; other types than `train` and replies with an error are ignored.

        Raises:
            DataError: clients were sent different models, or a message holds no arrays.
        """
        models = [self._arrays(message) for message in sent if _kind(message) == _TRAIN]
        if not models:
            return
        for other in models[1:]:
            if any(not np.array_equal(other[name], models[0][name]) for name in models[0]):
                raise DataError("clients of one round were sent different models; record each group as a round")
        trained = [reply for reply in replies if _kind(reply) == _TRAIN and not reply.has_error()]
        by_node = {int(reply.metadata.src_node_id): reply for reply in trained}
        rows = {node: _examples(reply) for node, reply in by_node.items()}
        self._add(models[0], {node: self._arrays(reply) for node, reply in by_node.items()}, rows)

    def fit(self, sent: Any, results: Sequence[tuple[Any, Any]]) -> None:
        """Record a round of Flower's older API; call it inside the strategy's `aggregate_fit`.

        Args:
            sent: the `Parameters` (or `FitIns`) of that round's `configure_fit`.
            results: pairs of `ClientProxy` and `FitRes`; node ids are taken from `proxy.node_id`, else from `cid`.
        """
        models = {_node(proxy): self._named(arrays_of(reply)) for proxy, reply in results}
        rows = {_node(proxy): int(reply.num_examples) for proxy, reply in results}
        self._add(self._named(arrays_of(sent)), models, rows)

    def watch(self, grid: Any) -> Any:
        """Wrap a Flower grid so that its training rounds are recorded; pass the result to the strategy."""
        return _RecordingGrid(grid, self)

    def finish(self, output: Tensors | None = None) -> Transcript:
        """Return the transcript of the run.

        Args:
            output: the final model; by default the mean of the last round's models.

        Raises:
            TranscriptError: no training round was recorded.
            DataError: a client reported no number of rows; or as in `Recording.round`.
        """
        if not self._rounds:
            raise TranscriptError(
                "no training round with a reply was recorded; record the rounds with `watch`, `messages` or `fit` first"
            )
        nodes = sorted({node for item in self._rounds for node in item.models})
        rows = [max(item.rows.get(node, 0) for item in self._rounds) for node in nodes]
        if min(rows) < 1:
            raise DataError(f"a client reported no number of rows; its reply's metrics need {EXAMPLES!r}")
        facts: dict[str, Any] = {"nodes": [str(node) for node in nodes], "framework": "flower", "form": self.form}
        facts["weighted"] = self.weighted
        recording = Recording(
            rows=rows, features=self.features, classes=self.classes, feature_bound=self.feature_bound, facts=facts
        )
        weights = relative_weights(rows, weighted=self.weighted)
        place: dict[int, ClientId] = {node: index for index, node in enumerate(nodes)}
        for item in self._rounds:
            updates = {
                place[node]: contribution(item.sent, model, self.form, float(weights[place[node]]))
                for node, model in item.models.items()
            }
            recording.round(item.sent, updates)
        return recording.finish(self._mean(self._rounds[-1], weights, place) if output is None else output)

    def _mean(self, item: _RecordedRound, weights: Array, place: Mapping[int, ClientId]) -> dict[str, Array]:
        """Return the weighted mean of a round's models, in the types of the model that was sent."""
        by_node = {node: float(weights[place[node]]) for node in item.models}
        sum_of_weights = sum(by_node.values())
        shares = {node: weight / sum_of_weights for node, weight in by_node.items()}
        return {
            name: as_floats(np.sum([shares[node] * model[name] for node, model in item.models.items()], axis=0), first)
            for name, first in item.sent.items()
        }

    def _add(self, sent: Tensors, models: Mapping[int, Tensors], rows: Mapping[int, int]) -> None:
        """Keep a round: the model that was sent, and each node's model and number of rows."""
        if models:  # a round without replies holds no message
            self._rounds.append(_RecordedRound(sent, dict(models), dict(rows)))

    def _arrays(self, message: Any) -> dict[str, Array]:
        """Return the model in a message, under `names` if there are any; raise `DataError` where there is none."""
        records = list(message.content.array_records.values())
        if not records:
            raise DataError("a training message holds no model; it needs an ArrayRecord")
        try:
            arrays = {str(name): np.asarray(array.numpy()) for record in records for name, array in record.items()}
        except Exception as error:  # NumPy raises errors of many types for bytes that are no array
            raise DataError(f"an ArrayRecord holds bytes that are no NumPy array: {error!r:.200}") from error
        return self._named(list(arrays.values())) if self.names is not None else arrays

    def _named(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """Return arrays under `names`, or under their numbers "0", "1", ..."""
        return named(arrays, self.names if self.names is not None else [str(k) for k in range(len(arrays))])


def arrays_of(parameters: Any) -> list[Array]:
    """Read the arrays of a `Parameters`, `FitIns` or `FitRes`, without unpickling anything.

    Raises:
        DataError: the bytes are not NumPy arrays.
    """
    inner = getattr(parameters, "parameters", parameters)  # of a `FitIns` or `FitRes`
    try:
        return [np.asarray(np.load(io.BytesIO(data), allow_pickle=False)) for data in inner.tensors]
    except NO_NPZ as error:
        raise DataError(f"parameters must hold NumPy arrays as Flower serialises them: {error}") from error


class _RecordingGrid:
    """A Flower grid (its ServerApp's connection to the nodes) that also records what it sends and receives."""

    def __init__(self, grid: Any, recording: FlowerRecording) -> None:
        self._grid, self._recording = grid, recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        """Send messages by the wrapped grid, and record them and their replies."""
        sent = list(messages)
        replies = list(self._grid.send_and_receive(sent, timeout=timeout))
        self._recording.messages(sent, replies)
        return replies


def _kind(message: Any) -> str:
    """Return the type of a Flower message without its action: `train` of `train.action`."""
    return str(message.metadata.message_type).split(".")[0]


def _examples(reply: Any) -> int:
    """Return the number of rows that a reply reports; 0 where it reports none."""
    counts = [int(record[EXAMPLES]) for record in reply.content.metric_records.values() if EXAMPLES in record]
    return counts[0] if counts else 0


def _node(proxy: Any) -> int:
    """Return a client's node id, of Flower's older API."""
    node = getattr(proxy, "node_id", None)
    return int(proxy.cid if node is None else node)
