"""Play one round of a sum in this process: a `SumClient` for each contribution, and the helpers of the defence.

`secure_mean` and `secure_sum` are made of it. A helper is a key holder of encrypted sums; its party number is negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from securefed._messages import PartyId
from securefed.parties._client import SumClient
from securefed.parties._helper import SumHelper
from securefed.parties._result import SumResult
from securefed.parties._server import SumServer


def play_round(server: SumServer, contributions: Sequence[Mapping[str, Any]]) -> SumResult:
    """Open a round without a model, and carry its messages to fresh clients until its result is there.

    A client is given its contribution with every request, and looks at it where the request is for the upload.

    Args:
        server: a new server.
        contributions: for client 0, 1, ... the keyword arguments of `SumClient.receive`.

    Returns:
        The result of the round.

    Raises:
        RoundVoid, RangeRefused, DivergenceError, BudgetSpent: as `SumServer.receive`.
    """
    terms = server.terms
    members: dict[PartyId, Any] = {client: SumClient(terms, client) for client in range(len(contributions))}
    members |= {party: SumHelper(terms) for party in terms.defense.aggregation.beside}
    server.open()
    while server.result is None:
        replies = {}
        for party, request in server.outgoing.items():
            given = contributions[party] if party >= 0 else {}
            replies[party] = members[party].receive(request, **given)
        server.receive(replies)
    return server.result
