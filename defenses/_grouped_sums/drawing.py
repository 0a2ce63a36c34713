"""Draw the groups of a grouped sum from what all parties know, so that no exchange is added.

With identities the groups follow from all public identity keys: they are the same in every exchange and every run of
these clients, and each client's ledger keeps its own group for its data. Without identities they follow from the run's
identifier, so that they are the same in every exchange of one run.

Why fixed groups: each time that groups are drawn, chance may put a client among colluding ones only. Of 20 clients in
groups of 4, four colluders are all others of a given client's group with probability C(4, 3) / C(19, 3) = .4 % a draw;
if groups were drawn anew in each of 100 rounds, with probability 34 %. Where a sum opens over 3 of the 4 clients, two
colluders in the group are enough for a server that counts the third honest client as lost: 10 % a draw (`exposed`).

The order is that of hashes; the group of a client is its place in the order modulo G, so that sizes differ by one at
most. Not promised: anything against a party that chooses among many draws. A client that makes its identity after all
others are known can try 2^g keys, and a server that draws the identifier of a run as many identifiers; with identities
a server alone can change nothing, as it cannot write the keys.
"""

from __future__ import annotations

import math
from functools import lru_cache

from securefed._messages import ClientId
from securefed.defenses._secure_aggregation.identities import Identities
from securefed.defenses._secure_aggregation.primitives import fingerprint

Groups = tuple[tuple[ClientId, ...], ...]
"""The clients of each group, ascending."""


def groups_of(identities: Identities | None, run: str, clients: int, groups: int) -> Groups:
    """Draw the groups.

    Args:
        identities: public identities of the clients 0 to N - 1; `None` without them.
        run: identifier of the run, from which groups are drawn without identities.
        clients: N.
        groups: G.
    """
    if identities is None:
        return _drawn(run, tuple(b"" for _ in range(clients)), groups)
    return _drawn("", tuple(identities.known(client) for client in range(clients)), groups)


@lru_cache(maxsize=64)
def _drawn(run: str, keys: tuple[bytes, ...], groups: int) -> Groups:
    """Order the clients by hashes of all keys, or of the run, and deal them out to the groups in turn."""
    seed = fingerprint("securefed groups 1", run, groups, *sorted(keys))
    hashes = [fingerprint("securefed group order", seed, key or client) for client, key in enumerate(keys)]
    order = sorted(range(len(keys)), key=lambda client: hashes[client])
    return tuple(tuple(sorted(order[group::groups])) for group in range(groups))


def sizes(clients: int, groups: int) -> tuple[int, ...]:
    """Return the sizes of the groups, the different ones, ascending."""
    return tuple(sorted({clients // groups, -(-clients // groups)}))


def exposed(clients: int, size: int, threshold: int, colluders: int) -> float:
    """Return the probability with which colluders and the server see a given honest client's contribution, in one draw.

    They do where t - 1 of the others in its group collude, t being the fewest clients of a sum: the server counts
    honest ones as lost until t are left, and subtracts what the colluders sent.

    Args:
        clients: N.
        size: clients of its group.
        threshold: t.
        colluders: clients that collude, chosen before the draw.
    """
    others, honest = size - 1, clients - 1 - colluders
    draws = (math.comb(colluders, k) * math.comb(honest, others - k) for k in range(threshold - 1, size))
    return sum(draws) / math.comb(clients - 1, others)
