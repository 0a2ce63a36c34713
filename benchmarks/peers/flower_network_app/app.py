"""A secured Flower app that adds each client's number to the model, keeps the model on disk and goes on from it."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from securefed.defenses import secure_aggregation
from securefed.flower import SecureStrategy, secure_mod

client = ClientApp(mods=[secure_mod])
server = ServerApp()
LATE = 1
"""Number of the client that is late where the run's config asks for it."""


@client.train()
def train(message: Message, context: Context) -> Message:
    number, config = int(context.node_config["partition-id"]), context.run_config
    if number == LATE and message.content["config"]["server-round"] == config["late-in-round"]:
        time.sleep(float(config["late-by"]))
    new = message.content["arrays"]["w"].numpy() + number
    arrays, metrics = ArrayRecord({"w": Array(new)}), MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    out = Path(str(config["out"]))
    log = json.loads(out.read_text()) if out.exists() else []
    while len(list(grid.get_node_ids())) < config["sites"]:
        time.sleep(0.5)
    strategy = SecureStrategy(
        FedAvg(fraction_evaluate=0.0),
        secure_aggregation(),
        config,
        largest_weight=1,
        patience=30.0,
        folder=out.parent / "sums",
    )

    def keep(server_round: int, arrays: ArrayRecord) -> None:
        if server_round:
            last = strategy.history[-1]
            log.append(
                {"w": float(arrays["w"].numpy()[0]), "survivors": len(last.survivors), "exchanges": last.exchanges,
                 "seconds": last.seconds, "void": last.void, "refusals": list(last.refusals.values())}
            )  # fmt: skip
            half = out.with_suffix(".half")
            half.write_text(json.dumps(log))
            half.replace(out)

    begin = ArrayRecord({"w": Array(np.full(4, log[-1]["w"] if log else 0.0))})
    strategy.start(grid, begin, config["rounds"] - len(log), config["timeout"], evaluate_fn=keep)
