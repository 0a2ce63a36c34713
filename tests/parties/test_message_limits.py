"""No message of an honest party comes near the longest that its terms allow, under any defence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from securefed.defenses import (
    Identities,
    chain,
    ckks,
    clip,
    gaussian,
    new_identity,
    paillier,
    public_identity,
    secure_aggregation,
    skellam,
    threshold_paillier,
)
from securefed.parties import SumClient, SumHelper, SumServer, SumTerms
from tests.combinations import first_ones

CLIENTS = 7
KEYS = [new_identity() for _ in range(CLIENTS)]
PUBLIC = Identities({client: public_identity(key) for client, key in enumerate(KEYS)})
DEFENSES = {
    "plain": None,
    "masks": secure_aggregation(),
    "verified masks": secure_aggregation(identities=PUBLIC, verify=True),
    "distributed noise": chain(clip(1.0), skellam(1.0), secure_aggregation()),
    "central noise": chain(clip(1.0), gaussian(1.0), secure_aggregation()),
    "paillier": paillier(),
    "threshold paillier": threshold_paillier(),
    "ckks": ckks(),
}


def example(tensors: int, size: int) -> dict[str, Any]:
    return {f"layer.{k}.a name of some length": np.full(size, 0.01) for k in range(tensors)}


@pytest.mark.parametrize(("tensors", "size"), first_ones([(10, 2), (1, 1), (1, 5000)]))
@pytest.mark.parametrize("name", DEFENSES)
def test_messages_are_well_below_the_limit(name: str, tensors: int, size: int) -> None:
    update, defense = example(tensors, size), DEFENSES[name]
    weight = None if "noise" in name else 1.0
    terms = SumTerms.like(update, clients=CLIENTS, defense=defense, base=False, bounds=1.0, largest_weight=weight)
    identity = name == "verified masks"
    given = {"update": update} | ({} if weight is None else {"weight": weight})
    members: dict[int, Any] = {i: SumClient(terms, i, identity=KEYS[i] if identity else None) for i in range(CLIENTS)}
    members |= {party: SumHelper(terms) for party in terms.defense.aggregation.beside}
    server, longest, fields = SumServer(terms), {"request": 0, "reply": 0}, 0
    for _ in range(2):
        server.open()
        while server.result is None:
            replies = {}
            for party, request in server.outgoing.items():
                replies[party] = members[party].receive(request, **(given if party >= 0 else {}))
                for way, data in (("request", request), ("reply", replies[party])):
                    longest[way] = max(longest[way], len(data))
                    fields = max(fields, int.from_bytes(data[50:58], "little"))
            server.receive(replies)
    limits = terms.core.limits
    assert longest["request"] < limits.request
    assert longest["reply"] < limits.reply / 1.2
    assert fields < limits.fields / 2
    assert limits.reply < 2**16 + 4 * longest["reply"] + 2000 * tensors  # and the limit is no formality
