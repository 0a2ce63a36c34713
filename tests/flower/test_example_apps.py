"""The Flower apps in `examples`, on a grid in this process: their numbers are those of the pooled rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from securefed.flower import _queries, _strategy
from tests.flower.grid import LocalGrid, Node
from tests.test_examples import load

SITES = 4


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no network."""
    for module in (_queries.SecureQueries, _strategy.SecureStrategy):
        kept = module.__init__
        monkeypatch.setattr(
            module, "__init__", lambda self, *given, kept=kept, **more: kept(self, *given, **{"poll": 0.001} | more)
        )


def started(module: Any, config: dict[str, Any], client: ClientApp | None = None) -> None:
    nodes = {10 + i: Node(client or module.client, {"partition-id": i}) for i in range(SITES)}
    for node in nodes.values():
        node.begin(config)
    module.server(LocalGrid(nodes), Context(1, 0, {}, RecordDict(), config))


def test_the_statistics_app_gives_those_of_the_pooled_rows(tmp_path: Path) -> None:
    module, out = load("flower_statistics/hospital_statistics"), tmp_path / "found.json"
    started(module, {"out": str(out)})
    found = json.loads(out.read_text())
    tables = [module.patients(Context(1, 0, {"partition-id": i}, RecordDict(), {})) for i in range(SITES)]
    age, dose = (np.concatenate([table[name] for table in tables]) for name in ("age", "dose"))
    assert found["histogram of age"] == np.histogram(age, module.BINS)[0].tolist()
    np.testing.assert_allclose(found["mean"], [age.mean(), dose.mean()], atol=1e-8)
    np.testing.assert_allclose(found["variance"], [age.var(ddof=1), dose.var(ddof=1)], atol=1e-6)
    assert abs(found["median"][0][0] - np.median(age)) <= 0.5
    assert len(found["survival"]) == 10 and found["odds"][0] > 0 > found["odds"][1]


@pytest.mark.exhaustive
def test_scaffold_under_a_secure_sum_is_scaffold_and_finds_what_averaging_misses(tmp_path: Path) -> None:
    """Two weights in one sum: models by numbers of examples, control variates by one for each client."""
    module, out = load("flower_scaffold/scaffold"), tmp_path / "model.npz"
    config = {"sites": SITES, "rounds": 60, "rate": 0.05, "steps": 5, "out": str(out)}
    started(module, config)
    ours = np.load(out)
    plain = ClientApp()
    plain.train()(module.train)
    nodes = {10 + i: Node(plain, {"partition-id": i}) for i in range(SITES)}
    for node in nodes.values():
        node.begin(config)
    controls = []

    class Watched(FedAvg):
        """Plain SCAFFOLD, whose server sees each control variate."""

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            given = list(replies)
            arrays, metrics = super().aggregate_train(server_round, given)
            each = [r.content["arrays"]["control"].numpy() * r.content["metrics"]["num-examples"] for r in given]
            controls.append(np.mean(each, axis=0))
            arrays["control"] = module.Array(controls[-1])
            return arrays, metrics

    initial = ArrayRecord({name: module.Array(np.zeros(3)) for name in ("model", "control")})
    theirs = Watched(fraction_evaluate=0.0).start(LocalGrid(nodes), initial, 60)
    np.testing.assert_allclose(ours["model"], theirs.arrays["model"].numpy(), atol=1e-6)
    np.testing.assert_allclose(ours["control"], controls[-1], atol=1e-6)
    assert np.abs(controls[-1]).max() < 0.1 * np.abs(controls[0]).max()
