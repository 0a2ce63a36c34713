"""Small Flower apps of the shapes that Flower's own examples have, on data that are drawn: torch, sklearn, mods.

Each is a `Quickstart`: the functions of its ClientApp, the mods that its author wrote, its strategy with the example's
defaults, and the model that it begins with. `PYTORCH` is the quickstart of a network, `SKLEARN` that of a logistic
regression, `MODS` an app with a mod that logs metrics, and `ADVANCED` has a strategy with its own `start` and learning
rates, and clients that keep the last layer to themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Result
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from torch import nn

from tests.flower.grid import LocalGrid, Node

RUN_CONFIG = {"learning-rate": 0.1, "local-epochs": 1, "fraction-evaluate": 0.5, "batch-size": 8}


def rows(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Rows of two classes, drawn by the node's number."""
    number = int(context.node_config["partition-id"])
    rng = np.random.default_rng(number)
    x = rng.normal(size=(24 + 2 * number, 6))
    return x, (x[:, 0] + 0.3 * rng.normal(size=len(x)) > 0).astype(int)


@dataclass(frozen=True)
class Quickstart:
    """One app; see the module's head."""

    train: Callable[[Message, Context], Message]
    evaluate: Callable[[Message, Context], Message]
    initial: Callable[[], ArrayRecord]
    strategy: Callable[..., FedAvg]
    metrics: dict[str, tuple[str, ...]]
    mods: list[Any] = field(default_factory=list)

    def grid(self, *mods: Any, clients: int) -> LocalGrid:
        """SuperNodes with the app under these mods."""
        nodes = {}
        for number in range(clients):
            app = ClientApp(mods=list(mods))
            app.train()(self.train)
            app.evaluate()(self.evaluate)
            nodes[100 + number] = Node(app, {"partition-id": number, "num-partitions": clients})
            nodes[100 + number].begin(dict(RUN_CONFIG))
        return LocalGrid(nodes)


# --------------------------------------------------------------------------------------------------------------- torch


class Net(nn.Module):
    """A body with batch norm, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def fit(net: nn.Module, context: Context, rate: float) -> tuple[float, int]:
    """Train for an epoch; return the mean loss and the number of rows."""
    x, y = (torch.from_numpy(part) for part in rows(context))
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9), []
    net.train()
    for batch in torch.arange(len(y)).split(int(context.run_config["batch-size"])):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x[batch].float()), y[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return float(np.mean(losses)), len(y)


def torch_train(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss, count = fit(net, context, float(message.content["config"]["lr"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": count})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


def torch_evaluate(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = (torch.from_numpy(part) for part in rows(context))
    net.eval()
    with torch.no_grad():
        logits = net(x.float())
    scores = {
        "eval_loss": float(nn.functional.cross_entropy(logits, y)),
        "eval_acc": float((logits.argmax(1) == y).float().mean()),
        "num-examples": len(y),
    }
    return Message(RecordDict({"metrics": MetricRecord(scores)}), reply_to=message)


def torch_initial() -> ArrayRecord:
    return ArrayRecord(Net().state_dict())


TORCH_METRICS = {"train_metrics": ("train_loss",), "evaluate_metrics": ("eval_loss", "eval_acc")}


def pytorch_strategy(**more: Any) -> FedAvg:
    return FedAvg(**{"fraction_evaluate": RUN_CONFIG["fraction-evaluate"]} | more)


PYTORCH = Quickstart(torch_train, torch_evaluate, torch_initial, pytorch_strategy, TORCH_METRICS)

# ------------------------------------------------------------------------------------------------------------- sklearn


def regression(arrays: ArrayRecord) -> LogisticRegression:
    model = LogisticRegression(max_iter=3, warm_start=True)
    model.classes_ = np.arange(2)
    model.coef_, model.intercept_ = arrays.to_numpy_ndarrays()
    return model


def scores_of(model: LogisticRegression, x: np.ndarray, y: np.ndarray, phase: str) -> MetricRecord:
    found = {f"{phase}_logloss": log_loss(y, model.predict_proba(x)), f"{phase}_accuracy": accuracy_score(y, model.predict(x))}  # fmt: skip # noqa: E501
    return MetricRecord({"num-examples": len(y), **{name: float(value) for name, value in found.items()}})


def sklearn_train(message: Message, context: Context) -> Message:
    model, (x, y) = regression(message.content["arrays"]), rows(context)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a few steps a round do not converge
        model.fit(x, y)
    record = ArrayRecord([model.coef_, model.intercept_])
    return Message(RecordDict({"arrays": record, "metrics": scores_of(model, x, y, "train")}), reply_to=message)


def sklearn_evaluate(message: Message, context: Context) -> Message:
    x, y = rows(context)
    scores = scores_of(regression(message.content["arrays"]), x, y, "test")
    return Message(RecordDict({"metrics": scores}), reply_to=message)


SKLEARN = Quickstart(
    sklearn_train, sklearn_evaluate, lambda: ArrayRecord([np.zeros((1, 6)), np.zeros(1)]),
    lambda **more: FedAvg(**{"fraction_train": 1.0, "fraction_evaluate": 1.0} | more),
    {"train_metrics": ("train_logloss",), "evaluate_metrics": ("test_logloss", "test_accuracy")},
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------- mods

LOGGED: list[dict[str, Any]] = []


def logging_mod(message: Message, context: Context, call_next: Any) -> Message:
    """Log the metrics of a reply with their round, as to a tracking service."""
    server_round = int(message.content["config"]["server-round"])
    reply = call_next(message, context)
    if not reply.has_error():
        LOGGED.append({"round": server_round, **dict(reply.content["metrics"])})
    return reply


MODS = Quickstart(torch_train, torch_evaluate, torch_initial, pytorch_strategy, TORCH_METRICS, [logging_mod])

# ------------------------------------------------------------------------------------------------------------ advanced


class Decaying(FedAvg):
    """Lowers the learning rate over the rounds, and keeps the newest model that it got in its own round loop."""

    best: ArrayRecord | None = None

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Any:
        config["lr"] = float(config["lr"]) * 0.5 ** (server_round - 1)
        return super().configure_train(server_round, arrays, config, grid)

    def start(
        self, grid: Any, initial_arrays: ArrayRecord, num_rounds: int = 3, timeout: float = 3600,
        train_config: ConfigRecord | None = None, evaluate_config: ConfigRecord | None = None, evaluate_fn: Any = None,
    ) -> Result:  # fmt: skip
        result, arrays = Result(), initial_arrays
        for number in range(1, num_rounds + 1):
            sent = self.configure_train(number, arrays, train_config or ConfigRecord(), grid)
            found, metrics = self.aggregate_train(number, grid.send_and_receive(messages=sent, timeout=timeout))
            if found is not None and metrics is not None:
                arrays = result.arrays = self.best = found
                result.train_metrics_clientapp[number] = metrics
            sent = self.configure_evaluate(number, arrays, evaluate_config or ConfigRecord(), grid)
            scores = self.aggregate_evaluate(number, grid.send_and_receive(messages=sent, timeout=timeout))
            if scores is not None:
                result.evaluate_metrics_clientapp[number] = scores
        return result


def own_head(net: Net, context: Context) -> None:
    if "head" in context.state:
        net.head.load_state_dict(context.state["head"].to_torch_state_dict())


def advanced_train(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    own_head(net, context)
    loss, count = fit(net, context, float(message.content["config"]["lr"]))
    context.state["head"] = ArrayRecord(net.head.state_dict())
    metrics = MetricRecord({"train_loss": loss, "num-examples": count, "train_time": 0.5})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


def advanced_strategy(**more: Any) -> FedAvg:
    return Decaying(**{"fraction_train": 0.5, "fraction_evaluate": 0.5} | more)


ADVANCED = Quickstart(advanced_train, torch_evaluate, torch_initial, advanced_strategy, TORCH_METRICS)
QUICKSTARTS = {"pytorch": PYTORCH, "sklearn": SKLEARN, "custom-mods": MODS, "advanced-pytorch": ADVANCED}
