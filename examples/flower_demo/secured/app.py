"""A Flower app: a small convolutional network with batch norm learns scikit-learn's digits at three sites."""

import json
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from torch import nn

from securefed.defenses import secure_aggregation
from securefed.flower import SecureStrategy, secure_mod

TRAINING = 1500
SCORES = ("loss", "accuracy")
client = ClientApp(mods=[secure_mod])
server = ServerApp()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def rows(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(pixels[part]).float().reshape(-1, 1, 8, 8) / 16
    return x, torch.from_numpy(labels[part]).long()


def site(context: Context) -> slice:
    return slice(int(context.node_config["partition-id"]), TRAINING, int(context.run_config["sites"]))


def scores(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        logits = model(x)
    found = nn.functional.cross_entropy(logits, y), (logits.argmax(1) == y).float().mean()
    return dict(zip(SCORES, map(float, found), strict=True))


@client.train()
def train(message: Message, context: Context) -> Message:
    torch.manual_seed(int(context.node_config["partition-id"]))
    model, (x, y) = network(), rows(site(context))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.train()
    for batch in torch.randperm(len(y)).split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model, (x, y) = network(), rows(site(context))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    metrics = MetricRecord({"num-examples": len(y), **scores(model, x, y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    config, log = context.run_config, []
    out = Path(str(config["out"]))
    model, (x, y) = network(), rows(slice(TRAINING, None))

    def tested(round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        log.append(
            {"round": round, "time": time.time(), "nodes": len(list(grid.get_node_ids())), **scores(model, x, y)}
        )
        out.write_text(json.dumps(log))
        return MetricRecord({"accuracy": log[-1]["accuracy"]})

    strategy = FedAvg(fraction_evaluate=float(config["fraction-evaluate"]))
    strategy = SecureStrategy(strategy, secure_aggregation(), config, largest_weight=600)
    arrays = ArrayRecord(network().state_dict())
    sites, rounds = int(config["sites"]), int(config["rounds"])
    while len(list(grid.get_node_ids())) < sites:
        time.sleep(1)
    strategy.start(grid, arrays, rounds, float(config["timeout"]), evaluate_fn=tested)
