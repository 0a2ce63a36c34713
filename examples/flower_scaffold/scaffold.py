"""SCAFFOLD as a Flower app: two sums a round with different weights, in one secure sum.

The server needs the mean of the models weighted by numbers of examples n_i, and the mean of the control variates c_i in
which every client counts once. A secure sum has one weight, n_i. So a client sends c_i / n_i and the number 1 / n_i:

    mean of c = (sum_i n_i (c_i / n_i) / sum_i n_i) / (sum_i n_i (1 / n_i) / sum_i n_i) = (sum_i c_i) / S

Clients send their new control variate and no difference from the old one, so that a void round leaves no error behind.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from securefed.defenses import secure_aggregation
from securefed.flower import SecureStrategy, secure_mod

client = ClientApp(mods=[secure_mod])
server = ServerApp()


def rows(number: int) -> tuple[np.ndarray, np.ndarray]:
    """One site's rows; each site has another slope, which makes plain FedAvg drift."""
    rng = np.random.default_rng(number)
    x = rng.normal(size=(20 + 15 * number, 3)) * (1 + number)
    return x, x @ (np.array([1.0, -2.0, 0.5]) + number) + 0.1 * rng.normal(size=len(x))


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x.T @ (x @ w - y) / len(y) / 10


@client.train()
def train(message: Message, context: Context) -> Message:
    config, sent = context.run_config, message.content["arrays"]
    model, common = sent["model"].numpy(), sent["control"].numpy()
    kept = context.state.array_records.get("scaffold")
    own = np.zeros_like(common) if kept is None else kept["control"].numpy()
    x, y = rows(int(context.node_config["partition-id"]))
    w, rate, steps = model.copy(), float(config["rate"]), int(config["steps"])
    for _ in range(steps):
        w = w - rate * (gradient(w, x, y) - own + common)
    own = own - common + (model - w) / (steps * rate)
    context.state["scaffold"] = ArrayRecord({"control": Array(own)})
    arrays = ArrayRecord({"model": Array(w), "control": Array(own / len(y))})
    metrics = MetricRecord({"num-examples": len(y), "inverse": 1 / len(y)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


class Scaffold(FedAvg):
    """FedAvg of the models, and the plain mean of the control variates."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is not None and metrics is not None:
            arrays["control"] = Array(arrays["control"].numpy() / float(metrics["inverse"]))  # type: ignore[arg-type]
        return arrays, metrics


@server.main()
def main(grid: Grid, context: Context) -> None:
    config, zeros = context.run_config, np.zeros(3)
    sites = int(config["sites"])
    strategy = Scaffold(fraction_evaluate=0.0, min_train_nodes=sites, min_available_nodes=sites)
    secured = SecureStrategy(strategy, secure_aggregation(), config, largest_weight=100)
    initial = ArrayRecord({"model": Array(zeros), "control": Array(zeros)})
    result = secured.start(grid, initial, int(config["rounds"]), train_config=ConfigRecord())
    np.savez(Path(str(config["out"])), **{name: value.numpy() for name, value in result.arrays.items()})
