"""A round that was void or given up does not end the run: the next one has attempts of its own."""

from __future__ import annotations

import pytest

from securefed.defenses import secure_aggregation
from securefed.errors import RoundVoid
from securefed.parties import SumServer
from tests.parties.helpers import play
from tests.parties.test_parties import BASE, CLIENTS, check, given, parties, terms_of


@pytest.mark.parametrize("abandoned", [False, True])
def test_after_a_void_or_abandoned_round_the_next_one_is_summed(abandoned: bool) -> None:
    terms = terms_of(secure_aggregation(), max_void=2)
    members, server = parties(terms), SumServer(terms)
    for number in range(2):
        if abandoned:
            server.open(BASE)
            server.receive({i: members[i].receive(request) for i, request in server.outgoing.items()})
            server.abandon()
        else:
            with pytest.raises(RoundVoid):
                play(server, members, given(), base=BASE, lost=lambda stage, party: party > 0)
        assert server.round == number + 1
    result = play(server, members, given(), base=BASE)
    check(result, range(CLIENTS))
    assert result.round == 2
