"""Requests are encoded when they are looked up, and what all of them hold is stored once."""

from __future__ import annotations

import numpy as np

from securefed.defenses import secure_aggregation
from securefed.parties import SumClient, SumServer, SumTerms

CLIENTS = 40
UPDATE = {"w": np.zeros(3)}


def at_the_shares(clients: int = CLIENTS) -> tuple[SumTerms, SumServer]:
    terms = SumTerms.like(UPDATE, clients=clients, defense=secure_aggregation(), base=False)
    server = SumServer(terms)
    requests = server.open()
    server.receive({number: SumClient(terms, number).receive(request) for number, request in requests.items()})
    return terms, server


def test_a_frozen_server_holds_what_all_requests_share_once() -> None:
    """Each request holds the keys of all clients: together they grow with the square of their number."""
    terms, server = at_the_shares()
    _, larger = at_the_shares(2 * CLIENTS)
    frozen = server.freeze()
    assert len(larger.freeze()) < 2.2 * len(frozen)
    sent, more = (sum(len(request) for request in party.outgoing.values()) for party in (server, larger))
    assert more > 2.6 * sent  # the control
    again = SumServer.thaw(terms, frozen)
    assert dict(again.outgoing) == dict(server.outgoing)
    assert len(again.freeze()) < 1.1 * len(frozen)


def test_a_request_is_the_same_whenever_and_however_often_it_is_looked_up() -> None:
    terms, server = at_the_shares()
    requests = server.outgoing
    first = requests[3]
    assert (len(requests), set(requests)) == (CLIENTS, set(range(CLIENTS)))
    assert CLIENTS not in requests
    thawed = SumServer.thaw(terms, server.freeze())  # while others were not looked up
    assert thawed.outgoing[3] == requests[3] == first
    assert thawed.outgoing[7] == requests[7]


def test_what_goes_wrong_in_an_open_round_is_shown() -> None:
    _, server = at_the_shares()
    assert not server.refusals
    assert server.void == ()
    server.receive({0: b"nothing"}, more=True)
    assert "no message of securefed" in server.refusals[0]
    server.receive({})
    assert "replied at stage 'shares'" in server.void[0]
    server.abandon()
    assert (server.void, dict(server.refusals)) == ((), {})
