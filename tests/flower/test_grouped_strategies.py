"""Flower's robust strategies behind secure sums of groups: FedMedian, FedTrimmedAvg, Krum and MultiKrum."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg, Krum, MultiKrum, QFedAvg

from securefed.defenses import Identities, grouped, secure_aggregation
from securefed.defenses._grouped_sums.drawing import groups_of
from securefed.defenses._grouped_sums.robust import robust_mean
from securefed.errors import ConfigError, PlanError
from securefed.flower import SecureStrategy, SitePolicy, secure_mod
from tests.flower.grid import LocalGrid, Node

CLIENTS = 15
PINNED = Identities.generate(CLIENTS)
STRATEGIES: dict[str, tuple[Any, str]] = {
    "FedMedian": (FedMedian, "median"),
    "FedTrimmedAvg": (FedTrimmedAvg, "trimmed_mean"),
    "Krum": (Krum, "krum"),
    "MultiKrum": (MultiKrum, "multi_krum"),
}
MOVES = np.random.default_rng(7).normal(size=(CLIENTS, 4))
LIAR = 11


def train(message: Message, context: Context) -> Message:
    """Move the model by the client's own vector; the liar's app returns a model far away."""
    number = int(context.node_config["partition-id"])
    model = message.content["arrays"]["w"].numpy()
    moved = model + MOVES[number] if number != LIAR else np.full(4, 900.0)
    metrics = MetricRecord({"num-examples": 10})
    content = RecordDict({"arrays": ArrayRecord({"w": Array(moved)}), "metrics": metrics})
    return Message(content, reply_to=message)


def grid(*, active: bool = False) -> LocalGrid:
    def node(number: int) -> Node:
        policy = SitePolicy(party=number, identity=PINNED.own[number], identities=PINNED.public)
        app = ClientApp(mods=[secure_mod(policy) if active else secure_mod])
        app.train()(train)
        return Node(app, {"partition-id": number})

    return LocalGrid({100 + number: node(number) for number in range(CLIENTS)})


def strategy(inner: Any, aggregator: Any, masking: Any = None, **more: Any) -> SecureStrategy:
    defense = grouped(masking or secure_aggregation(), groups=5, aggregator=aggregator)
    made = inner(fraction_evaluate=0.0, **more)
    return SecureStrategy(made, defense, bounds=1000.0, poll=0.001, patience=0.02)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_robust_strategy_runs_and_gives_the_robust_mean_of_the_groups(name: str) -> None:
    """With identities the groups are known in advance; the liar's group is the one that the estimator stands."""
    inner, aggregator = STRATEGIES[name]
    made = strategy(inner, aggregator, secure_aggregation(identities=Identities(PINNED.public)))
    random.seed(5)
    nodes = grid(active=True)
    result = made.start(nodes, ArrayRecord({"w": Array(np.zeros(4))}), 2, 0.05)
    assert not nodes.errors
    model = np.zeros(4)
    for _ in range(2):
        sent = model + MOVES
        sent[LIAR] = 900.0
        groups = groups_of(PINNED, "", CLIENTS, 5)
        model = robust_mean(np.stack([sent[list(group)].mean(axis=0) for group in groups]), aggregator, 1)
    np.testing.assert_allclose(result.arrays["w"].numpy(), model, atol=1e-6)
    assert np.abs(model).max() < 10
    assert [len(entry.survivors) for entry in made.history] == [CLIENTS] * 2


def test_without_identities_the_groups_are_of_the_run() -> None:
    made = strategy(FedMedian, "median")
    random.seed(5)
    result = made.start(grid(), ArrayRecord({"w": Array(np.zeros(4))}), 1, 0.05)
    assert np.abs(result.arrays["w"].numpy()).max() < 10


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_robust_strategy_is_refused_without_groups_and_under_another_estimator(name: str) -> None:
    inner, aggregator = STRATEGIES[name]
    words = f'^{name} needs the single replies .* aggregator="{aggregator}"\\) as the defence'
    with pytest.raises(ConfigError, match=words):
        SecureStrategy(inner(fraction_evaluate=0.0), secure_aggregation(), largest_weight=64)
    for other in {"median", "trimmed_mean", "krum", "multi_krum", "geometric_median", "mean"} - {aggregator}:
        with pytest.raises(ConfigError, match=words):
            strategy(inner, other)
    with pytest.raises(ConfigError, match=r"^QFedAvg needs the single replies"):
        strategy(QFedAvg, aggregator, client_learning_rate=0.1)


def test_a_strategy_on_the_mean_gets_the_robust_mean_as_well() -> None:
    strategy(FedAvg, "geometric_median")


def test_weights_metrics_and_samples_of_the_supernodes_do_not_go_with_groups() -> None:
    defense = grouped(secure_aggregation(), groups=5)
    with pytest.raises(ConfigError, match="every client weighs the same; leave largest_weight out"):
        SecureStrategy(FedMedian(fraction_evaluate=0.0), defense, largest_weight=64)
    with pytest.raises(ConfigError, match="metrics cannot travel beside the update"):
        SecureStrategy(FedMedian(), defense, evaluate_metrics=("loss",))
    with pytest.raises(PlanError, match="a sum needs at least 15"):
        SecureStrategy(FedMedian(fraction_evaluate=0.0), defense, clients=14)
    sampled = strategy(FedMedian, "median", fraction_train=0.9)
    with pytest.raises(ConfigError, match="groups are drawn over all 20 clients of a run"):
        sampled.start(
            LocalGrid({100 + n: Node(ClientApp(mods=[secure_mod]), {"partition-id": n}) for n in range(20)}),
            ArrayRecord({"w": Array(np.zeros(4))}), 1, 0.05,
        )  # fmt: skip


def test_a_site_counts_the_clients_of_one_group() -> None:
    from securefed.parties import SumTerms  # noqa: PLC0415

    terms = SumTerms.like({"w": np.zeros(2)}, clients=15, defense=grouped(secure_aggregation(), groups=5))
    SitePolicy(least=3).check(terms, 0)
    with pytest.raises(ConfigError, match="sums over at least 4 clients, and these terms open sums over 3"):
        SitePolicy(least=4).check(terms, 0)
    with pytest.raises(ConfigError, match="uploads under secure_aggregation only"):
        SitePolicy(defense="secure_aggregation").check(terms, 0)
