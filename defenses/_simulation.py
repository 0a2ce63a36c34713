"""Run one exchange under a defence in this process, without a network: sum given contributions.

All parties are played by one loop that hands their messages over, so that users and tests see what a defence does to a
sum without an algorithm, a federation or a transport. An exchange is one sum; a contribution is the named tensors that
one client adds to it. A helper is a further party that some protocols need: the holder of a decryption key.

Not promised: secrecy. All clients' secrets are in this process.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from securefed._messages import SERVER, Aggregate, ClientId, Message, PartyId
from securefed._tensors import Layout, Tensors
from securefed.defenses._chain import Link, as_defense
from securefed.defenses._plan import Session

Drop = Callable[[str, PartyId], bool]
"""Function of a stage and a party: true if that reply is lost."""


def sum_once(
    defense: Link,
    layout: Layout,
    contributions: Mapping[ClientId, Tensors],
    *,
    drop: Drop = lambda stage, party: False,
    range_doublings: int = 0,
) -> Aggregate:
    """Sum contributions under a defence, and return the released sum as a federation's server would hold it.

    Args:
        defense: how the sum is made; an aggregation alone is taken as a chain of one link.
        layout: names, shapes and bounds of one contribution's tensors.
        contributions: the clients' contributions, by id.
        drop: function of a stage's name and a party that decides which replies are lost, to simulate dropouts.
        range_doublings: how often the declared bounds are doubled.

    Returns:
        The sum in the layout's names, shapes and units, and the ids of the clients that are in it.

    Raises:
        PlanError: the defence cannot keep its promise for this layout and number of clients.
        RangeRefused: an entry lies beyond its planned bound.
        TooFewSurvivors: too many replies are lost.
        MessageRefused: a party refuses a message.
    """
    defense = as_defense(defense)
    plan = defense.plan(layout, len(contributions), range_doublings=range_doublings)
    protocol = defense.aggregation
    session = Session(secrets.token_hex(16), 0, tuple(sorted(contributions)), plan)
    plan = session.plan  # with this exchange's number in it
    clients: dict[PartyId, Any] = {client: protocol.client_open(session, client) for client in session.cohort}
    helper = protocol.helper(plan.clients)
    state, stage, outgoing = protocol.server_open(session)
    while True:  # one stage a turn: hand out the requests, collect the replies, let the server make a step
        replies: dict[PartyId, Message] = {}
        for party, body in outgoing.items():
            request = Message(session.run, session.round, stage, SERVER, party, body)
            if helper is not None and party == helper.party:
                reply = helper.handle(request)
            else:
                encoded = defense.encode(contributions[party], plan) if stage == protocol.upload else None
                clients[party], reply = protocol.client_step(clients[party], request, encoded)
            if not drop(stage, party):
                replies[party] = Message(session.run, session.round, stage, party, SERVER, reply)
        step = protocol.server_step(state, replies)
        if isinstance(step, Aggregate):
            total = defense.release(defense.decode(step.total, plan, step.count), plan)
            return Aggregate(total, step.survivors)
        state, stage, outgoing = step
