"""Malformed, replayed, re-ordered and forged messages, on both sides of a federation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed import SERVER, Dataset, Federation, InProcessTransport, Message, RunOptions, _messages, chain
from securefed.algorithms import DSGD, SSI
from securefed.defenses import secure_aggregation
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._homomorphic import InsecurePaillier
from securefed.errors import (
    ProtocolError,
    RangeRefused,
    SecureFedError,
)
from tests.examples import examples


def data(clients: int = 4, seed: int = 0) -> list[Dataset]:
    rng = np.random.default_rng(seed)
    return [Dataset(rng.uniform(-1, 1, (5 + i, 6)), np.arange(5 + i) % 3) for i in range(clients)]


DEFENSES = {
    "plain": chain(Quantise()),
    "secure_aggregation": chain(secure_aggregation()),
    "paillier": chain(InsecurePaillier(bits=512)),
}


class Tampering:
    """Mutates bytes on their way; keeps earlier messages for replays."""

    def __init__(self, inner: Any, pick: Any) -> None:
        self.inner, self.pick, self.seen = inner, pick, []

    def exchange(self, outgoing: Any, timeout: Any = None) -> Any:
        sent = {party: self.pick(self, data) for party, data in outgoing.items()}
        return {party: self.pick(self, data) for party, data in self.inner.exchange(sent, timeout).items()}


@pytest.mark.parametrize("name", DEFENSES)
@settings(max_examples=examples(40))
@given(data_=st.data())
def test_mutated_messages_end_in_a_right_sum_or_a_named_refusal(name, data_) -> None:
    """Structure is attacked on both sides; what is accepted must be the exact sum of the counted clients.

    Values inside a well-formed plain or Paillier upload are the authenticated channel's to protect (see the plans'
    assumptions), so mutations here hit headers and framing; secure aggregation's own tests also hit values.
    """
    victim = data_.draw(st.integers(0, 30))
    where = data_.draw(st.sampled_from(["header", "cut", "replay"]))
    position, value = data_.draw(st.integers(0, 400)), data_.draw(st.integers(0, 255))
    counter = [0]

    def pick(self: Tampering, raw: bytes) -> bytes:
        counter[0] += 1
        self.seen.append(raw)
        if counter[0] != victim + 1:
            return raw
        if where == "cut":
            return raw[: position % len(raw)]
        if where == "replay":
            return self.seen[position % len(self.seen)]
        length = 8 + int.from_bytes(raw[:8], "little")
        mutated = bytearray(raw)
        mutated[position % length] = value
        return bytes(mutated)

    class Tolerant(InProcessTransport):
        """A channel on which an unreadable request is a lost one."""

        def arrivals(self, outgoing: Any, timeout: Any = None) -> Any:
            readable = {}
            for party, raw in outgoing.items():
                try:
                    Message.decode(raw)
                except ProtocolError:
                    continue
                readable[party] = raw
            return super().arrivals(readable, timeout)

    method = SSI(rank=2, tolerance=0.0)
    federation = Federation(
        method, data(), DEFENSES[name], transport=lambda e: Tampering(Tolerant(e), pick), options=RunOptions(max_void=3)
    )
    try:
        result = federation.run(2)
    except SecureFedError:
        return
    for record in result.transcript.records:
        exact = sum(d.x.T @ d.x @ record.broadcast["basis"] for i, d in enumerate(data()) if i in record.survivors)
        np.testing.assert_allclose(record.total["product"], exact, atol=1e-9)


def test_the_tampering_harness_does_change_sums_without_its_checks() -> None:
    """Positive control: a value changed inside a plain upload is a wrong sum, so the oracle above can fail."""

    def pick(self: Tampering, raw: bytes) -> bytes:
        message = Message.decode(raw)
        if message.sender == SERVER or message.stage != "upload":
            return raw
        return replace(message, body=message.body | {"product": message.body["product"] + 1}).encode()

    federation = Federation(SSI(rank=2), data(), transport=lambda e: Tampering(InProcessTransport(e), pick))
    record = federation.run(1).transcript.records[0]
    exact = sum(d.x.T @ d.x @ record.broadcast["basis"] for d in data())
    assert np.abs(record.total["product"] - exact).max() > 1


def test_replayed_and_unopened_exchanges_are_refused_by_a_client() -> None:
    federation = Federation(DSGD(), data())
    federation.run(2)
    node = federation.nodes[1]
    uploads = [s.message for s in federation.transcript.sent if s.message.receiver == 1 and s.message.stage == "upload"]
    reply = node.handle(uploads[0])
    assert reply.stage == "refusal"
    assert b"ContradictionError" in reply.body["name"].tobytes()
    foreign = node.handle(replace(uploads[1], run="00" * 16, round=9))
    assert b"BindingError" in foreign.body["name"].tobytes()
    same = node.handle(replace(uploads[1], round=9))  # the same place of the run, under another number
    assert b"MalformedError" in same.body["name"].tobytes()
    later = uploads[1].body | {"session/place": np.array([2, 0]), "counted/exchange": np.array([1, 1, 1, 1])}
    fresh = node.handle(replace(uploads[1], round=9, body=later))  # positive control: not replayed
    assert fresh.stage == "upload"


def test_extreme_integers_in_an_upload_are_refused() -> None:
    lowest = np.iinfo(np.int64).min

    def pick(self: Tampering, raw: bytes) -> bytes:
        message = Message.decode(raw)
        if message.sender != 1 or message.stage != "upload":
            return raw
        return replace(message, body=message.body | {"product": np.full((6, 2), lowest)}).encode()

    federation = Federation(
        SSI(rank=2),
        data(),
        chain(Quantise()),
        transport=lambda e: Tampering(InProcessTransport(e), pick),
        options=RunOptions(max_void=1),
    )
    result = federation.run(1)
    assert result.history[0].survivors == (0, 2, 3)
    assert "bound" in result.history[0].refusals[1]


@pytest.mark.parametrize(("version", "survivors"), [(2, (0, 2, 3)), (1, (0, 1, 2, 3))])
def test_a_client_of_another_version_is_left_out_by_name(monkeypatch, version, survivors) -> None:
    def pick(self: Tampering, raw: bytes) -> bytes:
        message = Message.decode(raw)
        if message.sender != 1:
            return raw
        with monkeypatch.context() as patch:
            patch.setattr(_messages, "PROTOCOL_VERSION", version)
            return message.encode()

    federation = Federation(
        SSI(rank=2),
        data(),
        chain(secure_aggregation()),
        transport=lambda e: Tampering(InProcessTransport(e), pick),
    )
    entry = federation.run(1).history[0]
    assert entry.survivors == survivors
    assert ("speaks version 2" in entry.refusals.get(1, "")) == (version == 2)


def test_range_refusals_without_end_stop_the_run_by_name() -> None:
    def refuses(endpoints: Any) -> Any:
        inner = InProcessTransport(endpoints)

        class Refusing:
            def exchange(self, outgoing: Any, timeout: Any = None) -> Any:
                request = Message.decode(outgoing[0])
                body = {"name": np.frombuffer(b"RangeRefused", np.uint8), "text": np.zeros(0, np.uint8)}
                forged = Message(request.run, request.round, "refusal", 0, SERVER, body)
                return dict(inner.exchange(outgoing, timeout)) | {0: forged.encode()}

        return Refusing()

    with pytest.raises(RangeRefused, match="doubled 20 times"):
        Federation(DSGD(), data(), chain(Quantise()), transport=refuses, options=RunOptions(max_void=100)).run(1)


@pytest.mark.parametrize(
    "change",
    [
        {"session/cohort": np.array([0.0, np.inf])},
        {"session/cohort": np.array([0.9, 1.2])},
        {"session/kind": np.asarray(-1)},
        {"session/doublings": np.asarray(5000)},
        {"session/doublings": np.asarray(-3000)},
        {"counted/exchange": np.asarray(np.inf)},
        {"counted/exchange": np.full(3, -1)},
        {"session/place": np.array([0, 8])},
        {"session/place": np.array([-1, 0])},
        {"session/kind": np.asarray(1)},
        {"broadcast/weight": np.zeros((3, 6), bool)},
        {"broadcast/weight": np.zeros((6, 3))},
        {"broadcast/weight": None},
    ],
)
def test_malformed_requests_are_refused_by_name(change) -> None:
    federation = Federation(DSGD(), data(), chain(Quantise()))
    federation.run(1)
    request = next(s.message for s in federation.transcript.sent if s.message.receiver == 1)

    def answer(body: Any) -> str:
        node = Federation(DSGD(), data(), chain(Quantise())).nodes[1]
        node.run = federation.transcript.run
        return node.handle(replace(request, body=body)).stage

    assert answer(request.body) == "upload"  # positive control
    changed = dict(request.body) | change
    assert answer({name: value for name, value in changed.items() if value is not None}) == "refusal"
