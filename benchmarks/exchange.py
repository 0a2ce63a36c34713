"""One exchange under a defence, all parties in this process, each party's work on a clock of its own."""

from __future__ import annotations

import secrets
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from securefed.defenses.base import Aggregation, Plan, Session
from securefed.defenses.secure_aggregation.graph import _circle
from securefed.messages import SERVER, Aggregate, Message
from securefed.tensors import Tensors

Contribute = Callable[[int], Tensors]


@dataclass
class Measured:
    """What one exchange cost.

    Attributes:
        client, server: CPU seconds of one client (mean of those that did everything) and of the server.
        sent: bytes a client sent at each stage.      received: bytes a client was sent, all stages.
        client_memory, server_memory: most bytes allocated within one step, beside what it was handed.
    """

    client: float = 0.0
    server: float = 0.0
    sent: dict[str, int] = field(default_factory=dict)
    received: int = 0
    client_memory: int = 0
    server_memory: int = 0


def exchange(
    protocol: Aggregation, plan: Plan, encode: Contribute, lost: int = 0, *, trace: bool = False
) -> tuple[Aggregate, Measured]:
    """The encoded sum of all but the last `lost` clients, which do not upload, and what it cost.

    Args:
        encode: the encoded contribution of a client; its time counts as the client's.
        trace: whether to trace memory: of client 0, whose time then does not count, and of the server, whose steps
            are then made twice.
    """
    clients = plan.clients
    session, out = Session(secrets.token_hex(16), 0, tuple(range(clients)), plan), Measured()
    states = {}
    for client in session.cohort:
        states[client], seconds = _clocked(protocol.client_open, session, client)
        out.client += seconds / clients
    step, out.server = _clocked(protocol.server_open, session)
    while not isinstance(step, Aggregate):
        server, stage, outgoing = step
        replies, mean = {}, 0.0
        asked = [c for c in outgoing if stage != protocol.upload or c < clients - lost]
        for client in asked:
            request = Message(session.run, 0, stage, SERVER, client, outgoing[client])
            _circle.cache_clear()  # every client draws the graph for itself

            def act(client: int = client, request: Message = request, stage: str = stage) -> Any:
                encoded = encode(client) if stage == protocol.upload else None
                return protocol.client_step(states[client], request, encoded)

            if trace and client == 0:
                (states[client], body), peak = _traced(act)
                out.client_memory = max(out.client_memory, peak)
            else:
                (states[client], body), seconds = _clocked(act)
                mean += seconds / (len(asked) - trace)
            replies[client] = Message(session.run, 0, stage, client, SERVER, body)
        out.client += mean
        out.sent[stage] = _bytes(replies[asked[0]].body)
        out.received += _bytes(outgoing[asked[0]])
        if trace:
            _, peak = _traced(lambda server=server, replies=replies: protocol.server_step(server, replies))
            out.server_memory = max(out.server_memory, peak)
        step, seconds = _clocked(protocol.server_step, server, replies)
        out.server += seconds
    return step, out


def uniform(clients: int, entries: int) -> Callable[[int], dict[str, Any]]:
    """Contributions of uniform numbers, one for each client, drawn from 8 vectors so that drawing costs little."""
    rng = np.random.default_rng(0)
    vectors = [rng.uniform(-1, 1, entries) for _ in range(min(clients, 8))]
    return lambda client: {"w": vectors[client % len(vectors)]}


def _bytes(body: Mapping[str, Any]) -> int:
    return sum(value.nbytes for value in body.values())


def _clocked(call: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    start = time.process_time()
    result = call(*arguments)
    return result, time.process_time() - start


def _traced(call: Callable[[], Any]) -> tuple[Any, int]:
    tracemalloc.start()
    result = call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return result, peak
