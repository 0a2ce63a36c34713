"""A server that deviates, against clients with identities: each attack succeeds with one check removed, and is refused
by name with it."""

from __future__ import annotations

import numpy as np
import pytest

from securefed.defenses import Identities, new_identity, public_identity, secure_aggregation
from securefed.defenses._secure_aggregation import (
    consistency,
    masking_client,
    masking_server,
    masks,
    primitives,
    shares,
)
from securefed.defenses._secure_aggregation import graph as graph_module
from securefed.defenses._secure_aggregation.session import graph_seed
from securefed.errors import AuthenticationError, ContradictionError, MalformedError, PlanError, TooFewSurvivors
from tests.combinations import first_ones
from tests.defenses.secure_aggregation.adversary import Adversary, with_numbers

ENTRIES = 6
IDENTITIES = Identities.generate(20)
PROTOCOL = secure_aggregation(identities=IDENTITIES)
VICTIM = 0


def values_of(clients, seed=0):
    rng = np.random.default_rng(seed)
    return {client: rng.integers(-(2**20), 2**20, ENTRIES, np.int64) for client in clients}


def under_attack(net, clients, *, corrupt=(), changes=None, **options):
    """Clients 0, 1, ... with identities, and an adversary. `changes`: fields that no plan of the library's has."""
    share = 0.0 if changes else len(corrupt) / clients
    plan = net.plan(clients, (("w", (ENTRIES,), 32),), adversarial=share, identities=IDENTITIES)
    plan = with_numbers(plan, changes or {})
    return Adversary(PROTOCOL, plan, range(clients), values_of(range(clients)), corrupt=corrupt, **options)


def passes(*args, **kwargs):
    """What is left of a check that is removed."""


# Who a client is.


def played_by_the_server(net):
    """Client 0 is true; the others are the server's own, with identities that only the server believes in."""
    own = {client: new_identity() for client in range(1, 5)}
    forged = Identities({c: public_identity(key) for c, key in own.items()} | {0: IDENTITIES.public[0]}, own)
    true = under_attack(net, 5)
    stage_play = Adversary(
        secure_aggregation(identities=forged), true.session.plan, range(5), true.values, corrupt=range(1, 5)
    )
    stage_play.clients[VICTIM] = true.clients[VICTIM]
    return stage_play


def test_a_server_that_plays_all_other_clients(net, monkeypatch):
    with pytest.raises(AuthenticationError, match="from 1 refused: its advertised keys"):
        played_by_the_server(net).follow("confirm")
    monkeypatch.setattr(consistency, "check_adverts", passes)
    attack = played_by_the_server(net).follow("confirm")
    assert np.array_equal(attack.opened([VICTIM], both=True), attack.values[VICTIM])


def shares_for_old_keys(net):
    """Client 2's keys of exchange 0 stand in the roster of exchange 1."""
    old = under_attack(net, 5).follow("shares").outgoing[VICTIM]
    attack = under_attack(net, 5, number=1).follow("shares")
    body = {name: value.copy() for name, value in attack.outgoing[VICTIM].items() if name != primitives.TAG}
    for name in ("share_keys", "mask_keys", "signatures"):
        body[name][2] = old[name][2]
    return attack.ask(VICTIM, "shares", body)


def test_a_server_that_replays_keys_of_an_earlier_exchange(net, monkeypatch):
    with pytest.raises(AuthenticationError, match="from 2 refused: its advertised keys"):
        shares_for_old_keys(net)
    monkeypatch.setattr(
        consistency, "keys_statement", lambda session, ahead, client, keys: primitives.fingerprint(client, keys)
    )
    assert "bundles" in shares_for_old_keys(net)  # it deals its secrets to a key of the server's choice


# Which survivors: seven clients, threshold 4. Everybody is told that 4 or 5 survived, nobody that only 0 and 1 did.
TOLD_DEAD = {0: (2, 3, 4), 1: (5, 6), 2: (3, 4, 5), 3: (4, 5, 6), 4: (2, 5, 6), 5: (2, 3, 6), 6: (2, 3, 4)}
FEW = (0, 1)


def tell_each_another_set(attack, signatures=None):
    """Each client signs the set that it is told, and is asked to unmask it. `signatures`: by set, from elsewhere."""
    attack.follow("confirm")
    signed = {client: attack.confirm(client, dead) for client, dead in TOLD_DEAD.items()}
    for client, dead in TOLD_DEAD.items():
        alive = [other for other in TOLD_DEAD if other not in dead][:4]
        given = {other: signed[other] for other in alive} if signatures is None else signatures[dead]
        attack.unmask(client, dead, given)
    return np.array_equal(attack.opened(FEW), attack.true_sum(FEW))


@pytest.mark.parametrize("removed", ["the quorum", "what a signature says"])
def test_a_server_that_tells_clients_different_survivors(net, monkeypatch, removed):
    """Without the check it has the sum of two clients, though each client released shares for four or more."""
    with pytest.raises(AuthenticationError, match="from 1 refused: the set of survivors to unmask is not signed"):
        tell_each_another_set(under_attack(net, 7))
    if removed == "the quorum":
        monkeypatch.setattr(consistency, "check_quorum", passes)
    else:
        monkeypatch.setattr(consistency, "survivors_statement", lambda exchange, alive: exchange)
    assert tell_each_another_set(under_attack(net, 7))


def signatures_of_earlier_exchanges(net):
    """Honest exchanges in which just those were lost that somebody is told are dead later."""
    found = {}
    for number, dead in enumerate(sorted(set(TOLD_DEAD.values()))):
        earlier = under_attack(net, 7, number=number).follow("confirm", {"upload": dead})
        found[dead] = {client: earlier.confirm(client, dead) for client in earlier.server.survivors[:4]}
    return found


def test_a_server_that_replays_signatures_of_earlier_exchanges(net, monkeypatch):
    with pytest.raises(AuthenticationError, match="the set of survivors to unmask is not signed"):
        tell_each_another_set(under_attack(net, 7, number=9), signatures_of_earlier_exchanges(net))
    monkeypatch.setattr(
        consistency, "survivors_statement", lambda exchange, alive: primitives.fingerprint("survivors", *alive)
    )
    assert tell_each_another_set(under_attack(net, 7, number=9), signatures_of_earlier_exchanges(net))


def two_sums_of_one_exchange(net, threshold):
    """Different rosters to different clients; the corrupt client 4 plays in both and signs both."""
    sums = []
    for others in ((2, 3), (0, 1)):
        changes = {"threshold": threshold, "shares": threshold}
        half = under_attack(net, 5, corrupt=(4,), changes=changes).follow("", {"keys": others})
        sums.append(half.aggregate.survivors)
    return sums


def test_a_server_with_a_client_that_signs_twice(net):
    """2 t > N + c keeps two sets from being signed; with t = 3 of 5 and one corrupt client they are."""
    assert two_sums_of_one_exchange(net, 3) == [(0, 1, 4), (2, 3, 4)]
    assert under_attack(net, 5, corrupt=(4,)).session.plan.threshold == 4
    with pytest.raises(TooFewSurvivors):
        two_sums_of_one_exchange(net, 4)


# Shares that must stay apart.


def answer_twice(net, *, forget):
    """The survivors are all, and then all but the victim. `forget`: clients that do not know what they answered."""
    attack = under_attack(net, 5).follow("confirm")
    before = dict(attack.clients)
    for dead in ((), (VICTIM,)):
        clients = [client for client in range(5) if client not in dead]
        if forget:
            attack.clients.update(before)
        signed = {client: attack.confirm(client, dead) for client in clients}
        for client in clients:
            attack.unmask(client, dead, dict(list(signed.items())[:3]))
    return np.array_equal(attack.opened([VICTIM], both=True), attack.values[VICTIM])


def test_a_server_that_harvests_both_kinds_of_shares(net):
    with pytest.raises(ContradictionError, match="asks for stage 'confirm'"):
        answer_twice(net, forget=False)
    assert answer_twice(net, forget=True)


def test_a_client_that_signed_or_released_answers_nothing_else(net):
    attack = under_attack(net, 5).follow("confirm")
    signed = {client: attack.confirm(client, ()) for client in range(5)}
    for dead in ((), (VICTIM,), (4,)):
        with pytest.raises(ContradictionError, match="asks for stage 'confirm'"):
            attack.confirm(1, dead)
    three = {client: signed[client] for client in (1, 2, 4)}
    attack.unmask(1, (), three)
    for ask in (lambda: attack.confirm(1, (4,)), lambda: attack.unmask(1, (), three)):
        with pytest.raises(ContradictionError, match="the next one is ''"):
            ask()


def below_the_threshold(net):
    """Three survivors, threshold 4; the corrupt client, said to be dead, gives the fourth share of everything."""
    attack = under_attack(net, 5, corrupt=(4,)).follow("confirm")
    dead, alive = (3, 4), (0, 1, 2)
    signed = {client: attack.confirm(client, dead) for client in alive}
    for client in alive:
        attack.unmask(client, dead, signed)
    return np.array_equal(attack.opened(alive), attack.true_sum(alive))


def test_a_server_that_unmasks_below_the_threshold(net, monkeypatch):
    """Two checks stand in its way, and each suffices: what a client signs, and how many signed it."""
    with pytest.raises(ContradictionError, match="3 uploads are fewer than 4"):
        below_the_threshold(net)
    monkeypatch.setattr(
        masking_client,
        "_take_survivors",
        lambda state, request: request.take_ids("alive", state.share_dealers),
    )
    with pytest.raises(ContradictionError, match="3 survivors signed"):
        below_the_threshold(net)
    monkeypatch.setattr(consistency, "check_quorum", passes)
    assert below_the_threshold(net)


def test_ids_that_are_unknown_or_repeated(net):
    attack = under_attack(net, 5).follow("confirm")
    words = attack.survivors((4,))
    for name, ids in (("alive", [0, 1, 2, 3, 9]), ("alive", [0, 0, 1, 2, 3]), ("dead", [9]), ("dead", [4, 4])):
        with pytest.raises(MalformedError, match="unknown, repeated"):
            attack.ask(1, "confirm", {**words, name: np.asarray(ids, np.int64)})
    signed = {client: attack.confirm(client, (4,)) for client in range(4)}
    with pytest.raises(MalformedError, match="unknown, repeated"):  # the dead do not count among those that sign
        attack.unmask(1, (4,), {**signed, 4: attack.forge(4, (4,))})
    signatures = np.stack([signed[0]] * 3)
    with pytest.raises(MalformedError, match="unknown, repeated"):
        attack.ask(1, "unmask", {"ids": np.asarray([0, 0, 0], np.int64), "signatures": signatures})
    attack.unmask(1, (4,), {client: signed[client] for client in (0, 2, 3)})


# The sparse graph.


def of_the_servers_choice(net, monkeypatch, *, at_clients):
    """Twenty clients with four neighbours each, six corrupt: a graph that puts three of those beside client 0."""
    corrupt = tuple(range(14, 20))

    def exposes(seed):
        near = set(masks.neighbours(seed, 20, 4, VICTIM))
        return len(near & set(corrupt)) >= 3

    chosen = next(seed for seed in (bytes([i]) * 32 for i in range(256)) if exposes(seed))
    real = shares.dealt_shares

    def by_the_server(state):
        with monkeypatch.context() as own:
            own.setattr(shares, "graph_seed", lambda digest: chosen)
            return real(state)

    monkeypatch.setattr(masking_server, "dealt_shares", by_the_server)
    if at_clients:
        monkeypatch.setattr(shares, "graph_seed", lambda digest: chosen)
    changes = {"degree": 4, "shares": 3, "threshold": 14}
    attack = under_attack(net, 20, corrupt=corrupt, changes=changes).follow("confirm")
    return np.array_equal(attack.opened([VICTIM], both=True), attack.values[VICTIM])


def test_a_server_that_chooses_the_graph(net, monkeypatch):
    """Clients draw the graph from the adverts themselves; they refuse what was meant for another one."""
    with pytest.raises(AuthenticationError, match="does not decrypt"):
        of_the_servers_choice(net, monkeypatch, at_clients=False)
    assert of_the_servers_choice(net, monkeypatch, at_clients=True)


def cut_out_an_arc(net, shares):
    """Sixteen clients on the circle; those at 0, 1, 5 and 6 are said to be lost, so 2, 3 and 4 stand alone."""
    changes = {"degree": 4, "shares": shares, "threshold": 9}
    attack = under_attack(net, 16, changes=changes).follow("confirm")
    order, _ = masks._circle(graph_seed(attack.server.digest), 16)
    dead, arc = sorted(order[place] for place in (0, 1, 5, 6)), [order[place] for place in (2, 3, 4)]
    alive = [client for client in range(16) if client not in dead]
    signed = {client: attack.confirm(client, dead) for client in alive}
    for client in alive:
        attack.unmask(client, dead, {other: signed[other] for other in alive[:9]})
    opened = attack.opened(arc)
    return opened is not None and np.array_equal(opened, attack.true_sum(arc))


def test_a_server_that_loses_clients_to_cut_the_graph(net):
    """All sign the same survivors, and still: unless t > k / 2 + 1 + b (here b = 0), it opens a part of the sum."""
    assert cut_out_an_arc(net, shares=3)
    assert not cut_out_an_arc(net, shares=4)
    for clients, adversarial, dropouts in [(100, 0.05, 0.05), (100, 0.1, 0.1), (200, 0.1, 0.1)]:
        design = graph_module.design_sparse_graph(clients, adversarial, dropouts, active=True)
        assert design.threshold > design.degree // 2 + 1 + design.most_beside
        assert 2 * design.threshold > design.degree + 1 + design.most_corrupt
        assert design.withstands_lies
        assert not graph_module.design_sparse_graph(clients, adversarial, dropouts).withstands_lies


# Sums that subtract.


def fewest_that_open(members, degree, shares):
    """Clients evenly spread on the circle, so many that any degree + 1 neighbouring places hold `shares` of them."""
    for count in range(1, members + 1):
        reveals = np.diff(np.arange(members + 1) * count // members)
        near = sum(np.roll(reveals, shift) for shift in range(degree + 1))
        if near.min() >= shares:
            return count
    raise AssertionError


def test_a_sparse_graph_leaves_too_few_clients_to_sign_a_second_set():
    """N - D clients sign survivors. If at most D honest ones reveal shares for a sum, N - D others sign another set."""
    corrupt, lost = graph_module.shares_of(400, 0.02, 0.35)
    # meets conditions 1 to 5 alone: 141 clients open the sum, of whom 133 are honest, and 267 of 400 sign another set
    assert fewest_that_open(400 - lost, 238, 129) == 141 < corrupt + lost
    with pytest.raises(PlanError, match="lying server"):
        graph_module.design_sparse_graph(400, 0.02, 0.35, active=True)
    assert graph_module.design_sparse_graph(400, 0.02, 0.35).degree < 238  # a server that follows the protocol


@pytest.mark.parametrize(
    ("clients", "adversarial", "dropouts"), first_ones([(100, 0.1, 0.1), (1000, 0.02, 0.35), (1000, 0.2, 0.25)])
)
def test_sparse_graphs_of_many_sizes_leave_too_few_clients_to_sign_a_second_set(clients, adversarial, dropouts):
    design = graph_module.design_sparse_graph(clients, adversarial, dropouts, active=True)
    opening = fewest_that_open(clients - design.lost, design.degree, design.threshold)
    assert opening > design.corrupt + design.lost
