"""Flower's strategies behind a secure sum: the plain run's model, sampling, exchanges, refusals, lost SuperNodes."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    Result,
)

from securefed.defenses import Identities, chain, clip, gaussian, secure_aggregation, skellam
from securefed.defenses._chain import as_defense
from securefed.errors import BudgetSpent, ConfigError, StorageError
from securefed.flower import SecureStrategy, SitePolicy, secure_mod
from securefed.parties._terms_parts import changes_updates
from tests.combinations import each_value, first_ones
from tests.flower import ordinary_app
from tests.flower.grid import FAILURES, LocalGrid, failing
from tests.flower.ordinary_app import CLIENTS, ROWS, initial

METRICS: dict[str, Any] = {"train_metrics": ("train_loss",), "evaluate_metrics": ("eval_loss",)}
QUICK: dict[str, Any] = {"poll": 0.001, "patience": 0.02}


def secured(inner: Any, defense: Any = None, **settings: Any) -> SecureStrategy:
    chosen = defense or secure_aggregation()
    weighted = {} if changes_updates(as_defense(chosen)) else {"largest_weight": 64}
    return SecureStrategy(inner, chosen, **(METRICS | QUICK | weighted | settings))


def run(strategy: Any, grid: LocalGrid, rounds: int = 3, timeout: float = 0.05) -> Result:
    random.seed(5)
    return strategy.start(grid, initial(), rounds, timeout)  # type: ignore[no-any-return]


def agree(ours: Result, theirs: Result, atol: float = 2e-6) -> None:
    """Up to the rounding of the sum, and of float32 in the plain run's mean."""
    assert list(ours.arrays) == list(theirs.arrays)
    for name, value in theirs.arrays.items():
        np.testing.assert_allclose(ours.arrays[name].numpy(), value.numpy(), atol=atol)
        assert ours.arrays[name].numpy().dtype == value.numpy().dtype
    for round, metrics in theirs.train_metrics_clientapp.items():
        assert ours.train_metrics_clientapp[round]["train_loss"] == pytest.approx(metrics["train_loss"], abs=1e-5)
    for round, metrics in theirs.evaluate_metrics_clientapp.items():
        assert dict(ours.evaluate_metrics_clientapp[round]) == pytest.approx(dict(metrics), abs=1e-5)


STRATEGIES = {
    "FedAvg": FedAvg,
    "FedProx": lambda **more: FedProx(proximal_mu=0.1, **more),
    "FedAvgM": lambda **more: FedAvgM(server_learning_rate=0.7, server_momentum=0.5, **more),
    "FedAdam": FedAdam,
    "FedYogi": FedYogi,
    "FedAdagrad": FedAdagrad,
    "client-side clipping": lambda **more: DifferentialPrivacyClientSideFixedClipping(FedAvg(**more), 0.0, 0.5, 5),
}


@pytest.mark.parametrize(("name", "fraction"), each_value(STRATEGIES, [1.0, 0.6]))
def test_a_strategy_on_the_mean_gives_the_plain_runs_model_and_metrics(name: str, fraction: float) -> None:
    mods = [fixedclipping_mod] if name == "client-side clipping" else []
    more = {"fraction_train": fraction, "fraction_evaluate": fraction}

    def made(mods: Any) -> LocalGrid:
        grid = ordinary_app.grid(*[mod for mod in mods if mod is not fixedclipping_mod])
        if fixedclipping_mod in mods:  # that mod belongs to training alone
            for node in grid.nodes.values():
                node.app = ordinary_app.app(*[mod for mod in mods if mod is not fixedclipping_mod])
                node.app._registered_funcs.pop("train.default")
                node.app.train(mods=[fixedclipping_mod])(ordinary_app.train)
        return grid

    theirs = run(STRATEGIES[name](**more), made(mods))
    strategy = secured(STRATEGIES[name](**more))
    grid = made([secure_mod, *mods])
    ours = run(strategy, grid)
    agree(ours, theirs)
    assert not grid.errors
    assert [len(entry.survivors) for entry in strategy.history] == [CLIENTS if fraction == 1 else 3] * 6
    # 3 clients of entries up to 2^20, in floats of 53 bits, times 2^20 over a total weight of 45 rows at least
    assert all(0 < entry.error < 3e-5 for entry in strategy.history)


def test_a_round_with_the_same_nodes_takes_two_exchanges_and_any_other_four() -> None:
    strategy = secured(FedAvg())
    run(strategy, ordinary_app.grid(secure_mod))
    assert [entry.exchanges for entry in strategy.history] == [4, 4, 2, 2, 2, 2]
    sampled = secured(FedAvg(fraction_train=0.6, fraction_evaluate=0.0))
    run(sampled, ordinary_app.grid(secure_mod), rounds=6)
    assert {entry.exchanges for entry in sampled.history} <= {2, 4}


def test_the_app_is_called_once_a_round_and_sees_its_own_records_alone() -> None:
    seen: list[Any] = []

    def train(message: Any, context: Any) -> Any:
        seen.append((sorted(message.content), sorted(context.state)))
        return ordinary_app.train(message, context)

    run(secured(FedAvg()), ordinary_app.grid(secure_mod, train=train), rounds=2)
    assert seen == [(["arrays", "config"], [])] * CLIENTS + [(["arrays", "config"], ["calls"])] * CLIENTS


def test_the_server_gets_one_reply_with_the_total_weight_and_no_other_metric() -> None:
    found: list[Any] = []

    class Watching(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            found.extend(given := list(replies))
            return super().aggregate_train(server_round, given)

    run(secured(Watching()), ordinary_app.grid(secure_mod), rounds=1)
    [reply] = found
    metrics = reply.content["metrics"]
    assert sorted(metrics) == ["num-examples", "train_loss"]  # not `round`, which no terms name
    assert metrics["num-examples"] == pytest.approx(sum(ROWS), abs=1e-3)


NEED_REPLIES = {
    "FedMedian": flower.FedMedian,
    "FedTrimmedAvg": flower.FedTrimmedAvg,
    "Krum": flower.Krum,
    "MultiKrum": flower.MultiKrum,
    "Bulyan": flower.Bulyan,
    "QFedAvg": lambda: flower.QFedAvg(client_learning_rate=0.1),
    "FedXgbBagging": flower.FedXgbBagging,
    "FedXgbCyclic": flower.FedXgbCyclic,
    "DifferentialPrivacyServerSideFixedClipping": lambda: flower.DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), 1.0, 1.0, 5
    ),
    "DifferentialPrivacyServerSideAdaptiveClipping": lambda: flower.DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(), 0.1, 5
    ),
    "DifferentialPrivacyClientSideAdaptiveClipping": lambda: flower.DifferentialPrivacyClientSideAdaptiveClipping(
        FedAvg(), 0.1, 5
    ),
}


@pytest.mark.parametrize("name", NEED_REPLIES)
def test_a_strategy_that_needs_single_replies_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} needs the single replies that a secure sum hides: it "):
        secured(NEED_REPLIES[name]())
    if name == "FedMedian":  # inside a wrapper too
        with pytest.raises(ConfigError, match="FedMedian"):
            secured(DifferentialPrivacyClientSideFixedClipping(NEED_REPLIES[name](), 1.0, 1.0, 5))


def test_every_strategy_of_flower_is_tested_or_refused() -> None:
    known = {*STRATEGIES, *NEED_REPLIES, "DifferentialPrivacyClientSideFixedClipping", "Result", "Strategy"}
    assert {name for name in dir(flower) if name[0].isupper()} <= known


def test_a_wrapper_that_discards_rounds_by_the_number_of_replies_is_refused() -> None:
    wrapper = DifferentialPrivacyClientSideFixedClipping(FedAvg(), 1.0, 1.0, 5)
    wrapper.accountant = object()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="DifferentialPrivacyClientSideFixedClipping with an accountant discards"):
        secured(wrapper)


@pytest.mark.parametrize(
    ("inner", "settings", "words"),
    [
        (FedAvg(), {"evaluate_metrics": ()}, "no metric is named"),
        (FedAvg(), {"evaluate_metrics": "eval_loss"}, "evaluate_metrics takes a tuple of names"),
        (FedAvg(), {"defense": chain(clip(1.0), skellam(1.0), secure_aggregation())}, "evaluate at the server"),
        (FedAvg, {}, "takes a strategy"),
    ],
)
def test_settings_that_do_not_fit_are_refused(inner: Any, settings: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        secured(inner, **settings)


def test_a_strategy_around_a_secure_one_sends_nothing() -> None:
    grid = ordinary_app.grid(secure_mod)
    around = DifferentialPrivacyClientSideFixedClipping(secured(FedAvg()), 0.0, 1.0, 5)
    with pytest.raises(ConfigError, match="SecureStrategy stands outermost"):
        run(around, grid)
    assert not grid.inbox


def test_a_strategy_that_sends_different_contents_or_single_messages_is_refused() -> None:
    class Personal(FedAvg):
        def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Any:
            messages = list(super().configure_train(server_round, arrays, config, grid))
            content = messages[0].content.copy()
            content["config"] = ConfigRecord({"server-round": server_round, "lr": 0.0})
            metadata = messages[0].metadata
            return [Message(content, metadata.dst_node_id, metadata.message_type), *messages[1:]]

    with pytest.raises(ConfigError, match="sends different messages"):
        run(secured(Personal()), ordinary_app.grid(secure_mod))

    class Direct(FedAvg):
        def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Any:
            grid.push_messages(super().configure_train(server_round, arrays, config, grid))

    with pytest.raises(ConfigError, match="send_and_receive"):
        run(secured(Direct()), ordinary_app.grid(secure_mod))


def test_under_noise_the_clients_clip_the_difference_and_the_budget_ends_the_run() -> None:
    defense = chain(clip(1.0), skellam(0.01), secure_aggregation())
    inner = FedAvg(fraction_evaluate=0.0)
    settings: dict[str, Any] = {"train_metrics": (), "evaluate_metrics": (), "local": ("seen",)}
    grid = ordinary_app.grid(secure_mod)
    result = run(secured(inner, defense, **settings), grid, rounds=1)
    assert not grid.errors
    assert 0 < np.linalg.norm(result.arrays["w"].numpy()) < 1.5  # one clipped step from zero, and a little noise
    assert result.arrays["seen"].numpy() == 0  # stays with the clients
    strong = chain(clip(1.0), skellam(1.0), secure_aggregation())
    spending = secured(inner, strong, epsilon=8.0, **settings)
    lasting = run(spending, ordinary_app.grid(secure_mod), rounds=30)
    done = len([entry for entry in spending.history if entry.survivors])
    assert 1 < done < 30 and spending.epsilon <= 8.0
    assert spending.stopped is not None and spending.stopped.startswith("BudgetSpent: after")
    assert sorted(lasting.train_metrics_clientapp) == list(range(1, done + 1))
    assert np.linalg.norm(lasting.arrays["w"].numpy()) > 0  # what was trained is handed over; it began at zero
    with pytest.raises(BudgetSpent):  # a start that trains nothing has nothing to hand over
        run(spending, spending._secured.grid, rounds=3)
    assert spending.arrays is not None


def test_a_run_that_ends_early_hands_over_its_model_whatever_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The strategy is not asked to wait for SuperNodes that are gone, and the same model is not tested again."""
    strategy, grid, tested = secured(FedAvg(min_available_nodes=CLIENTS)), ordinary_app.grid(secure_mod), []

    def test(number: int, arrays: Any) -> Any:
        tested.append(number)
        if number == 2:
            monkeypatch.setattr(strategy._secured._sums["train"], "open", Refusing())

    class Refusing:
        def __call__(self, *args: Any, **more: Any) -> Any:
            grid.nodes.clear()
            raise StorageError("the disk is full")

    random.seed(5)
    result = strategy.start(grid, initial(), 6, 0.05, evaluate_fn=test)
    assert strategy.stopped == "StorageError: the disk is full"
    assert tested == [0, 1, 2] and sorted(result.train_metrics_clientapp) == [1, 2]
    assert [entry.phase for entry in strategy.history] == ["train", "evaluate"] * 2
    agree(result, run(FedAvg(), ordinary_app.grid(), rounds=2))


def test_weights_that_sum_to_zero_void_their_round_alone() -> None:
    def train(message: Any, context: Any) -> Any:
        reply = ordinary_app.train(message, context)
        if next(iter(message.content.config_records.values()))["server-round"] == 2:
            reply.content["metrics"]["num-examples"] = 0
        return reply

    strategy = secured(FedAvg(fraction_evaluate=0.0), max_void=1)
    result = run(strategy, ordinary_app.grid(secure_mod, train=train), rounds=3)
    assert [bool(entry.survivors) for entry in strategy.history] == [True, False, True]
    assert "there is no mean" in strategy.history[1].void[0]
    assert sorted(result.train_metrics_clientapp) == [1, 3] and strategy.stopped is None


@pytest.mark.parametrize(
    ("defense", "largest", "says"),
    [
        (secure_aggregation(), None, "weighted by 'num-examples'.* give SecureStrategy largest_weight=1000"),
        (
            chain(clip(1.0), skellam(1.0), secure_aggregation()),
            64,
            "weighs the same; leave largest_weight",
        ),
    ],
)
def test_the_largest_weight_is_declared_where_updates_are_weighted(defense: Any, largest: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SecureStrategy(FedAvg(fraction_evaluate=0.0), defense, largest_weight=largest)


def test_a_site_with_more_examples_than_the_terms_allow_refuses_by_name() -> None:
    """Before anything is trained: sitting out would use up the exchanges that a site may sit out."""
    grid = ordinary_app.grid(secure_mod(SitePolicy(largest_weight=60)))
    with pytest.raises(ConfigError, match=r"weigh up to 60, and the terms allow 32; give .* largest_weight=60 or"):
        run(secured(FedAvg(), largest_weight=32), grid)
    run(secured(FedAvg(), largest_weight=60), ordinary_app.grid(secure_mod(SitePolicy(largest_weight=60))), rounds=1)
    for wrong in ("60", 0, float("nan"), True):
        with pytest.raises(ConfigError, match="largest_weight must be a positive, finite number"):
            SitePolicy(largest_weight=wrong)


def test_central_noise_is_added_by_the_server_alone() -> None:
    defense = chain(clip(1.0), gaussian(0.01), secure_aggregation())
    settings: dict[str, Any] = {"train_metrics": (), "evaluate_metrics": (), "local": ("seen",)}
    result = run(secured(FedAvg(fraction_evaluate=0.0), defense, **settings), ordinary_app.grid(secure_mod), rounds=2)
    assert np.isfinite(result.arrays["w"].numpy()).all()


def test_in_the_clear_only_where_the_site_says_so() -> None:
    plain = SitePolicy(defense="plain", least=1)
    theirs = run(FedAvg(), ordinary_app.grid())
    agree(run(secured(FedAvg(), chain()), ordinary_app.grid(secure_mod(plain))), theirs)
    with pytest.raises(ConfigError, match=r"5 refuse, for instance .*hides single uploads; plain does not"):
        run(secured(FedAvg(), chain()), ordinary_app.grid(secure_mod))


@pytest.mark.parametrize(("kind", "pinned"), first_ones(product(FAILURES, [False, True]), 2))
def test_a_supernode_that_failed_in_the_first_stage_is_asked_again_in_the_next_round(kind: str, pinned: bool) -> None:
    identities = Identities.generate(CLIENTS)
    grid, asked, victim = ordinary_app.grid(secure_mod), list[None](), 1014
    for party, node in enumerate(grid.nodes.values()) if pinned else ():
        own = identities.own[party]
        node.app = ordinary_app.app(secure_mod(SitePolicy(party=party, identity=own, identities=identities.public)))

    def fails(message: Message) -> bool:
        if message.metadata.dst_node_id != victim:
            return False
        asked.append(None)
        return len(asked) == 1

    failing(grid, kind, fails)
    defense = secure_aggregation(identities=Identities(identities.public) if pinned else None)
    strategy = secured(FedAvg(fraction_evaluate=0.0), defense)
    run(strategy, grid, rounds=3)
    assert [victim in entry.survivors for entry in strategy.history] == [False, True, True]
    assert [len(entry.survivors) for entry in strategy.history] == [CLIENTS - 1, CLIENTS, CLIENTS]
