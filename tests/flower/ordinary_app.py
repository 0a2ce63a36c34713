"""An ordinary Flower app for tests: a linear model, trained by gradient steps on rows that the node's number seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from tests.flower.grid import LocalGrid, Node

CLIENTS = 5
ROWS = (40, 7, 25, 60, 13)


def rows(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    x = rng.normal(size=(ROWS[number], 3))
    return x, x @ np.array([1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=ROWS[number]) + number


def initial() -> ArrayRecord:
    return ArrayRecord(
        {"w": Array(np.zeros((3, 1), np.float32)), "b": Array(np.zeros(1)), "seen": Array(np.array(0, np.int64))}
    )


def train(message: Message, context: Context) -> Message:
    number = int(context.node_config["partition-id"])
    config = next(iter(message.content.config_records.values()))
    record = message.content["arrays"]
    model = {name: value.numpy() for name, value in record.items()}
    x, y = rows(number)
    w, b = model["w"].astype(float)[:, 0], float(model["b"][0])
    for _ in range(3):
        error = x @ w + b - y
        w, b = w - 0.05 * x.T @ error / len(y), b - 0.05 * error.mean()
    context.state["calls"] = ConfigRecord({"count": _calls(context) + 1})
    new = {"w": w[:, None].astype(np.float32), "b": np.array([b]), "seen": np.array(int(model["seen"]) + 2, np.int64)}
    loss = float(np.mean((x @ w + b - y) ** 2))
    metrics = MetricRecord({"num-examples": len(y), "train_loss": loss, "round": int(config["server-round"])})
    arrays = ArrayRecord({name: Array(value) for name, value in new.items()})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def evaluate(message: Message, context: Context) -> Message:
    x, y = rows(int(context.node_config["partition-id"]))
    model = {name: value.numpy() for name, value in message.content["arrays"].items()}
    loss = float(np.mean((x @ model["w"].astype(float)[:, 0] + float(model["b"][0]) - y) ** 2))
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": len(y), "eval_loss": loss})}), reply_to=message)


def _calls(context: Context) -> int:
    record = context.state.config_records.get("calls")
    return 0 if record is None else int(record["count"])


def app(*mods: Any, train: Any = train, evaluate: Any = evaluate) -> ClientApp:
    made = ClientApp(mods=list(mods))
    made.train()(train)
    made.evaluate()(evaluate)
    return made


def grid(*mods: Any, clients: int = CLIENTS, config: Any = None, **functions: Any) -> LocalGrid:
    """A grid of SuperNodes; `config` returns what a node's config holds beside its number."""
    nodes = {}
    for number in range(clients):
        more = {} if config is None else config(number)
        nodes[1000 + 7 * number] = Node(app(*mods, **functions), {"partition-id": number} | more)
    return LocalGrid(nodes)
