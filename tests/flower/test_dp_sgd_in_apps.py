"""DP-SGD in the local step of a Flower app: the site's ledger decides after training, before the model is sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from securefed import Ledger, Limits
from securefed._runtime import absence
from securefed.defenses import secure_aggregation
from securefed.errors import BudgetSpent, ConfigError, RoundVoid
from securefed.flower import SecureStrategy, SitePolicy, secure_mod
from tests.flower.grid import LocalGrid, Node
from tests.test_dp_sgd_ledger import CLIENTS, EXAMPLE, NOISE, RATE, RECORD, ROWS, STEPS, Site, renyi

Train = Callable[[Site], Any]
"""Trains a site's model, and returns the record of the training that its app's reply holds."""


def named(training: Any) -> dict[str, Any]:
    return {"dp-sgd": ConfigRecord({"training": training.number})}


def honest(site: Site) -> dict[str, Any]:
    training = site.reserve()
    site.train()
    site.ledger.record(training)
    return named(training)


def beyond(site: Site) -> dict[str, Any]:
    """It counts more steps than the limit allows, and sends all the same."""
    training = site.reserve()
    site.train(STEPS + 1)
    with pytest.raises(BudgetSpent):
        site.ledger.record(training)
    return named(training)


def unrecorded(site: Site) -> dict[str, Any]:
    training = site.reserve()
    site.train()
    return named(training)


def unnamed(site: Site) -> dict[str, Any]:
    honest(site)
    return {}


def made_up(site: Site) -> dict[str, Any]:
    return {"dp-sgd": ConfigRecord({"training": 7})}


def listed(site: Site) -> dict[str, Any]:
    return {"dp-sgd": ConfigRecord({"training": [honest(site)["dp-sgd"]["training"]]})}


def client_app(site: Site, mod: Any, train: Train) -> ClientApp:
    app = ClientApp(mods=[mod])

    @app.train()
    def local(message: Message, context: Any) -> Message:
        more = train(site)
        model = {name: Array(value.detach().numpy()) for name, value in site.model.state_dict().items()}
        content = {"arrays": ArrayRecord(model), "metrics": MetricRecord({"num-examples": ROWS}), **more}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def score(message: Message, context: Any) -> Message:
        raise AssertionError("it is not called")

    return app


def play(
    sites: list[Site], mods: list[Any], trains: dict[int, Train], rounds: int = 1, config: Any = None, **more: Any
) -> SecureStrategy:
    apps = [client_app(site, mod, trains.get(i, honest)) for i, (site, mod) in enumerate(zip(sites, mods, strict=True))]
    grid = LocalGrid({10 + i: Node(made, {"partition-id": i} | (config or {})) for i, made in enumerate(apps)})
    strategy = SecureStrategy(
        FedAvg(fraction_evaluate=more.pop("evaluate", 0.0), min_train_nodes=3, min_available_nodes=3),
        secure_aggregation(), largest_weight=ROWS, poll=0.001, patience=0.02, max_void=1, **more,
    )  # fmt: skip
    start = ArrayRecord({name: Array(value.numpy()) for name, value in EXAMPLE.items()})
    strategy.start(grid, start, rounds, 0.05)
    return strategy


def private(site: Site) -> Any:
    return secure_mod(SitePolicy(ledger=site.ledger, dp_sgd=True))


def test_a_model_that_the_app_trained_by_dp_sgd_costs_its_training_alone(tmp_path: Path) -> None:
    sites = [Site(tmp_path, i) for i in range(CLIENTS)]
    strategy = play(sites, [private(site) for site in sites], {}, rounds=2)
    assert [len(entry.survivors) for entry in strategy.history] == [CLIENTS, CLIENTS]
    for site in sites:
        usage = Ledger.open(site.path, site.limits).spent
        assert usage.exchanges == 2
        assert usage.epsilon == pytest.approx(renyi(NOISE, RATE, 2 * STEPS), abs=1e-9)


def test_the_rule_stands_in_a_site_s_file_and_the_limits_in_the_ledger(tmp_path: Path) -> None:
    sites = [Site(tmp_path, i) for i in range(CLIENTS)]
    for i in range(CLIENTS):
        (tmp_path / f"{i}.toml").write_text(f'ledger = "{i}.ledger"\ndp_sgd = true\n')
    mods = [secure_mod(SitePolicy.load(tmp_path / f"{i}.toml")) for i in range(CLIENTS)]
    assert SitePolicy.load(tmp_path / "0.toml").ledger.limits == RECORD  # type: ignore[union-attr]
    strategy = play(sites, mods, {})
    assert [len(entry.survivors) for entry in strategy.history] == [CLIENTS]
    assert sites[1].epsilon == pytest.approx(renyi(NOISE, RATE, STEPS), abs=1e-9)


def test_without_the_rule_the_exchange_has_no_finite_epsilon(tmp_path: Path) -> None:
    """The control: a limit refuses the exchange, and without one the ledger says infinity."""
    sites = [Site(tmp_path, i) for i in range(CLIENTS)]
    with pytest.raises(RoundVoid, match="allows no further exchange"):
        play(sites, [secure_mod(SitePolicy(ledger=site.ledger)) for site in sites], {})
    sites = [Site(tmp_path / "unlimited", i, Limits(unit="record")) for i in range(CLIENTS)]
    play(sites, [secure_mod(SitePolicy(ledger=site.ledger)) for site in sites], {})
    assert sites[0].epsilon == math.inf


@pytest.mark.parametrize("train", [beyond, unrecorded, unnamed, made_up, listed])
def test_a_model_whose_steps_the_ledger_does_not_count_is_not_sent(
    train: Train, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client sits out, so that the round is void; the server does not learn which one it was."""
    limits = Limits(epsilon=renyi(NOISE, RATE, STEPS) * 1.01, unit="record")
    sites = [Site(tmp_path, i, limits) for i in range(CLIENTS)]
    mods = [private(site) for site in sites]
    absence.flush()
    with pytest.raises(RoundVoid, match="sat out"):
        play(sites, mods, {1: train})
    absence.flush()
    words = {
        beyond: "with this training the ledger would stand at", unrecorded: "not counted yet",
        made_up: "must be a training of this client's ledger",
    }  # fmt: skip
    assert words.get(train, "names no training by DP-SGD") in caplog.text
    assert sites[0].epsilon == pytest.approx(renyi(NOISE, RATE, STEPS), abs=1e-9)


@pytest.mark.parametrize("more", [{"train_metrics": ("loss",)}, {"evaluate": 1.0}])
def test_terms_that_sum_anything_beside_the_model_are_refused_by_name(tmp_path: Path, more: Any) -> None:
    sites = [Site(tmp_path, i) for i in range(CLIENTS)]
    mods = [private(site) for site in sites]
    if "train_metrics" in more:
        with pytest.raises(ConfigError, match="make SecureStrategy without train_metrics, around a strategy with"):
            play(sites, mods, {}, **more)
        assert all(site.epsilon == 0 for site in sites)
        return
    strategy = play(sites, mods, {}, evaluate_metrics=("loss",), **more)
    assert "fraction_evaluate=0.0" in str(strategy.stopped)
    assert all(site.epsilon == pytest.approx(renyi(NOISE, RATE, STEPS), abs=1e-9) for site in sites)


def test_the_rule_needs_a_ledger() -> None:
    with pytest.raises(ConfigError, match="dp_sgd needs the ledger"):
        SitePolicy(dp_sgd=True)
    with pytest.raises(ConfigError, match="dp_sgd must be true or false"):
        SitePolicy(dp_sgd="yes")  # type: ignore[arg-type]
