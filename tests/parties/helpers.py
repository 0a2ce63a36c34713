"""Carry the messages of a sum between objects of one process, with losses where a test asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from securefed.parties import SumClient, SumResult, SumServer

Lost = Callable[[int, int], bool]


def play(
    server: SumServer,
    clients: Mapping[int, Any],
    contributions: Mapping[int, Mapping[str, Any]],
    *,
    lost: Lost = lambda stage, party: False,
    **opened: Any,
) -> SumResult:
    """Run one round to its result.

    Args:
        server: the server.
        clients: by number, clients and helpers.
        contributions: by client, the keyword arguments of `SumClient.receive`.
        lost: function of the number of the stage (counted over attempts) and the party: true if that reply is lost.
        opened: keyword arguments of `SumServer.open`.
    """
    server.open(**opened)
    stage = 0
    while server.result is None:
        replies = {}
        for party, request in server.outgoing.items():
            member = clients[party]
            given = contributions[party] if isinstance(member, SumClient) else {}
            reply = member.receive(request, **given)
            if not lost(stage, party):
                replies[party] = reply
        server.receive(replies)
        stage += 1
    return server.result
