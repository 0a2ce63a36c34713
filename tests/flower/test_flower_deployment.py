"""One run over Flower's deployment engine: a SuperLink and three SuperNodes on loopback, in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.peers.flower_run import deployment, flower_environment, submit

APP = """
import json, pathlib, time
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from securefed.defenses import secure_aggregation
from securefed.flower import SecureStrategy, secure_mod

client = ClientApp(mods=[secure_mod])
server = ServerApp()

@client.train()
def train(message, context):
    number = context.node_config["partition-id"]
    new = message.content["arrays"]["w"].numpy() + np.float32(number)
    arrays, metrics = ArrayRecord({"w": Array(new)}), MetricRecord({"num-examples": 10 * (number + 1)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

@server.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < 3:
        time.sleep(0.5)
    inner = FedAvg(fraction_evaluate=0.0)
    strategy = SecureStrategy(inner, secure_aggregation(), context.run_config, largest_weight=1000)
    result = strategy.start(grid, ArrayRecord({"w": Array(np.zeros(4, np.float32))}), 2, 200.0)
    found = {"w": result.arrays["w"].numpy().tolist(), "exchanges": [r.exchanges for r in strategy.history],
             "survivors": [len(r.survivors) for r in strategy.history]}
    pathlib.Path(context.run_config["out"]).write_text(json.dumps(found))
"""
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "means"
version = "1.0.0"
description = "A mean"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "securefed"
[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"
[tool.flwr.app.config]
out = ""
"""


@pytest.mark.exhaustive
def test_a_secured_app_runs_over_a_superlink_with_state_in_the_sites_folders(tmp_path: Path) -> None:
    app, folder = tmp_path / "app", tmp_path / "run"
    for place in (app, folder):
        place.mkdir()
    (app / "app.py").write_text(APP)
    (app / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "site.toml").write_text('folder = "states"\n')
    environment = flower_environment(folder)
    more = f'securefed="{tmp_path / "site.toml"}"'
    with deployment(folder, 3, environment, lambda client: more):
        submit(app, f'out="{tmp_path / "found.json"}"', folder, environment, 500.0)
    assert (tmp_path / "found.json").exists(), (folder / "run.log").read_text()[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["exchanges"] == [4, 2]
    assert found["survivors"] == [3, 3]
    mean = 2 * (0 * 10 + 1 * 20 + 2 * 30) / 60  # two rounds of the weighted mean of the clients' numbers
    assert found["w"] == pytest.approx([mean] * 4, abs=1e-6)
    assert len(list((tmp_path / "states").glob("*.state"))) == 3
