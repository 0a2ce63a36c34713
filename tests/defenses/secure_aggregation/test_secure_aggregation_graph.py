"""Sparse graphs: the finder against other routes to its numbers, the graph's shape, and exchanges on it."""

from __future__ import annotations

import dataclasses
import math
import secrets

import networkx as nx
import numpy as np
import pytest
from scipy import stats

from securefed import SERVER, Message
from securefed.defenses import Session, secure_aggregation
from securefed.defenses._secure_aggregation import SecureAggregation, graph, masks, primitives
from securefed.defenses._secure_aggregation.graph import design_sparse_graph
from securefed.defenses._secure_aggregation.masks import neighbourhoods, neighbours
from securefed.defenses._secure_aggregation.primitives import FIELD, private_key, public_bytes
from securefed.defenses._secure_aggregation.session import graph_seed
from securefed.defenses._secure_aggregation.shares import holders_of
from securefed.errors import ConfigError, ContradictionError, PlanError, TooFewSurvivors
from tests.combinations import each_value, first_ones
from tests.defenses.secure_aggregation.adversary import with_numbers

SPARSE = {"graph": "sparse", "adversarial": 0.1, "dropouts": 0.1}
SETTINGS = [(100, 0.1, 0.1), (100, 0.1, 0.3), (100, 0.33, 0.1), (1000, 0.1, 0.1), (64, 0.05, 0.2)]


def enough(clients, corrupt, lost, degree, threshold, as_published=False) -> bool:
    """The finder's three conditions by SciPy's floating-point tails.

    Args:
        as_published: an owner's share of its own secret does not count, and nobody is lost before the graph is drawn.
    """
    own, roster = (0, clients) if as_published else (1, clients - lost)
    exposed = (clients - corrupt) * stats.hypergeom(roster - 1, corrupt, degree).sf(threshold - 1)
    gone = corrupt + lost
    logs = [math.lgamma(n + 1) - math.lgamma(n - degree + 1) for n in (gone, clients) if n >= degree]
    apart = math.comb(clients, 2) * math.exp(logs[0] - logs[1]) if len(logs) == 2 else 0.0
    dead = stats.hypergeom(clients - 1, lost - 1, degree).sf(degree - threshold)
    alive = stats.hypergeom(clients - 1, lost, degree).sf(degree + own - threshold)
    return exposed + apart <= 2.0**-40 and lost * dead + (clients - lost) * alive <= 2.0**-20


def smallest(clients, corrupt, lost, as_published=False) -> int:
    degrees = range(2, clients, 2)
    return next(k for k in degrees if any(enough(clients, corrupt, lost, k, t, as_published) for t in range(2, k + 1)))


@pytest.mark.parametrize(("clients", "adversarial", "dropouts"), first_ones(SETTINGS, 2))
def test_the_finder_gives_the_smallest_degree_by_another_route(clients, adversarial, dropouts) -> None:
    design = design_sparse_graph(clients, adversarial, dropouts)
    assert enough(clients, design.corrupt, design.lost, design.degree, design.threshold)
    assert not enough(clients, design.corrupt, design.lost, design.degree, design.threshold + 1)
    assert smallest(clients, design.corrupt, design.lost) == design.degree


@pytest.mark.parametrize(
    ("clients", "adversarial", "dropouts", "known", "ours"),
    first_ones(
        [(100, 0.1, 0.1, 22, 20), (100, 0.1, 0.3, 34, 32), (100, 0.33, 0.1, 42, 42), (1000, 0.1, 0.1, 46, 46)], 2
    ),
)
def test_published_degrees_are_met_and_two_conventions_explain_the_difference(
    clients, adversarial, dropouts, known, ours
) -> None:
    """Known degrees for 2^-40 and 2^-20 leave out the share that a client keeps of its own secret; here it counts.

    Here the clients that are lost may be so before the graph is drawn, which leaves a larger share of corrupt ones.
    """
    design = design_sparse_graph(clients, adversarial, dropouts)
    assert design.degree == ours <= known
    assert smallest(clients, design.corrupt, design.lost, as_published=True) == known


def test_designs_grow_with_what_they_withstand_and_explain_themselves() -> None:
    base = design_sparse_graph(200, 0.1, 0.1)
    for harder in (
        design_sparse_graph(200, 0.2, 0.1),
        design_sparse_graph(200, 0.1, 0.2),
        design_sparse_graph(200, 0.1, 0.1, security=80),
        design_sparse_graph(1000, 0.1, 0.1),
    ):
        assert harder.degree > base.degree
    lies = design_sparse_graph(200, 0.1, 0.1, active=True)
    assert lies.withstands_lies
    assert not base.withstands_lies
    assert lies.degree > base.degree
    text = base.explain()
    assert all(str(n) in text for n in (200, 20, base.degree, base.threshold))
    assert "not against a server that misreports" in text
    assert "also against a server that misreports" in lies.explain()
    with pytest.raises(PlanError, match="lying server"):
        design_sparse_graph(100, 0.1, 0.3, active=True)
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="share of the clients"):
            design_sparse_graph(100, share, 0.1)


@pytest.mark.parametrize(("members", "degree"), first_ones([(12, 4), (31, 6), (100, 20)], 2))
def test_the_graph_is_regular_mutual_and_connected_without_any_k_minus_one_members(members, degree) -> None:
    seed = secrets.token_bytes(32)
    near = [neighbours(seed, members, degree, row) for row in range(members)]
    edges = nx.Graph([(row, peer) for row in range(members) for peer in near[row] if peer != row])
    assert all(row in near[row] and len(near[row]) == degree + 1 for row in range(members))
    assert all(row in near[peer] for row in range(members) for peer in near[row])
    assert nx.node_connectivity(edges) == degree
    assert near != [neighbours(secrets.token_bytes(32), members, degree, row) for row in range(members)]
    assert neighbours(seed, members, 0, 3) == tuple(range(members))
    rows = [members - 1, 0, 5]
    assert [tuple(found) for found in neighbourhoods(seed, members, degree, rows)] == [near[row] for row in rows]


def test_all_orders_are_equally_likely() -> None:
    """Which of 9 places of 10 (cyclic, from row 0) row 1 takes: chi-square, 8 degrees, 56 is its 1 - 3e-9 quantile.

    Power: an order that keeps rows 0 and 1 in sequence one time in ten is recognised.
    """
    places = []
    for number in range(9000):
        order, place = masks._circle(number.to_bytes(32, "little"), 10)
        assert [order[p] for p in place] == list(range(10))
        places.append((place[1] - place[0]) % 10)

    def statistic(values) -> float:
        counts = np.bincount(values, minlength=10)[1:]
        return float(((counts - 1000) ** 2 / 1000).sum())

    assert statistic(places) < 56
    assert statistic([1 if index % 10 == 0 else place for index, place in enumerate(places)]) > 56


def test_failures_are_as_frequent_as_the_tails_say() -> None:
    """Graphs of 60 and degree 6 with 12 corrupt: how often one given client has 3 corrupt neighbours or more.

    20000 graphs; the tail is .0988, so the standard deviation is .0021; 5 of them. Degree 4 would give .0299.
    """
    tail = graph._tails(59, 12, 6)
    expected = tail[1][3] / tail[0]
    hits = 0
    for number in range(20_000):
        near = neighbours(number.to_bytes(32, "big"), 60, 6, 59)
        hits += sum(peer < 12 for peer in near) >= 3
    assert abs(hits / 20_000 - expected) < 0.0106
    assert abs(expected - stats.hypergeom(59, 12, 6).sf(2)) < 1e-12
    assert expected > 0.09


@pytest.fixture(scope="module")
def forty(net):
    session = net.session(range(0, 80, 2), **SPARSE)
    assert session.plan.masking.degree
    return session, net.contributions(session)


def exact(net, out, contributions, survivors) -> None:
    assert out.aggregate.survivors == tuple(survivors)
    for name, value in net.sum(contributions, survivors).items():
        assert np.array_equal(out.aggregate.total[name], value)


@pytest.mark.parametrize(("stage", "repack"), each_value(["keys", "shares", "upload", "unmask"], [False, True]))
def test_the_sum_is_exact_whoever_is_lost_within_the_plan(net, forty, stage, repack) -> None:
    session, contributions = forty
    lost = np.random.default_rng(net.STAGES.index(stage)).choice(session.cohort, 4, replace=False)
    out = net.drive(session, contributions, {stage: lost}, repack=repack)
    exact(net, out, contributions, [c for c in session.cohort if stage == "unmask" or c not in lost])
    assert not out.refusals


def test_dropouts_at_all_stages_together_and_one_more_than_planned(net, forty) -> None:
    session, contributions = forty
    drops = {stage: [client] for stage, client in zip(net.STAGES, (0, 18, 40, 76), strict=True)}
    out = net.drive(session, contributions, drops)
    exact(net, out, contributions, [c for c in session.cohort if c not in (0, 18, 40)])
    with pytest.raises(TooFewSurvivors):
        net.drive(session, contributions, drops | {"upload": [40, 42]})


@pytest.mark.parametrize("stage", first_ones(["upload", "unmask"]))
def test_thirty_of_a_hundred_may_be_lost_at_the_degree_found_for_it(net, stage) -> None:
    session = net.session(range(100), graph="sparse", adversarial=0.1, dropouts=0.3)
    contributions = net.contributions(session)
    assert (session.plan.masking.degree, session.plan.masking.shares, session.plan.threshold) == (32, 11, 70)
    lost = np.random.default_rng(8).choice(100, 30, replace=False)
    out = net.drive(session, contributions, {stage: lost})
    exact(net, out, contributions, [c for c in range(100) if stage == "unmask" or c not in lost])


def test_a_client_sends_what_the_plan_says_and_deals_to_its_neighbours_only(net, forty) -> None:
    session, contributions = forty
    out = net.drive(session, contributions)
    sent = sum(value.nbytes for stage in net.STAGES for body in out.bodies(stage, sender=6) for value in body.values())
    assert sent == session.plan.upload_bytes
    (bundles,) = (body["bundles"] for body in out.bodies("shares", sender=6))
    assert len(bundles) == session.plan.masking.degree + 1
    full = net.plan(len(session.cohort))
    assert session.plan.upload_bytes < full.upload_bytes


def test_t_neighbours_and_the_server_open_a_mask_key_and_nobody_else_does(net, forty) -> None:
    session, contributions = forty
    clients, server, _ = net.upto(session, contributions, "unmask")
    victim = 24
    holders = holders_of(server, victim)
    others = [c for c in holders if c != victim]
    row = server.share_dealers.index(victim)

    def opened(colluders):
        points, shares = [], []
        for client in colluders:
            mine = sorted(set(clients[client].neighbourhood) & set(server.share_dealers))
            points.append(holders.index(client) + 1)
            shares.append(clients[client].held_shares[mine.index(victim)])
        return FIELD.combine(points, np.stack(shares))[1]

    t = session.plan.masking.shares
    public = public_of(opened(others[:t]))
    assert public == server.mask_keys[server.advertised_clients.index(victim)].tobytes()
    assert public == public_of(opened(others[-t:]))
    assert public != public_of(opened(others[: t - 1]))
    outside = [c for c in session.cohort if c not in holders]
    assert outside
    assert all(victim not in clients[c].neighbourhood for c in outside)
    assert row >= 0


def public_of(secret):
    return public_bytes(private_key(secret))


def test_every_advertised_key_moves_the_graph(net, forty) -> None:
    """So a server cannot settle who neighbours whom without the clients' keys; what it could do is in `graph`."""
    session, contributions = forty
    first, second = (net.upto(session, contributions, "upload")[0] for _ in range(2))
    same = sum(first[c].neighbourhood == second[c].neighbourhood for c in session.cohort)
    assert same < 3
    assert graph_seed(first[0].digest) != graph_seed(second[0].digest)
    assert len({client.digest for client in first.values()}) == 1


def test_a_client_whose_neighbours_did_not_deal_does_not_upload(net, forty) -> None:
    session, contributions = forty
    clients, server, requests = net.upto(session, contributions, "upload")
    neighbourhood = [c for c in clients[30].neighbourhood if c != 30]
    keep = session.plan.masking.shares - 1  # with itself one share too many, without one too few

    def ask(gone):
        ids = np.asarray([c for c in server.share_dealers if c not in gone], np.int64)
        mine = sorted(set(clients[30].neighbourhood) & set(server.share_dealers))
        rows = [row for row, c in enumerate(mine) if c not in gone]
        body = {"ids": ids, "bundles": requests[30]["bundles"][rows]}
        sealed = primitives.seal(server.channels[30], session.run, session.round, "upload", SERVER, 30, body)
        request = Message(session.run, session.round, "upload", SERVER, 30, sealed)
        return SecureAggregation().client_step(clients[30], request, contributions[30])

    plan = session.plan
    assert len(ask(neighbourhood[:4])[0].held_shares) == plan.masking.degree + 1 - 4
    weak = dataclasses.replace(plan, threshold=len(server.share_dealers) // 2 + 1)
    session = Session(session.run, session.round, session.cohort, weak)
    clients[30] = dataclasses.replace(clients[30], session=session)
    assert len(ask(neighbourhood[keep:])[0].held_shares) == keep + 1
    with pytest.raises(ContradictionError, match="dealt shares"):
        ask(neighbourhood[keep - 1 :])


@pytest.mark.parametrize(
    "changes",
    [
        {"degree": 9},
        {"shares": 1},
        {"shares": 17},
        {"degree": 38},
        {"threshold": 20},
        {"degree": 0},
    ],
)
def test_sparse_plans_that_were_not_found_are_refused(forty, changes) -> None:
    plan = with_numbers(forty[0].plan, changes)
    session = Session("ab" * 16, 0, tuple(range(40)), plan)
    with pytest.raises(PlanError):
        SecureAggregation().server_open(session)
    with pytest.raises(PlanError):
        SecureAggregation().client_open(session, 0)


def test_the_graph_is_chosen_and_refused_in_words(net) -> None:
    auto = SPARSE | {"graph": "auto"}
    assert net.plan(32, **auto).masking.degree == 0
    assert net.plan(100, **auto).masking.degree == 20
    assert net.plan(100, **(auto | {"adversarial": 0.45, "dropouts": 0.45})).masking.degree == 0
    text = " ".join(net.plan(100, **SPARSE).assumptions)
    assert "20 neighbours" in text
    assert "same whatever the graph" in text
    assert "of a client's 20 neighbours" in net.plan(100, **SPARSE).open_to
    name = "secure_aggregation(graph=sparse, adversarial=0.1, dropouts=0.1)"
    assert str(secure_aggregation(**SPARSE)) == name
    for wrong in [
        {"graph": "ring"},
        {"graph": "sparse"},
        {"graph": "auto", "dropouts": 0.1},
        {"adversarial": 1.5},
        SPARSE | {"threshold": 30},
    ]:
        with pytest.raises(ConfigError):
            secure_aggregation(**wrong)
    for wrong in [
        {"adversarial": 0.6},
        {"dropouts": 0.6},
        {"graph": "sparse", "adversarial": 0.45, "dropouts": 0.45},
    ]:
        with pytest.raises(PlanError):
            net.plan(10, **wrong)
