"""Apps of the shapes of Flower's examples run secured from their defaults, or stop before they train."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from securefed.defenses import secure_aggregation
from securefed.errors import ConfigError, PlanError
from securefed.flower import SecureStrategy, secure_mod
from tests.flower.grid import LocalGrid
from tests.flower.quickstarts import ADVANCED, LOGGED, MODS, PYTORCH, QUICKSTARTS, RUN_CONFIG, Quickstart, torch_train

ROUNDS = 2


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def secured(app: Quickstart, **numbers: Any) -> SecureStrategy:
    return SecureStrategy(
        app.strategy(**numbers), secure_aggregation(), dict(RUN_CONFIG), largest_weight=64, poll=0.001, patience=0.05,
        **app.metrics,
    )  # fmt: skip


def started(strategy: Any, app: Quickstart, grid: LocalGrid) -> Any:
    random.seed(3)
    config = ConfigRecord({"lr": RUN_CONFIG["learning-rate"]})
    return strategy.start(grid, app.initial(), num_rounds=ROUNDS, timeout=0.1, train_config=config)


@pytest.mark.parametrize("name", QUICKSTARTS)
def test_an_example_runs_secured_from_its_defaults_with_enough_nodes(name: str) -> None:
    app, nodes = QUICKSTARTS[name], 6
    strategy = secured(app)
    LOGGED.clear()
    ours = started(strategy, app, app.grid(secure_mod, *app.mods, clients=nodes))
    logged = len(LOGGED)
    theirs = started(app.strategy(), app, app.grid(*app.mods, clients=nodes))
    assert all(entry.survivors for entry in strategy.history) and len(strategy.history) == 2 * ROUNDS
    assert list(ours.arrays) == list(theirs.arrays)
    for key, value in theirs.arrays.items():
        mean = np.rint(value.numpy()) if key.endswith("num_batches_tracked") else value.numpy()  # of integers: rounded
        np.testing.assert_allclose(ours.arrays[key].numpy(), mean, atol=1e-4)
    for number, scores in theirs.evaluate_metrics_clientapp.items():
        assert dict(ours.evaluate_metrics_clientapp[number]) == pytest.approx(dict(scores), abs=1e-3)
    assert len(LOGGED) == 2 * logged  # the author's mod sees what it sees without


@pytest.mark.parametrize("name", QUICKSTARTS)
def test_an_example_stops_before_it_trains_with_flowers_two_simulated_nodes(name: str) -> None:
    app = QUICKSTARTS[name]
    with pytest.raises(PlanError, match=r"min_train_nodes=3, .*min_available_nodes=3, .*--num-supernodes 3"):
        started(secured(app), app, app.grid(secure_mod, *app.mods, clients=2))


@pytest.mark.parametrize("app", [PYTORCH, MODS])
def test_half_of_four_nodes_are_too_few_to_evaluate(app: Quickstart) -> None:
    with pytest.raises(PlanError, match=r"evaluate: the strategy samples 2 of 4 .*min_evaluate_nodes=3"):
        started(secured(app), app, app.grid(secure_mod, *app.mods, clients=4))


def test_a_strategy_that_configures_training_itself_is_checked_by_what_it_sends() -> None:
    with pytest.raises(PlanError, match=r"train: the strategy samples 2 of 4 SuperNodes"):
        started(secured(ADVANCED), ADVANCED, ADVANCED.grid(secure_mod, clients=4))


def test_the_mod_of_the_example_before_secure_mod_ends_the_run_with_the_order() -> None:
    LOGGED.clear()
    with pytest.raises(ConfigError, match=r"mods=\[secure_mod, \.\.\.\]"):
        started(secured(MODS), MODS, MODS.grid(*MODS.mods, secure_mod, clients=6))
    assert not LOGGED


def test_opacus_and_compiled_models_need_no_other_names() -> None:
    """Prefixes that `GradSampleModule`, DDP and `torch.compile` put before all names of a state_dict."""

    def train(message: Message, context: Any) -> Message:
        content = torch_train(message, context).content
        arrays = ArrayRecord({f"_module.{name}": value for name, value in content["arrays"].items()})
        return Message(RecordDict({"arrays": arrays, "metrics": content["metrics"]}), reply_to=message)

    wrapped = Quickstart(train, PYTORCH.evaluate, PYTORCH.initial, PYTORCH.strategy, PYTORCH.metrics)
    ours = started(secured(wrapped), wrapped, wrapped.grid(secure_mod, clients=6))
    theirs = started(secured(PYTORCH), PYTORCH, PYTORCH.grid(secure_mod, clients=6))
    for key, value in theirs.arrays.items():
        np.testing.assert_allclose(ours.arrays[key].numpy(), value.numpy(), atol=1e-5)
