"""Costs said before a run: exact counts, constants that are found again, refusals, and trees that sum right."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from typer.testing import CliRunner

from benchmarks import scaling
from benchmarks.exchange import exchange, uniform
from securefed import costs
from securefed.cli import app
from securefed.defenses.compose import chain
from securefed.defenses.differential_privacy import clip, skellam
from securefed.defenses.fixed_point import Quantise
from securefed.defenses.plain import Plain
from securefed.defenses.secure_aggregation import secure_aggregation
from securefed.errors import PlanError

COMPLETE, SPARSE = scaling.DEFENSES["complete"], scaling.DEFENSES["sparse"]


def plan(clients=10, entries=1000, defense=COMPLETE):
    return defense.plan(scaling.layout(entries), clients)


def test_sizes_are_those_of_the_plan() -> None:
    assert costs.Size.of(plan(), 2) == costs.Size(10, 10, 6, False, 1000, 4000, 2)
    packed = plan(defense=chain(Quantise(20), secure_aggregation()))
    assert costs.Size.of(packed).words == 8 * 334  # three to a 64-bit integer
    sparse = plan(100, defense=SPARSE)
    size = costs.Size.of(sparse, 10)
    assert (size.holders, size.shares, size.sparse) == (sparse.degree + 1, sparse.shares, True)
    assert size.pairs == pytest.approx(10 * sparse.degree * 90 / 99)


@pytest.mark.parametrize(("clients", "defense"), [(7, COMPLETE), (40, SPARSE)])
def test_bytes_are_exact(clients, defense) -> None:
    found = plan(clients, 300, defense)
    value = uniform(clients, 300)
    _, measured = exchange(defense.aggregation, found, lambda c: defense.encode(value(c), found))
    cost = costs.predict(found)
    assert cost.sent == sum(measured.sent.values())
    assert cost.received == pytest.approx(measured.received, rel=0.01)


def test_costs_grow_with_what_they_depend_on() -> None:
    base, lossy = costs.predict(plan()), costs.predict(plan(), 2)
    assert lossy.server_cpu > base.server_cpu
    for more in (plan(clients=20), plan(entries=2_000_000)):
        cost = costs.predict(more)
        assert cost.client_cpu > base.client_cpu
        assert cost.server_cpu > base.server_cpu
        assert cost.server_memory > base.server_memory
    complete, sparse = (costs.predict(plan(100, 10**6, d)) for d in (COMPLETE, SPARSE))
    assert sparse.client_cpu < complete.client_cpu / 2


def test_kept_constants_are_those_of_the_model_and_none_is_negative() -> None:
    kept = costs.figures()
    assert {q: set(terms) for q, terms in costs.TERMS.items()} == {q: set(c) for q, c in kept["constants"].items()}
    assert all(value >= 0 for terms in kept["constants"].values() for value in terms.values())
    assert kept["checked"]


def test_a_fit_finds_the_constants_that_made_the_points() -> None:
    true = {q: {name: 1e-6 * (k + 1) for k, name in enumerate(terms)} for q, terms in costs.TERMS.items()}
    points = [p for p in scaling.points() if p.entries <= 10**6]
    measured = [asdict(p) | asdict(costs.predict(p.plan(), p.lost, true)) for p in points]
    model = scaling.fit(measured)
    for point in points:
        again, exact = (costs.predict(point.plan(), point.lost, c) for c in (model["constants"], true))
        assert again.client_cpu == pytest.approx(exact.client_cpu, rel=1e-4)
        assert again.server_cpu == pytest.approx(exact.server_cpu, rel=1e-4)
    assert {c["setting"] for c in model["checked"]} == {p.name for p in points if p.check}
    assert all(abs(c["off"]) < 1e-3 for c in model["checked"])
    wrong = [m | {"server_cpu": m["server_cpu"] * m["clients"]} for m in measured]  # control: not of this model
    assert scaling.fit(wrong)["error"]["server_cpu"]["largest"] > 0.05


@pytest.mark.parametrize(("clients", "members"), [(12, 4), (15, 4)])
def test_a_tree_covers_all_clients_and_plans_their_whole_sum(clients, members) -> None:
    found = costs.tree(COMPLETE, scaling.layout(10), clients, members)
    assert found.levels[-1].groups == 1
    below = clients
    for level in found.levels:
        assert level.groups * level.plan.clients >= below
        assert level.plan.tensors[0].max_clients >= clients
        below = level.groups
    assert found.path_cpu < found.aggregators_cpu + found.levels[0].cost.client_cpu


def test_a_simulated_tree_sums_exactly() -> None:
    run = scaling.simulate_tree("complete", 12, 4, 50)
    assert run["aggregators_cpu"] > run["root_cpu"] > 0


def test_what_cannot_be_predicted_is_refused() -> None:
    with pytest.raises(PlanError, match="secure aggregation"):
        costs.predict(plan(defense=chain(Quantise(), Plain())))
    with pytest.raises(PlanError, match="survives 0 to 4"):
        costs.predict(plan(), 5)
    with pytest.raises(PlanError, match="the stages"):
        costs.predict(replace(plan(), stages=("keys", "upload")))
    with pytest.raises(PlanError, match="fewer than 3"):
        costs.tree(COMPLETE, scaling.layout(10), 100, 2)
    private = chain(clip(1.0), skellam(1.0), secure_aggregation())
    with pytest.raises(PlanError, match="not for a tree"):
        costs.tree(private, scaling.layout(10), 100, 10)
    assert costs.words(plan(defense=chain(Quantise(), Plain()))) == []


def test_the_command_prints_costs_and_trees() -> None:
    arguments = ["plan", "ssi", "secure_aggregation", "--clients", "20", "--tree", "1000000"]
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}).output
    assert "predicted CPU a round: client" in shown
    assert "50,000 x 20 -> 2,500 x 20" in shown
    assert "predicted" not in CliRunner().invoke(app, ["plan", "ssi", "plain"]).output
    refused = CliRunner().invoke(app, ["plan", "ssi", "plain", "--tree", "100"])
    assert refused.exit_code == 2
