"""Hand the memory of a committee over to the next one, so that sums of the two do not subtract.

    statement = hand_over_committee(ledger, old, member)   # at each member of the old committee
    take_over_committee(ledger, old, [statement, ...])     # at each member of the new one

An opened sum was signed by a quorum of the old members, so `Committee.handing_over` statements include one of an honest
member that remembers it. A corrupt member can leave sums out, which others have, and invent some: then the new
committee refuses a sum that it might sign. Not promised: that a new committee did take the memory over. Its clients
cannot see it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from securefed._messages import ClientId
from securefed._runtime.committee_memory import CommitteeMemory
from securefed._runtime.ledger import Ledger
from securefed._runtime.sum_memory import SumMemory
from securefed.defenses._one_message import OneMessage
from securefed.defenses._secure_aggregation.primitives import fingerprint, label
from securefed.errors import ConfigError, DataError


def hand_over_committee(ledger: Ledger, committee: OneMessage, member: ClientId) -> bytes:
    """Write what a member remembers of sums, signed by it, for the members of the next committee.

    Args:
        ledger: the member's own.
        committee: the aggregation whose committee it is a member of, with its private identity.
        member: its id.

    Raises:
        ConfigError: it is no member, or its private identity is not held here.
    """
    if member not in committee.committee.members:
        raise ConfigError(f"client {member} is no member of the committee {committee.committee.members}")
    memory = ledger.sums.committee.to_bytes()
    signature = committee.identities.sign(member, _statement(committee, member, memory))
    return json.dumps({"member": member, "memory": memory.decode(), "signature": signature.hex()}).encode()


def take_over_committee(ledger: Ledger, committee: OneMessage, statements: Sequence[bytes]) -> None:
    """Add what the members of the last committee remember to this party's ledger, in one write.

    Args:
        ledger: of a member of the next committee.
        committee: the aggregation of the last committee, with its members' public identities.
        statements: what `hand_over_committee` returned at its members.

    Raises:
        ConfigError: statements of too few members.
        AuthenticationError: a statement is not signed by its member.
        DataError: a statement did not come from `hand_over_committee`.
    """
    found: dict[ClientId, CommitteeMemory] = {}
    for data in statements:
        member, memory, signature = _read(data)
        if member not in committee.committee.members:
            raise ConfigError(f"client {member} is no member of the committee {committee.committee.members}")
        committee.identities.verify(member, _statement(committee, member, memory), signature, "its hand-over")
        found[member] = CommitteeMemory.from_bytes(memory)
    if len(found) < (needed := committee.committee.handing_over):
        raise ConfigError(
            f"statements of {len(found)} members of the last committee; {needed} are needed, so that for every sum "
            "that was opened an honest member that signed it is among them"
        )

    def with_all(sums: SumMemory) -> SumMemory:
        for memory in found.values():
            sums = sums.with_committee(sums.committee.merged(memory))
        return sums

    ledger.change_sums(with_all)


def _statement(committee: OneMessage, member: ClientId, memory: bytes) -> bytes:
    return fingerprint("one message: hand over", label(*committee.committee.members), member, memory)


def _read(data: bytes) -> tuple[ClientId, bytes, bytes]:
    try:
        values: dict[str, Any] = json.loads(data)
        return int(values["member"]), values["memory"].encode(), bytes.fromhex(values["signature"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"no hand-over of a committee: {error!r}") from error
