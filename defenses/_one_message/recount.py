"""Add up the signed uploads of one exchange again, as a third party that trusts neither server nor members.

Everything that decides the sum is signed by its sender: the members' keys, the uploads, the set of them, and the shares
of the sum of keys. So the server's own steps, taken again from these messages, check all signatures and give the sum: N
additions of d entries. They cannot tell whether the server withheld an upload: that its client was not lost, only the
client knows.
"""

from __future__ import annotations

from collections.abc import Iterable

from securefed._messages import Aggregate, Message, PartyId
from securefed.defenses._one_message.server import server_open, server_step
from securefed.defenses._one_message.session import Parties
from securefed.defenses._plan import Session
from securefed.errors import ContradictionError


def recounted(session: Session, parties: Parties, replies: Iterable[Message]) -> Aggregate:
    """Return the sum that these messages hold.

    Args:
        session: the exchange, with its context.
        parties: the committee, and all public identities.
        replies: what members and clients sent in this exchange, in any order, such as a transcript has them.

    Raises:
        MessageRefused: a message is malformed, sent twice, or not signed by its sender for this exchange.
        TooFewSurvivors: too few messages to open a sum.
    """
    by_stage: dict[str, dict[PartyId, Message]] = {}
    for reply in replies:
        if reply.sender in by_stage.setdefault(reply.stage, {}):
            raise ContradictionError(reply.sender, f"two messages of it are of stage {reply.stage!r}")
        by_stage[reply.stage][reply.sender] = reply
    state, stage, _ = server_open(session, parties, keep=True)
    while True:
        step = server_step(state, by_stage.get(stage, {}))
        if isinstance(step, Aggregate):
            return step
        state, stage, _ = step
