"""Compute the contributions of simulated clients in one batch.

`Federation` makes one batch of the clients that it simulates, and the in-process transport hands it each stage's
messages. A client answers a request for an upload in three steps: `begin` checks it and marks the exchange as answered,
`compute` computes the contribution, and `finish` protects it by the defence. Every client still runs the first and the
last by itself. Only the contributions are computed together, for speed: results agree with the client-by-client path up
to rounding, which depends on the clients in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from securefed._messages import Message, PartyId
from securefed._runtime.client import ClientNode
from securefed._runtime.client_state import ComputedContribution, PendingUpload
from securefed._tensors import Tensors
from securefed.algorithms._capabilities import SupportsBatches, supports


class ClientBatch:
    """Simulated clients that run the same algorithm and answer a stage together (a `BatchEndpoint`).

    Args:
        nodes: the clients, by id.
    """

    def __init__(self, nodes: Mapping[PartyId, ClientNode]) -> None:
        self._nodes = nodes

    def handle_all(self, messages: Mapping[PartyId, Message]) -> dict[PartyId, Message]:
        """Answer one message of each client."""
        replies: dict[PartyId, Message] = {}
        waiting: dict[PartyId, PendingUpload] = {}
        for party, message in messages.items():
            begun = self._nodes[party].begin(message)
            if isinstance(begun, PendingUpload):
                waiting[party] = begun
            else:
                replies[party] = begun
        for party, computed in self._compute(waiting).items():
            replies[party] = self._nodes[party].finish(waiting[party], computed)
        return replies

    def _compute(self, waiting: Mapping[PartyId, PendingUpload]) -> dict[PartyId, ComputedContribution]:
        """Compute all clients' contributions; an exception stands for a client that has none."""
        out: dict[PartyId, ComputedContribution] = {}
        for parties in _alike(waiting):
            algorithm = self._nodes[parties[0]].algorithm
            if len(parties) == 1 or not supports(algorithm, SupportsBatches) or not self._train(waiting, parties):
                out |= {party: self._nodes[party].compute(waiting[party]) for party in parties}
                continue
            states = [waiting[party].state.committed for party in parties]
            rngs = [self._nodes[party].rng(waiting[party]) for party in parties]
            computed: Sequence[ComputedContribution]
            try:
                computed = algorithm.contribute_together(states, waiting[parties[0]].broadcast, rngs)
            except Exception:  # one client's data failed: computed alone, that client refuses or sits out
                computed = [self._nodes[party].compute(waiting[party]) for party in parties]
            out |= dict(zip(parties, computed, strict=True))
        return out

    @staticmethod
    def _train(waiting: Mapping[PartyId, PendingUpload], parties: list[PartyId]) -> bool:
        """Tell whether all these clients are asked for a training contribution and can compute one."""
        return all(waiting[party].fault is None and waiting[party].state.trains for party in parties)


def _alike(waiting: Mapping[PartyId, PendingUpload]) -> list[list[PartyId]]:
    """Group clients by the broadcast they received: one group, unless server or transport sent different ones."""
    groups: list[list[PartyId]] = []
    for party, pending in waiting.items():
        for group in groups:
            if _same(waiting[group[0]].broadcast, pending.broadcast):
                group.append(party)
                break
        else:
            groups.append([party])
    return groups


def _same(a: Tensors, b: Tensors) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)
