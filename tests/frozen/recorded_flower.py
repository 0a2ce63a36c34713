"""Record what `SecureStrategy` and `secure_mod` send through Flower: a line for every message, with digests."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from securefed.defenses import secure_aggregation
from securefed.flower import SecureStrategy, secure_mod
from tests.flower import ordinary_app
from tests.flower.grid import LocalGrid
from tests.frozen.fixed_randomness import FixedRandomness, fixed_randomness
from tests.frozen.recorded import short


def train(message: Message, context: Context) -> Message:
    """Add an eighth for each number of the node: exact on every processor."""
    number = int(context.node_config["partition-id"])
    model = {name: value.numpy() for name, value in message.content["arrays"].items()}
    step = (number + 1) / 8
    arrays = ArrayRecord({name: Array(value + np.asarray(step, value.dtype)) for name, value in model.items()})
    metrics = MetricRecord({"num-examples": 2**number, "train_loss": number / 4})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def content_line(content: RecordDict) -> str:
    """Return the names of the records and their entries, and a digest of all values."""
    names, values = [], []
    for name, record in sorted(content.items()):
        entries = sorted(record.items())
        names.append(f"{name}({','.join(key for key, _ in entries)})")
        for key, value in entries:
            plain = (value.dtype, value.shape, value.data) if isinstance(value, Array) else value
            values.append(f"{name} {key} {plain!r}".encode())
    return f"{' '.join(names)} {short(b'|'.join(values))}"


@dataclass
class Recording(LocalGrid):
    """A grid that writes a line for every message, and lets the node that answers draw."""

    drawn: FixedRandomness = field(default_factory=lambda: FixedRandomness(""))
    lines: list[str] = field(default_factory=list)

    def pull_messages(self, message_ids: Any) -> Any:
        replies = []
        for number in message_ids:
            node = self.inbox[number].metadata.dst_node_id if number in self.inbox else 0
            if node:
                self.lines.append(f"to {node} {content_line(self.inbox[number].content)}")
            with self.drawn.of(node):
                for reply in super().pull_messages([number]):
                    self.lines.append(f"from {node} {content_line(reply.content)}")
                    replies.append(reply)
        return replies


@dataclass(frozen=True)
class FlowerCase:
    """Two rounds of training, of which the second is prepared by the first."""

    def record(self, secrets: str = "frozen") -> list[str]:
        """Play them with these secrets."""
        with fixed_randomness(secrets) as drawn, drawn.of("server"):
            grid = Recording(ordinary_app.grid(secure_mod, clients=3, train=train).nodes, drawn=drawn)
            strategy = SecureStrategy(
                FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3), secure_aggregation(),
                train_metrics=("train_loss",), largest_weight=8, poll=0.001, patience=0.02,
            )  # fmt: skip
            random.seed(5)
            start = ArrayRecord({"w": Array(np.zeros((2, 2), np.float32)), "b": Array(np.zeros(1))})
            result = strategy.start(grid, start, 2, 0.05, train_config=ConfigRecord({"lr": 0.5}))
        model = {name: value.numpy().tolist() for name, value in sorted(result.arrays.items())}
        return [*grid.lines, f"result {model}"]
