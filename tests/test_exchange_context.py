"""Clients that were told different things are not summed, whatever the server checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securefed import SERVER, Dataset, Federation, InProcessTransport, Message, RunOptions, chain
from securefed._persistence.packing import nest, unnest
from securefed._runtime import open_exchange
from securefed._runtime import sum_node as node
from securefed._runtime.exchange_context import CountedClients, CountedExchanges, tensors_digest
from securefed.algorithms import SSI, FedPG
from securefed.defenses import Defense, Identities, secure_aggregation
from securefed.defenses._secure_aggregation import masking_server, session
from securefed.errors import RoundVoid

RNG = np.random.default_rng(3)
DATA = [Dataset(RNG.uniform(-1, 1, (8, 5)), np.arange(8) % 2) for _ in range(5)]
VICTIM = 2
METHOD = SSI(rank=2, tolerance=0.0)


def defenses() -> dict[str, Defense]:
    identities = Identities.generate(len(DATA))
    return {
        "secure_aggregation": chain(secure_aggregation()),
        "pipelined": chain(secure_aggregation(pipelined=True)),
        "active": chain(secure_aggregation(identities=identities, pipelined=True)),
    }


class Deviating(InProcessTransport):
    """Sends the true basis to one client, and to all others another one; believes every upload."""

    def arrivals(self, outgoing: Mapping[int, bytes], timeout: float | None = None) -> Any:
        return super().arrivals({party: self.altered(party, data) for party, data in outgoing.items()}, timeout)

    def altered(self, party: int, data: bytes) -> bytes:
        message = Message.decode(data)
        if message.stage != "upload" or party == VICTIM:
            return data
        other = {name: value[::-1].copy() for name, value in unnest("broadcast", message.body).items()}
        return replace(message, body={**message.body, **nest("broadcast", other)}).encode()


def believing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server checks no upload's tag, so that only the masks are left to protect the clients."""
    real = masking_server.verify

    def verify(secret: bytes, message: Message, context: bytes = b"") -> None:
        if message.stage != "upload" or message.sender == SERVER:
            real(secret, message, context)

    monkeypatch.setattr(masking_server, "verify", verify)


@pytest.mark.parametrize("name", defenses())
def test_a_sum_over_clients_that_were_told_different_broadcasts_is_noise(name: str, monkeypatch: Any) -> None:
    believing(monkeypatch)
    federation = Federation(METHOD, DATA, defenses()[name], transport=Deviating, options=RunOptions(max_void=2))
    with pytest.raises(RoundVoid):
        federation.run(1)
    assert federation.transcript.records == []

    monkeypatch.setattr(open_exchange, "exchange_context", lambda *_: b"")  # positive control: without the context
    monkeypatch.setattr(node, "exchange_context", lambda *_: b"")
    opened = Federation(METHOD, DATA, defenses()[name], transport=Deviating).run(1).transcript.records[0]
    told = opened.broadcast["basis"]
    wrong = [data.x.T @ data.x @ told[::-1] for index, data in enumerate(DATA) if index != VICTIM]
    exact = DATA[VICTIM].x.T @ DATA[VICTIM].x @ told + sum(wrong)
    np.testing.assert_allclose(opened.total["product"], exact, atol=1e-9)


@pytest.mark.parametrize("name", defenses())
def test_a_server_that_follows_the_protocol_drops_who_was_told_something_else_on_the_way(name: str) -> None:
    class OneDeceived(Deviating):
        def altered(self, party: int, data: bytes) -> bytes:
            return super().altered(-1 if party == VICTIM else VICTIM, data)

    entry = Federation(METHOD, DATA, defenses()[name], transport=OneDeceived).run(1).history[0]
    assert entry.survivors == (0, 1, 3, 4)
    assert "tag" in entry.refusals[VICTIM]


@pytest.mark.parametrize("lie", ["counted", "followed"])
def test_what_one_client_is_told_of_earlier_rounds_is_bound_too(lie: str) -> None:
    """Under sampling FedPG tells each client the mean that followed from its own last round."""

    class Lying(InProcessTransport):
        def arrivals(self, outgoing: Mapping[int, bytes], timeout: float | None = None) -> Any:
            return super().arrivals({party: self.altered(party, data) for party, data in outgoing.items()}, timeout)

        def altered(self, party: int, data: bytes) -> bytes:
            message = Message.decode(data)
            body = dict(message.body)
            if message.stage != "upload" or party != VICTIM:
                return data
            if lie == "followed":
                if "commit/broadcast/basis" in body:
                    body["commit/broadcast/basis"] = body["commit/broadcast/basis"] + 1
            elif message.round == 2:  # not the exchange that counted it
                own = body["session/cohort"].tolist().index(party) if "session/cohort" in body else party
                counted = body["counted/exchange"].copy()
                counted[own] = 7
                body["counted/exchange"] = counted
            return replace(message, body=body).encode()

    method = FedPG(rank=2, tolerance=0.0, local_steps=2)
    cohorts = [(0, 1, 2, 3), (0, 1, 3, 4), (0, 1, 2, 3), (0, 2, 3, 4)]
    options: dict[str, Any] = {"cohort": 4, "seed": 1, "options": RunOptions(schedule=lambda k: cohorts[k])}
    honest = Federation(method, DATA, chain(secure_aggregation()), **options).run(4)
    assert not any(entry.refusals for entry in honest.history)  # positive control
    told = Federation(method, DATA, chain(secure_aggregation()), transport=Lying, **options).run(4)
    refused = [entry.refusals.get(VICTIM, "") for entry in told.history]
    words = "is not the one it lists" if lie == "followed" else "was counted last"
    assert any(words in text for text in refused)


class Apart(InProcessTransport):
    """Lies to one client of the last round, beside the list that all clients read."""

    lie = ""

    def arrivals(self, outgoing: Mapping[int, bytes], timeout: float | None = None) -> Any:
        return super().arrivals({party: self.altered(party, data) for party, data in outgoing.items()}, timeout)

    def altered(self, party: int, data: bytes) -> bytes:
        message = Message.decode(data)
        if party != VICTIM or (self.lie, message.stage) not in (
            ("in its request", "upload"),
            ("by a settle", "commit"),
        ):
            return data
        lies = {"commit/round": np.asarray(-1)} if message.stage == "upload" else {"broadcast/basis": FAKE["basis"]}
        return replace(message, body={**message.body, **lies}).encode()


FAKE = {"basis": np.full((5, 2), 0.25)}


@pytest.mark.parametrize("lie", ["", "in its request", "by a settle"])
def test_nothing_beside_the_list_moves_a_client_to_another_state(lie: str) -> None:
    """A request's own `commit/round` is not heeded; a broadcast that a settle told of is compared with the list."""
    transport = type("Lying", (Apart,), {"lie": lie})
    method = FedPG(rank=2, tolerance=0.0, local_steps=2)
    runs = [
        Federation(method, DATA, chain(secure_aggregation()), transport=t, seed=1)
        for t in (InProcessTransport, transport)
    ]
    for federation in runs:
        federation.run(1)
    honest, deceived = (federation.run(3) for federation in runs)
    if lie == "by a settle":
        assert "another broadcast" in deceived.history[1].refusals[VICTIM]
        return
    assert not deceived.history[-1].refusals
    exchange = honest.history[-1].exchange
    for client in range(len(DATA)):
        own, told = (result.transcript.contributions[exchange, client] for result in (honest, deceived))
        np.testing.assert_array_equal(own["point"], told["point"])


def test_a_list_with_two_broadcasts_after_one_exchange_is_refused_by_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client checks its own row alone, so the rows of one exchange have to agree."""
    listed, body = CountedClients.listed, CountedClients.body

    def forged(self: CountedClients, cohort: Any) -> CountedExchanges:
        honest = listed(self, cohort)
        if self.followed:
            honest.followed[VICTIM] = np.frombuffer(tensors_digest(FAKE), np.uint8)
        return honest

    def told(self: CountedClients, client: int) -> dict[str, Any]:
        return body(self, client) | (nest("commit/broadcast", FAKE) if client == VICTIM and self.followed else {})

    monkeypatch.setattr(CountedClients, "listed", forged)
    monkeypatch.setattr(CountedClients, "body", told)
    federation = Federation(
        FedPG(rank=2, tolerance=0.0), DATA, chain(secure_aggregation()), options=RunOptions(max_void=2)
    )
    with pytest.raises(RoundVoid, match="two broadcasts"):
        federation.run(2)


def test_the_list_of_who_was_counted_takes_at_most_48_bytes_a_member_and_is_read_back() -> None:
    followed = {4: tensors_digest({"x": np.ones(3)})}
    listed = CountedExchanges.of((0, 2, 5), {0: 4, 5: 4}, followed)
    assert sum(value.nbytes for value in listed.body().values()) <= 48 * 3
    message = Message("0" * 32, 5, "upload", SERVER, 2, listed.body())
    again = CountedExchanges.read(message, (0, 2, 5), followed=True)
    assert again.digest == listed.digest
    assert again.exchanges.tolist() == [4, -1, 4]
    assert CountedExchanges.of((0, 2, 5), {0: 4, 5: 3}, followed).digest != listed.digest


def test_digests_tell_names_types_shapes_and_entries_apart() -> None:
    base = {"a": np.zeros((2, 3)), "b": np.zeros(2)}
    others: list[dict[str, Any]] = [
        {"a": np.zeros((3, 2)), "b": np.zeros(2)},
        {"a": np.zeros((2, 3), np.int64), "b": np.zeros(2)},
        {"c": np.zeros((2, 3)), "b": np.zeros(2)},
        {"a": np.zeros((2, 3)), "b": np.array([0.0, 1e-300])},
        {"a": np.zeros((2, 3))},
    ]
    assert tensors_digest(dict(reversed(base.items()))) == tensors_digest(base)
    assert len({tensors_digest(value) for value in [base, *others]}) == 6


def test_what_all_parties_agree_on_is_digested_once_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each digest covers the ids of the whole cohort."""
    counted: Counter[Any] = Counter()
    real = session.fingerprint
    monkeypatch.setattr(session, "fingerprint", lambda word, *rest: counted.update([word]) or real(word, *rest))
    Federation(METHOD, DATA, chain(secure_aggregation())).run(2)
    assert counted["securefed secure aggregation 8"] == counted["sharers"] == 2  # rounds
    assert counted["roster"] == 2 * (len(DATA) + 1)  # positive control: each party digests the keys that it was sent
