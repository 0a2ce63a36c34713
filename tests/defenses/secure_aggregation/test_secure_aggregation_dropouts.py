"""Clients lost: all (stage, subset) for up to six, random ones for up to a hundred, and as many as a graph is made for.

States are values, so an exchange is run to a stage once and goes on from there for every subset.
"""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest

from securefed import SERVER, Message
from securefed.defenses import Identities, Session, secure_aggregation
from securefed.errors import TooFewSurvivors
from tests.combinations import first_ones

RUN = "0123456789abcdef0123456789abcdef"
IDENTITIES = Identities.generate(100)
KINDS = {"curious": None, "active": IDENTITIES}


def answers(protocol, session, clients, stage, outgoing, values):
    """All clients' replies to the requests of a stage, and their new states."""
    after, replies = {}, {}
    for client, body in outgoing.items():
        request = Message(RUN, session.round, stage, SERVER, client, body)
        encoded = {"w": values[client]} if stage == "upload" else None
        after[client], reply = protocol.client_step(clients[client], request, encoded)
        replies[client] = Message(RUN, session.round, stage, client, SERVER, reply)
    return after, replies


def finish(protocol, session, clients, step, values):
    """The aggregate, with nobody else lost."""
    while isinstance(step, tuple):
        state, stage, outgoing = step
        clients, replies = answers(protocol, session, clients, stage, outgoing, values)
        step = protocol.server_step(state, replies)
    return step


def exchange_of(net, clients, kind, **options):
    plan = net.plan(clients, (("w", (3,), 32),), identities=KINDS[kind], **options)
    session = Session(RUN, 0, tuple(range(clients)), plan)
    rng = np.random.default_rng(clients)
    values = {client: rng.integers(-(2**23), 2**23, 3, np.int64) for client in session.cohort}
    return secure_aggregation(identities=KINDS[kind]), session, values


@pytest.mark.parametrize("clients", first_ones([3, 4, 5, 6], 3))
@pytest.mark.parametrize("kind", KINDS)
def test_every_subset_may_be_lost_at_every_stage(net, kind, clients):
    protocol, session, values = exchange_of(net, clients, kind)
    state, stage, outgoing = protocol.server_open(session)
    states = {client: protocol.client_open(session, client) for client in session.cohort}
    subsets = list(chain.from_iterable(combinations(range(clients), size) for size in range(clients + 1)))
    met = 0
    while True:
        after, replies = answers(protocol, session, states, stage, outgoing, values)
        for lost in subsets:
            left = tuple(client for client in range(clients) if client not in lost)
            remaining = {client: replies[client] for client in left}
            met += 1
            if len(left) < session.plan.threshold:
                with pytest.raises(TooFewSurvivors):
                    protocol.server_step(state, remaining)
                continue
            aggregate = finish(protocol, session, after, protocol.server_step(state, remaining), values)
            summed = left if stage in ("keys", "shares", "upload") else session.cohort
            assert aggregate.survivors == summed
            assert np.array_equal(aggregate.total["w"], sum(values[client] for client in summed))
        if stage == "unmask":
            break
        states = after
        state, stage, outgoing = protocol.server_step(state, replies)
    assert met == len(session.plan.stages) * 2**clients


def lose(net, kind, clients, drops, seed=0, **options):
    """An exchange with clients lost at stages, in any numbers."""
    protocol, session, values = exchange_of(net, clients, kind, **options)
    rng = np.random.default_rng(seed)
    lost = rng.permutation(clients)
    at = {stage: [int(c) for c in lost[sum(drops[:k]) : sum(drops[: k + 1])]] for k, stage in enumerate(net.STAGES)}
    gone: set[int] = set()
    state, stage, outgoing = protocol.server_open(session)
    states = {client: protocol.client_open(session, client) for client in session.cohort}
    while True:
        gone |= set(at.get(stage, ()))
        states, replies = answers(protocol, session, states, stage, outgoing, values)
        step = protocol.server_step(state, {client: reply for client, reply in replies.items() if client not in gone})
        if not isinstance(step, tuple):
            break
        state, stage, outgoing = step
    summed = sorted(set(range(clients)) - set(chain(*(at[stage] for stage in ("keys", "shares", "upload")))))
    assert step.survivors == tuple(summed)
    assert np.array_equal(step.total["w"], sum(values[client] for client in summed))


@pytest.mark.parametrize(("clients", "drops"), first_ones([(17, (1, 2, 3, 2)), (40, (0, 5, 9, 5))]))
@pytest.mark.parametrize("kind", KINDS)
def test_random_subsets_of_larger_cohorts_may_be_lost(net, kind, clients, drops):
    lose(net, kind, clients, drops, seed=clients)


@pytest.mark.parametrize("drops", first_ones([((7, 8, 8, 7),), ((0, 0, 30, 0),)]))
def test_thirty_of_a_hundred_may_be_lost_on_the_graph_that_is_made_for_it(net, drops):
    lose(net, "curious", 100, drops, seed=30, graph="sparse", adversarial=0.1, dropouts=0.3)


def test_ten_of_a_hundred_may_be_lost_where_the_server_deviates(net):
    lose(net, "active", 100, (2, 3, 3, 2), seed=31, graph="sparse", adversarial=0.1, dropouts=0.1)
