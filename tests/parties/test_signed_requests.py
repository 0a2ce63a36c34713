"""Requests that a server signs, and the checks that a client makes before it parses anything or contributes twice."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from securefed.defenses import new_identity, public_identity, secure_aggregation
from securefed.errors import AuthenticationError, ConfigError, ContradictionError, MalformedError, MessageRefused
from securefed.parties import SumClient, SumServer, SumTerms

CLIENTS = 4
TERMS = SumTerms.like({"w": np.zeros(3)}, clients=CLIENTS, defense=secure_aggregation(), base=False, largest_weight=1.0)
SERVER, OTHER = new_identity(), new_identity()


def played(server: SumServer, clients: list[SumClient]) -> Any:
    server.open()
    while server.result is None:
        server.receive({i: clients[i].receive(data, {"w": np.full(3, i)}) for i, data in server.outgoing.items()})
    return server.result


def test_a_client_answers_the_server_whose_key_it_pins() -> None:
    clients = [SumClient(TERMS, i, server=public_identity(SERVER)) for i in range(CLIENTS)]
    assert played(SumServer(TERMS, identity=SERVER), clients).mean["w"] == pytest.approx(1.5)
    unpinned = [SumClient(TERMS, i) for i in range(CLIENTS)]  # a transport that says who wrote a request is enough
    assert played(SumServer(TERMS, identity=SERVER), unpinned).mean["w"] == pytest.approx(1.5)


@pytest.mark.parametrize("identity", [None, OTHER], ids=["unsigned", "signed by another"])
def test_a_request_of_another_is_refused_and_changes_nothing(identity: bytes | None) -> None:
    client = SumClient(TERMS, 0, server=public_identity(SERVER))
    with pytest.raises(AuthenticationError, match="another key" if identity else "not signed"):
        client.receive(SumServer(TERMS, identity=identity).open()[0])
    assert client.run is None and client.freeze() == b""
    client.receive(SumServer(TERMS, identity=SERVER).open()[0])  # the control


def test_a_signature_covers_every_byte() -> None:
    request = SumServer(TERMS, identity=SERVER).open()[0]
    for place in range(0, len(request), 7):
        altered = bytearray(request)
        altered[place] ^= 1
        with pytest.raises(MessageRefused):
            SumClient(TERMS, 0, server=public_identity(SERVER)).receive(bytes(altered))
    SumClient(TERMS, 0, server=public_identity(SERVER)).receive(request)  # the control


def test_keys_of_another_length_are_named() -> None:
    with pytest.raises(ConfigError, match="server must be a key of 32 bytes"):
        SumClient(TERMS, 0, server=b"short")
    with pytest.raises(ConfigError, match="identity must be a key of 32 bytes"):
        SumServer(TERMS, identity=b"short")


def padded(terms: SumTerms, request: bytes, names: int) -> bytes:
    """Put a list of empty tensors in place of a request's own."""
    start = 50
    length = struct.unpack_from("<Q", request, start)[0]
    index = json.loads(request[start + 8 : start + 8 + length])
    empty = {f"n{k}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for k in range(names)}
    head = json.dumps({"__metadata__": index["__metadata__"], **empty}).encode()
    return request[:start] + struct.pack("<Q", len(head)) + head


def test_a_message_that_is_longer_than_any_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the client and at the server; parsing 20,000 empty tensors takes a tenth of a second, 300,000 nine seconds."""
    server = SumServer(TERMS)
    request = server.open()[0]
    reply = SumClient(TERMS, 0).receive(request)
    SumClient(TERMS, 1).receive(padded(TERMS, server.outgoing[1], 100))  # the control: parsed, and refused by a reply

    def parsed(*_: Any) -> None:
        raise AssertionError("it was parsed")

    for module in ("securefed._messages", "securefed._tensors"):
        monkeypatch.setattr(f"{module}.decode", parsed)
    with pytest.raises(MalformedError, match="no message of these terms exceeds"):
        SumClient(TERMS, 0).receive(padded(TERMS, request, 20_000))
    with pytest.raises(MalformedError, match="no message of these terms exceeds"):
        SumClient(TERMS, 0).receive(request + bytes(TERMS.most_bytes))
    server.receive({0: padded(TERMS, reply, 20_000), 1: reply + bytes(TERMS.most_bytes)}, more=True)
    assert all("exceeds" in server.refusals[client] for client in (0, 1))


def test_a_refused_model_closes_its_exchange() -> None:
    """A server that could try one model after the other would learn which one a client has."""
    terms = SumTerms.like({"w": np.zeros(3)}, clients=CLIENTS, defense=secure_aggregation(), largest_weight=1.0)
    own, other = {"w": np.ones(3)}, {"w": np.zeros(3)}
    clients, server = [SumClient(terms, i) for i in range(CLIENTS)], SumServer(terms)
    server.open(base=own)
    while not server.wants_updates:
        server.receive({i: clients[i].receive(data) for i, data in server.outgoing.items()})
    request = server.outgoing[0]
    refused = clients[0].receive(request, own, base=other)
    assert b"another model" in refused
    again = clients[0].receive(request, own, base=own)
    assert b"is not open here" in again
    others = {i: clients[i].receive(data, own, base=own) for i, data in server.outgoing.items() if i}
    server.receive(others)
    while server.result is None:
        server.receive({i: clients[i].receive(data) for i, data in server.outgoing.items() if i})
    assert server.result.survivors == (1, 2, 3)
    server.open(base=own)  # the client is back in the next round
    while server.result is None:
        server.receive({i: clients[i].receive(data, own, base=own) for i, data in server.outgoing.items()})
    assert server.result.survivors == (0, 1, 2, 3)
    assert ContradictionError.__name__.encode() in again
