"""All numbers of a reply's metrics are averaged by default, lists too, as in a plain run."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from securefed.defenses import secure_aggregation
from securefed.errors import ConfigError
from securefed.flower import SecureStrategy, secure_mod
from tests.flower import ordinary_app

RNG = np.random.default_rng(0)
OWN = [
    {"per_class": RNG.integers(0, 30, 10).tolist(), "loss": float(RNG.uniform()), "seconds": 2.5 + i}
    for i in range(ordinary_app.CLIENTS)
]


def more(function: Any, change: Any = lambda number, own: own) -> Any:
    def answer(message: Message, context: Any) -> Message:
        content = function(message, context).content
        number = int(context.node_config["partition-id"])
        metrics = MetricRecord({**dict(content["metrics"]), **change(number, OWN[number])})
        arrays = {"arrays": content["arrays"]} if "arrays" in content else {}
        return Message(RecordDict({**arrays, "metrics": metrics}), reply_to=message)

    return answer


def played(strategy: Any, *mods: Any, change: Any = lambda number, own: own) -> Any:
    functions = {"train": more(ordinary_app.train, change), "evaluate": more(ordinary_app.evaluate, change)}
    return strategy.start(ordinary_app.grid(*mods, **functions), ordinary_app.initial(), num_rounds=2, timeout=0.5)


def secured(**options: Any) -> SecureStrategy:
    return SecureStrategy(FedAvg(), secure_aggregation(), largest_weight=64, poll=0.001, patience=0.05, **options)


def test_all_metrics_come_back_as_in_a_plain_run() -> None:
    ours, theirs = played(secured(), secure_mod), played(FedAvg())
    for found, plain in (
        (ours.train_metrics_clientapp, theirs.train_metrics_clientapp),
        (ours.evaluate_metrics_clientapp, theirs.evaluate_metrics_clientapp),
    ):
        for number, metrics in plain.items():
            assert set(found[number]) == set(metrics)
            assert len(metrics["per_class"]) == 10
            for name, value in metrics.items():
                np.testing.assert_allclose(found[number][name], value, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(ours.arrays["w"].numpy(), theirs.arrays["w"].numpy(), atol=1e-5)


@pytest.mark.parametrize("ring", [32, 64])
def test_lists_are_named_with_their_lengths_and_others_stay_with_their_client(ring: Any) -> None:
    bounds = {"bounds": 100.0} if ring == 32 else {}
    wanted = {"per_class": 10, "loss": 0}
    ours = played(secured(ring=ring, evaluate_metrics=wanted, train_metrics=None, **bounds), secure_mod)
    theirs = played(FedAvg())
    found = ours.evaluate_metrics_clientapp[2]
    assert set(found) == set(wanted)
    np.testing.assert_allclose(found["per_class"], theirs.evaluate_metrics_clientapp[2]["per_class"], atol=1e-5)
    np.testing.assert_allclose(
        ours.train_metrics_clientapp[2]["per_class"], theirs.train_metrics_clientapp[2]["per_class"], atol=1e-5
    )
    with pytest.raises(ConfigError, match="the length of 'per_class' in evaluate_metrics"):
        secured(evaluate_metrics={"per_class": -1})


def test_metrics_that_differ_from_client_to_client_are_none_and_the_model_is_averaged(caplog: Any) -> None:
    """The server learns a sum, from which the names of one client's metrics cannot be read."""

    def change(number: int, own: Any) -> Any:
        return {name: value for name, value in own.items() if number != 3 or name != "loss"}

    with caplog.at_level(logging.WARNING, "securefed.flower"):
        ours, theirs = played(secured(), secure_mod, change=change), played(FedAvg(), change=lambda *_: {})
    assert dict(ours.train_metrics_clientapp[1]) == {}
    assert "hold different metrics" in caplog.text and "train_metrics=(...)" in caplog.text
    np.testing.assert_allclose(ours.arrays["w"].numpy(), theirs.arrays["w"].numpy(), atol=1e-5)


def test_a_metric_that_is_not_finite_at_one_client_is_nan_and_its_round_is_not_void() -> None:
    def change(number: int, own: Any) -> Any:
        return {**own, "loss": float("nan") if number == 2 else own["loss"], "stamp": 1.7e9}

    strategy = secured()
    found = played(strategy, secure_mod, change=change).train_metrics_clientapp[1]
    assert np.isnan(found["loss"]) and np.isnan(found["stamp"]) and found["seconds"] > 0
    assert all(not entry.void for entry in strategy.history)


def test_a_reply_without_metrics_beside_its_weight_is_fine() -> None:
    def bare(message: Message, context: Any) -> Message:
        content = ordinary_app.train(message, context).content
        metrics = MetricRecord({"num-examples": content["metrics"]["num-examples"]})
        return Message(RecordDict({"arrays": content["arrays"], "metrics": metrics}), reply_to=message)

    grid = ordinary_app.grid(secure_mod, train=bare)
    strategy = SecureStrategy(
        FedAvg(fraction_evaluate=0.0), secure_aggregation(), largest_weight=64, poll=0.001, patience=0.05
    )
    result = strategy.start(grid, ordinary_app.initial(), num_rounds=1, timeout=0.5)
    assert isinstance(result.arrays, ArrayRecord) and dict(result.train_metrics_clientapp[1]) == {}
