"""Measure a client's upload: beside its own mask stream, with masks made ahead, and the checks of a verified sum.

The figures are CPU times of one thread. The peer is another of our own ways to do the same, or the cipher alone, in
the same run.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

import numpy as np

from benchmarks.peers.exchange import _forget
from benchmarks.rows import Row, clocked, row, show, write
from securefed._messages import SERVER, Message, PartyId
from securefed._tensors import Layout, TensorSpec
from securefed.defenses._base import INDICATOR, Defense, Session, UploadContext, without_indicator
from securefed.defenses._chain import chain
from securefed.defenses._secure_aggregation import SecureAggregation, secure_aggregation
from securefed.defenses._secure_aggregation.mask_streams import (
    CHUNKS,
    PATHS,
    ChunkBuffers,
    choice,
    forced,
    mask_stream,
    measure,
)
from securefed.defenses._secure_aggregation.mersenne import dot
from securefed.defenses._secure_aggregation.primitives import agree, private_key, public_bytes
from securefed.defenses._secure_aggregation.verification import FULL

RUNS, ENTRIES, CLIENTS = 9, 1_000_000, 100
SPARSE = {"graph": "sparse", "adversarial": 0.1, "dropouts": 0.3}
STREAM_TURNS, STREAM_CHUNK = 21, 1 << 17


def main() -> None:
    """Measure and write `results/upload_path.json`."""
    beside = [row for path in PATHS for options in ({}, SPARSE) for row in _beside_its_stream(path, options)]
    rows = [*beside, *_verification(), *_critical_path({}), *_critical_path(SPARSE)]
    path = write("upload_path", rows)
    show(rows)
    print(path)


def _verification() -> Iterator[Row]:
    rng, key = np.random.default_rng(0), secrets.token_bytes(32)
    words = np.frombuffer(secrets.token_bytes(8 * ENTRIES), np.uint64)
    plan = _defense({"verify": True}).plan(_layout(ENTRIES), CLIENTS)
    for bits in (32, 64):
        values = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, ENTRIES)
        speeds = [ENTRIES / _ms(lambda values=values: dot(words, values)) / 1e3 for _ in range(RUNS)]
        yield row(
            "dot product modulo 2^61 - 1", f"values of {bits} bits, d={ENTRIES:.0e}", speeds, "M values/s",
            target=">= 10", met=median(speeds) >= 10,
        )  # fmt: skip
    values = rng.integers(-(2**20), 2**20, ENTRIES)
    times = [_ms(lambda: FULL.product(key, {"w": values}, without_indicator(plan))) for _ in range(RUNS)]
    yield row("tag of an upload, or check of a sum", f"d={ENTRIES:.0e}, weights made", times, "ms")


def _critical_path(options: Mapping[str, Any]) -> Iterator[Row]:
    """Time the step from the encoded contribution to the upload, with masks made then or while the client trained."""
    defense = _defense(options)
    plan, protocol = defense.plan(_layout(ENTRIES), CLIENTS), defense.aggregation
    assert isinstance(protocol, SecureAggregation)
    session = Session(secrets.token_hex(16), 0, tuple(range(CLIENTS)), plan)
    waiting, request = _until_upload(protocol, session)
    state = protocol.client_accept(waiting, request, UploadContext(b"", b""))
    encoded = {"w": np.random.default_rng(0).integers(-1000, 1000, ENTRIES), INDICATOR: np.zeros(2, np.int64)}
    ready = protocol.client_prepare(state)
    now = [_ms(lambda: protocol.client_upload(state, encoded)) for _ in range(RUNS)]
    ahead = [_ms(lambda: protocol.client_upload(ready, encoded)) for _ in range(RUNS)]
    graph = f"k={plan.masking.degree}" if plan.masking and plan.masking.degree else "complete"
    setting = f"N={CLIENTS}, d={ENTRIES:.0e}, {graph}"
    yield row(
        "upload on the critical path", setting, ahead, "ms", peer=median(now), peer_name="masks made then",
        target="<= 5 ms", met=median(ahead) <= 5,
    )  # fmt: skip


def _beside_its_stream(path: str, options: Mapping[str, Any]) -> Iterator[Row]:
    """Compare all that a client computes until its upload with making the words of its masks alone; in turns.

    Beside it stands what the protocol costs in NumPy at least: the encoding, the checks and the derivation of keys are
    not in that.

    Args:
        path: how both make their streams; ours in the chunks that are fastest here.
        options: of the defence.
    """
    defense = _defense(options)
    plan, protocol = defense.plan(_layout(ENTRIES), CLIENTS), defense.aggregation
    assert isinstance(protocol, SecureAggregation)
    assert plan.masking is not None
    session = Session(secrets.token_hex(16), 0, tuple(range(CLIENTS)), plan)
    before: list[tuple[Any, Message]] = []
    waiting, request = _until_upload(protocol, session, before)
    value = {"w": np.random.default_rng(0).uniform(-1, 1, ENTRIES)}
    kept = []  # uploads stay in memory until they are sent

    def client() -> None:
        _forget()
        for state, earlier in before:
            protocol.client_step(state, earlier, None)
        accepted = protocol.client_accept(waiting, request, UploadContext(b"", b""))
        kept.append(protocol.client_upload(accepted, defense.encode(value, plan))[1])

    masks = (plan.masking.degree or CLIENTS - 1) + 1
    zeros, buffer = memoryview(bytes(STREAM_CHUNK)), bytearray(STREAM_CHUNK + 15)

    def stream() -> None:
        for seed in [secrets.token_bytes(32) for _ in range(masks)]:
            made = PATHS[path](seed)
            for start in range(0, 4 * ENTRIES, STREAM_CHUNK):
                made.update_into(zeros[: 4 * ENTRIES - start], buffer)

    own, other = private_key(secrets.token_bytes(32)), public_bytes(private_key(secrets.token_bytes(32)))

    def least() -> None:
        """Do what NumPy code must: make each stream, add it, and agree on two keys with each neighbour."""
        streams = [(mask_stream(secrets.token_bytes(32)), True) for _ in range(masks)]
        buffers = ChunkBuffers(np.dtype("<u4"), choice().chunk)
        for start in range(0, ENTRIES, buffers.size):
            buffers.sum(streams, min(buffers.size, ENTRIES - start))
        for _ in range(2 * (masks - 1)):
            agree(own, other, 1)

    speeds = measure()
    with forced(path, max(CHUNKS, key=lambda chunk: speeds[path, chunk])):
        calls = (client, stream, least)
        for call in calls:
            call()
        ours, alone, bound = zip(*(map(_ms, calls) for _ in range(STREAM_TURNS)), strict=True)
    times, most = median(mine / its for mine, its in zip(ours, alone, strict=True)), 2.0 if options else 1.6
    graph = f"k={plan.masking.degree}" if plan.masking.degree else "complete"
    yield row(
        "client CPU until its upload", f"N={CLIENTS}, d={ENTRIES:.0e}, {graph}, {path}", ours, "ms",
        peer=median(alone), peer_name="its own mask stream, made only", target=f"<= {most:g} times the peer",
        met=times <= most,
    )  # fmt: skip
    yield row(
        "least client CPU until its upload", f"N={CLIENTS}, d={ENTRIES:.0e}, {graph}, {path}", bound, "ms",
        peer=median(alone), peer_name="its own mask stream, made only",
    )  # fmt: skip


def _until_upload(
    protocol: SecureAggregation, session: Session, before: list[tuple[Any, Message]] | None = None
) -> tuple[Any, Message]:
    """Return client 0 as it waits for the request for its upload, and the request; `before` takes what came earlier."""
    clients = {client: protocol.client_open(session, client) for client in session.cohort}
    state, stage, outgoing = protocol.server_open(session)
    while stage != protocol.upload:
        replies: dict[PartyId, Message] = {}
        for client, body in outgoing.items():
            request = Message(session.run, 0, stage, SERVER, client, body)
            if client == 0 and before is not None:
                before.append((clients[client], request))
            clients[client], reply = protocol.client_step(clients[client], request, None)
            replies[client] = Message(session.run, 0, stage, client, SERVER, reply)
        step = protocol.server_step(state, replies)
        assert isinstance(step, tuple)
        state, stage, outgoing = step
    return clients[0], Message(session.run, 0, stage, SERVER, 0, outgoing[0])


def _defense(options: Mapping[str, Any]) -> Defense:
    return chain(secure_aggregation(**options))


def _layout(entries: int) -> Layout:
    return Layout((TensorSpec("w", (entries,), 8.0),))


def _ms(call: Callable[[], object]) -> float:
    return clocked(call)[1] * 1e3


if __name__ == "__main__":
    main()
