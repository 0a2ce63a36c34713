"""The peer of `benchmarks.peers.flower_strategy`: the demonstration's app under Flower's SecAgg+, on its legacy API.

Imports nothing of ours. `digits.py` is a copy of `examples/flower_demo/plain/app.py`, which the benchmark puts beside
this file: the network, the rows, and one epoch of training are the same.
"""

import json
import time
from pathlib import Path
from typing import Any

import digits
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

NAMES = list(digits.network().state_dict())
server = ServerApp()


class Site(NumPyClient):
    def __init__(self, context: Context) -> None:
        self.own = context

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        state = {name: torch.from_numpy(value) for name, value in zip(NAMES, parameters, strict=True)}
        content = RecordDict({"arrays": ArrayRecord(state), "config": ConfigRecord()})
        message = Message(content, 1, "train")
        message.metadata.__dict__["_message_id"] = "1"
        reply = digits.train(message, self.own).content
        trained = [value.numpy().astype("float32") for value in reply["arrays"].values()]
        return trained, int(reply["metrics"]["num-examples"]), {}


def site(context: Context) -> Any:
    return Site(context).to_client()


client = ClientApp(site, mods=[secaggplus_mod])


@server.main()
def main(grid: Grid, context: Context) -> None:
    out, log = Path(str(context.run_config["out"])), []
    sites, rounds = int(context.run_config["sites"]), int(context.run_config["rounds"])
    model, (x, y) = digits.network(), digits.rows(slice(digits.TRAINING, None))

    def tested(round: int, parameters: list[Any], config: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        model.load_state_dict({name: torch.from_numpy(value) for name, value in zip(NAMES, parameters, strict=True)})
        log.append({"round": round, "time": time.time(), **digits.scores(model, x, y)})
        out.write_text(json.dumps(log))
        return log[-1]["loss"], {}

    first = [value.numpy().astype("float32") for value in digits.network().state_dict().values()]
    while len(list(grid.get_node_ids())) < sites:
        time.sleep(1)
    strategy = FedAvg(
        fraction_evaluate=0.0, min_fit_clients=sites, min_available_clients=sites, evaluate_fn=tested,
        initial_parameters=ndarrays_to_parameters(first),
    )  # fmt: skip
    tested(0, parameters_to_ndarrays(ndarrays_to_parameters(first)), {})
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=rounds), strategy=strategy)
    workflow = DefaultWorkflow(
        fit_workflow=SecAggPlusWorkflow(num_shares=sites, reconstruction_threshold=sites - 1, max_weight=1000.0)
    )
    workflow(grid, legacy)
