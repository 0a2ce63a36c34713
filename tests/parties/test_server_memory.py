"""A server of a sum holds a few vectors, however many clients there are: uploads are added as they arrive."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from securefed import chain
from securefed.defenses import secure_aggregation
from securefed.parties import SumClient, SumServer, SumTerms

ENTRIES = 100_000
VECTOR = 8 * ENTRIES


class Meter:
    """Counts what calls of the server allocate and keep; what clients do between them is left out."""

    def __init__(self) -> None:
        self.held = self.most = 0

    def __call__(self, call: Callable[[], Any]) -> Any:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        out = call()
        after, peak = tracemalloc.get_traced_memory()
        self.most = max(self.most, self.held + peak - before)
        self.held += after - before
        return out


def most_held(defense: Any, clients: int) -> int:
    """Bytes that a server holds at most in two rounds."""
    terms = SumTerms.like({"w": np.zeros(ENTRIES)}, clients=clients, defense=defense, bounds=8.0, base=False)
    members = [SumClient(terms, party) for party in range(clients)]
    meter, update = Meter(), {"w": np.ones(ENTRIES)}
    tracemalloc.start()
    try:
        server = meter(lambda: SumServer(terms))
        for _ in range(2):
            meter(server.open)
            while server.result is None:
                for party in list(server.outgoing):
                    request = meter(lambda party=party: server.outgoing[party])
                    meter.held -= len(request)  # the caller's from here on
                    reply = members[party].receive(request, update)
                    meter(lambda party=party, reply=reply: server.receive({party: reply}, more=True))
            assert server.result.total["w"].tolist() == [clients] * ENTRIES
    finally:
        tracemalloc.stop()
    return meter.most


@pytest.mark.exhaustive
def test_memory_of_a_server_grows_with_the_vector_and_not_with_the_clients() -> None:
    """Measured: 6.9 vectors for 16 clients, 8.0 for 64, of which 0.8 are the clients' encrypted shares.

    Positive control: in the clear a server keeps the uploads, whose floats it adds in the order of the clients.
    """
    few, many = most_held(secure_aggregation(), 16), most_held(secure_aggregation(), 64)
    assert many < 1.4 * few < 12 * VECTOR
    assert most_held(chain(), 64) > 64 * VECTOR
