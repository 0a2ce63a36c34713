"""The page "Every round is void" holds what a SuperNode's log, or the error, says of each cause."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from securefed.defenses import secure_aggregation
from securefed.errors import RoundVoid
from securefed.flower import SecureStrategy, secure_mod
from tests.flower import ordinary_app

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "every-round-is-void.md").read_text()
LISTED = [re.findall("`([^`]+)`", row.split("|")[1]) for row in PAGE.splitlines() if row.startswith("| `")]
CAUSES: dict[str, Any] = {
    "the app gave no update": None,
    "is beyond the largest that the terms allow": lambda a, m: (a, m | {"num-examples": 900}),
    "beyond the planned bound": lambda a, m: (a | {"b": np.array([2.0**21])}, m),
    "holds NaN or infinity": lambda a, m: (a | {"b": np.array([np.nan])}, m),
    "the reply's ArrayRecord lacks the array": lambda a, m: ({f"net.{n}": v for n, v in a.items()}, m),
    "lacks 'num-examples'": lambda a, m: (a, {"train_loss": 1.0}),
    "0 of 4 clients replied": 4,
    "2 of 3 clients replied": 1,
}


def run(change: Any, lost: int, clients: int) -> None:
    def train(message: Message, context: Any) -> Message:
        content = ordinary_app.train(message, context).content
        given = {name: value.numpy() for name, value in content["arrays"].items()}
        arrays, metrics = change(given, dict(content["metrics"]))  # of `None`: raises
        record = ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})
        return Message(RecordDict({"arrays": record, "metrics": MetricRecord(metrics)}), reply_to=message)

    grid = ordinary_app.grid(secure_mod, train=train if lost == 0 else ordinary_app.train, clients=clients)
    gone = sorted(grid.nodes)[:lost]
    grid.lose = lambda message: message.metadata.dst_node_id in gone
    strategy = SecureStrategy(
        FedAvg(fraction_evaluate=0.0), secure_aggregation(), largest_weight=64, poll=0.001, patience=0.05, max_void=1
    )
    strategy.start(grid, ordinary_app.initial(), num_rounds=1, timeout=0.3)


@pytest.mark.parametrize("said", CAUSES)
def test_each_cause_is_told_in_the_words_of_the_page(said: str, caplog: Any) -> None:
    assert any(said in row for row in LISTED)
    cause = CAUSES[said]
    lost = cause if isinstance(cause, int) else 0
    with pytest.raises(RoundVoid) as raised:
        run(cause, lost, clients=4 if lost == 4 else 3)
    for _ in range(1000):  # a client writes its log after its reply, in a thread of its own
        if said in caplog.text + str(raised.value):
            return
        time.sleep(0.01)
    pytest.fail(f"{said!r} is not in {raised.value}\n{caplog.text}")


def test_every_row_of_the_page_has_a_cause_here() -> None:
    assert len(LISTED) == len(CAUSES)
    assert all(any(said in CAUSES for said in row) for row in LISTED)
