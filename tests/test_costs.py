"""Costs said before a run: exact counts, constants that are found again, refusals, and trees that sum right."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.pages import scaling, scaling_points
from benchmarks.pages.scaling_points import Encrypted, Point, layout, masking
from benchmarks.peers.exchange import Parties, exchange, uniform
from securefed import _costs as costs
from securefed._commands.cli import app
from securefed._costs import encryption_terms
from securefed._costs.masking_terms import MaskingCounts
from securefed._costs.prediction import CountedExchange
from securefed.defenses._chain import chain
from securefed.defenses._differential_privacy import clip, skellam
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._homomorphic import KeyHolder, paillier
from securefed.defenses._homomorphic.paillier_protocol import InsecurePaillier
from securefed.defenses._plain import Plain
from securefed.defenses._secure_aggregation import Identities, secure_aggregation
from securefed.errors import PlanError
from tests.combinations import first_ones

COMPLETE, SPARSE = masking("complete"), masking("sparse")
CHOICES = [chosen for count in range(4) for chosen in combinations(scaling_points.OPTIONS, count)]


def plan(clients=10, entries=1000, defense=COMPLETE):
    return defense.plan(layout(entries), clients)


def cost(clients=10, entries=1000, defense=COMPLETE, lost=0):
    return costs.predict(defense, plan(clients, entries, defense), lost)


def test_sizes_are_those_of_the_plan() -> None:
    indicator = 2  # entries of 32 bits
    assert MaskingCounts.of(plan(), 2) == MaskingCounts(10, 10, 6, 6, False, 1000 + indicator, 4008, 2)
    packed = plan(defense=chain(Quantise(20), secure_aggregation()))
    assert MaskingCounts.of(packed).upload_bytes == 8 * 335  # three to a 64-bit integer, and the indicator
    sparse = plan(100, defense=SPARSE)
    size = MaskingCounts.of(sparse, 10)
    assert (size.holders, size.shares, size.sparse) == (sparse.masking.degree + 1, sparse.masking.shares, True)
    assert size.pairs == pytest.approx(10 * sparse.masking.degree * 90 / 99)
    everything = MaskingCounts.of(plan(20, defense=masking("complete", scaling_points.OPTIONS, 20)), resumed=True)
    assert (everything.signed, everything.verified, everything.resumed, everything.dealers) == (True, True, True, 16)
    encrypted = encryption_terms.EncryptionCounts.of(plan(defense=chain(paillier())), 2048, 1)
    assert (encrypted.ciphertexts, encrypted.added) == (16, 9 * 16)  # 63 values to a plaintext


@pytest.mark.parametrize("options", CHOICES, ids=lambda options: "+".join(options) or "plain")
@pytest.mark.parametrize("lost", first_ones([5, 0, 2]))
def test_bytes_are_exact_with_every_option(options, lost) -> None:
    defense = masking("complete", options, 16 if "signed" in options else 0)  # of 16 clients all deal the sum's key
    found, value, prepared = plan(16, 300, defense), uniform(16, 300), "pipelined" in options
    _, measured = exchange(
        defense.aggregation, found, lambda c: defense.encode(value(c), found), lost, prepared=prepared
    )
    said = costs.predict(defense, found, lost)
    assert said.received == pytest.approx(measured.received, rel=1e-9)
    assert sum(measured.sent.values()) == said.sent
    assert (said.sent < found.upload_bytes) == (prepared and lost > 0)  # fewer shares to deal for the next exchange


@pytest.mark.parametrize("options", [("signed",), ("signed", "pipelined")])
@pytest.mark.parametrize("lost", [0, 5])
def test_every_signature_that_is_checked_is_counted(options, lost, monkeypatch) -> None:
    """A prepared exchange checks signatures of the next one's keys, which clients that are lost do not send."""
    defense = masking("complete", options, 16)
    found, value, checked = plan(16, 50, defense), uniform(16, 50), Counter[str]()
    real, steps = Identities.verify, {name: getattr(Parties, name) for name in ("_ask", "_serve")}
    at = [""]

    def verify(*given: Any) -> None:
        checked[at[0]] += 1
        real(*given)

    def within(name: str) -> Any:
        def step(parties: Any, *given: Any) -> Any:
            at[0] = f"{parties.number}{name}"
            return steps[name](parties, *given)

        return step

    monkeypatch.setattr(Identities, "verify", verify)
    for name in steps:
        monkeypatch.setattr(Parties, name, within(name))
    prepared = "pipelined" in options
    exchange(defense.aggregation, found, lambda c: defense.encode(value(c), found), lost, prepared=prepared)
    counts = CountedExchange.of(defense, found, lost).counts
    last = int(prepared)  # the number of the exchange that counts
    assert checked[f"{last}_serve"] == counts["server_cpu"]["signature"]
    # without preparation the lost clients check the keys' signatures too before they are lost
    clients = (16 - lost) * counts["client_cpu"]["signature"] + (0 if prepared else 16 * lost)
    assert checked[f"{last}_ask"] == clients


def test_bytes_are_exact_on_a_sparse_graph() -> None:
    found, value = plan(40, 300, SPARSE), uniform(40, 300)
    _, measured = exchange(SPARSE.aggregation, found, lambda c: SPARSE.encode(value(c), found))
    assert costs.predict(SPARSE, found).sent == sum(measured.sent.values())
    assert costs.predict(SPARSE, found).received == pytest.approx(measured.received, rel=1e-9)


def test_bytes_are_exact_under_paillier() -> None:
    """The formula does not depend on the key's length; the model is for keys that are long enough."""
    scheme = InsecurePaillier()
    defense, value = chain(scheme), uniform(4, 100)
    found = plan(4, 100, defense)
    _, measured = exchange(
        scheme, found, lambda c: defense.encode(value(c), found), helper=KeyHolder.generate(scheme.bits)
    )
    assert found.upload_bytes == sum(measured.sent.values())
    size = encryption_terms.EncryptionCounts.of(found, scheme.bits)
    kept = costs.figures()["models"]["paillier(2048, half)"]["received"]
    assert measured.received == pytest.approx(size.key * kept["byte of the key"], rel=1e-9)


def test_costs_grow_with_what_they_depend_on() -> None:
    base = cost()
    assert cost(lost=2).server_cpu > base.server_cpu
    for more in (cost(clients=20), cost(entries=2_000_000)):
        assert more.client_cpu > base.client_cpu
        assert more.server_cpu > base.server_cpu
        assert more.server_memory > base.server_memory
    assert cost(100, 10**6, SPARSE).client_cpu < cost(100, 10**6).client_cpu / 2
    half, short = (cost(10, 10**4, chain(paillier(2048, noise))) for noise in ("half", "short"))
    assert base.client_cpu < short.client_cpu < half.client_cpu / 1.5
    assert half.helper_cpu > 0 == base.helper_cpu
    assert cost(10, 10**4, chain(paillier(3072))).client_cpu > half.client_cpu


@pytest.mark.parametrize("option", scaling_points.OPTIONS)
def test_every_option_costs_something(option) -> None:
    plain, more = cost(50, 10**5), cost(50, 10**5, masking("complete", (option,), 50 if option == "signed" else 0))
    assert more.client_cpu > plain.client_cpu
    assert more.received > plain.received or option == "pipelined"


def test_kept_constants_are_those_of_the_model_and_none_is_negative() -> None:
    kept = costs.figures()
    assert set(kept["models"]) == set(costs.MODELS)
    for model, quantities in costs.MODELS.items():
        found = kept["models"][model]
        assert {q: set(terms) for q, terms in quantities.items()} == {q: set(c) for q, c in found.items()}
        assert all(value >= 0 for terms in found.values() for value in terms.values())
    checks = {point.name: scaling_points.sized(point).model for point in scaling_points.CHECKS}
    checked = {c["setting"] for c in kept["checked"]}
    assert checked <= set(checks)
    assert {checks[name] for name in checked} == set(costs.MODELS)  # every model at a size that was not fitted


def made_of(point, true):
    """The point as if it had been measured where the model and the constants `true` hold."""
    counts = scaling_points.sized(point)
    of = {q: sum(true[counts.model][q][t] * count for t, count in c.items()) for q, c in counts.counts.items()}
    return {**scaling_points.kept(point), **of, "sent": point.plan.upload_bytes, "load": 1.0}


def test_a_fit_finds_the_constants_that_made_the_points() -> None:
    true = {
        model: {q: {name: 1e-6 * (k + 1) for k, name in enumerate(terms)} for q, terms in quantities.items()}
        for model, quantities in costs.MODELS.items()
    }
    points = [p for p in scaling_points.points() if p.entries <= 10**6]
    measured = [made_of(point, true) for point in points]
    model = scaling.fit(measured)
    for point in points:
        again, exact = (costs.predict(point.defense, point.plan, point.lost, c) for c in (model["models"], true))
        assert again.client_cpu == pytest.approx(exact.client_cpu, rel=1e-4)
        assert again.server_cpu == pytest.approx(exact.server_cpu, rel=1e-4)
    assert {c["setting"] for c in model["checked"]} == {p.name for p in points if p.check}
    assert all(abs(c["off"]) < 1e-3 for c in model["checked"])
    wrong = [m | {"server_cpu": m["server_cpu"] * m["clients"]} for m in measured]  # control: not of this model
    assert scaling.fit(wrong)["errors"]["secure_aggregation"]["server_cpu"]["largest"] > 0.05


@pytest.mark.parametrize("point", [Point("complete", 5, 20, 1, ("pipelined",)), Encrypted(2048, "half", 3, 20, 1)])
def test_a_point_is_measured_kept_and_known_again(point) -> None:
    content = scaling_points.measured(point)
    assert scaling_points.restored(content) == point
    assert content["client_cpu"] > 0
    assert content["received"] > 0


@pytest.mark.parametrize(("clients", "members"), [(12, 4), (15, 4)])
def test_a_tree_covers_all_clients_and_plans_their_whole_sum(clients, members) -> None:
    found = costs.aggregator_tree(COMPLETE, layout(10), clients, members)
    assert found.levels[-1].groups == 1
    below, room = clients, 1
    for level in found.levels:
        assert level.groups * level.plan.clients >= below
        assert level.plan.tensors[0].max_clients >= clients
        assert level.plan.tensors[0].bound == 8.0 * room
        below, room = level.groups, room * level.plan.clients
    assert found.path_cpu < found.aggregators_cpu + found.levels[0].cost.client_cpu


@pytest.mark.parametrize("clients", [10**4, 10**5, 10**6])
def test_trees_of_every_kind_are_planned_for_a_million(clients) -> None:
    for defense in (SPARSE, masking("sparse", scaling_points.OPTIONS, 100), chain(paillier(2048, "short"))):
        found = costs.aggregator_tree(defense, layout(10**5), clients, 100, lost=0.1)
        assert found.levels[0].groups * found.levels[0].plan.clients == clients
        assert found.busiest_cpu < found.aggregators_cpu


@pytest.mark.parametrize("options", [(), scaling_points.OPTIONS])
def test_a_simulated_tree_sums_exactly(options) -> None:
    run = scaling.simulate_tree("complete", options, 12, 4, 50)
    assert run["aggregators_cpu"] > run["root_cpu"] > 0


def test_what_cannot_be_predicted_is_refused() -> None:
    plain = chain(Quantise(), Plain())
    with pytest.raises(PlanError, match="costs are known for secure_aggregation, paillier"):
        costs.predict(plain, plan(defense=plain))
    with pytest.raises(PlanError, match="survives 0 to 4"):
        cost(lost=5)
    with pytest.raises(PlanError, match="survives 0 to 4"):
        cost(defense=chain(paillier()), lost=5)
    with pytest.raises(PlanError, match="not a plan of secure aggregation"):
        costs.predict(COMPLETE, plan(defense=plain))
    with pytest.raises(PlanError, match=r"not for paillier\(2048, full\)"):
        cost(defense=chain(paillier(randomness="full")))
    with pytest.raises(PlanError, match="fewer than 3"):
        costs.aggregator_tree(COMPLETE, layout(10), 100, 2)
    private = chain(clip(1.0), skellam(1.0), secure_aggregation())
    with pytest.raises(PlanError, match="not for a tree"):
        costs.aggregator_tree(private, layout(10), 100, 10)
    assert costs.cost_lines(plain, plan(defense=plain)) == []


def test_the_sentence_says_how_many_clients_are_lost_in_the_second_figure() -> None:
    """A tenth of the clients, one of fewer than ten, and no second figure where the plan survives no loss."""
    for clients, threshold, lost in ((40, None, 4), (8, None, 1), (8, 7, 1), (8, 8, 0)):
        defense = chain(Quantise(), secure_aggregation(threshold))
        found = defense.plan(layout(100), clients)
        line, _ = costs.cost_lines(defense, found)
        if not lost:
            assert "lost" not in line
            continue
        expected = costs.format_seconds(costs.predict(defense, found, lost).server_cpu)
        assert f"({expected} with {lost} of {clients} clients lost)" in line


def test_the_command_prints_costs_and_trees() -> None:
    arguments = ["plan", "ssi", "secure_aggregation", "--clients", "20", "--tree", "1000000"]
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}).output
    assert "predicted CPU a round: client" in shown
    assert "50,000 x 20 -> 2,500 x 20" in shown
    assert "key holder" in CliRunner().invoke(app, ["plan", "ssi", "paillier"], env={"COLUMNS": "200"}).output
    assert "predicted" not in CliRunner().invoke(app, ["plan", "ssi", "plain"]).output
    refused = CliRunner().invoke(app, ["plan", "ssi", "plain", "--tree", "100"])
    assert refused.exit_code == 2
