"""Secure aggregation beside Flower's SecAgg, in one run: `python -m benchmarks.peers.secure_aggregation`.

Each side in one process, all stages, encoding and decoding included, transports left out, CPU time of all threads.
Flower (the version of constraints.txt) runs `benchmarks/peers/flower_secagg.py` in a process of its own: its own stage
functions and primitives, complete graph, same threshold.
Ours and Flower's take turns and medians are compared, so that no stretch of the machine's time favours one; Flower's
server, a minute or two a run, has one turn between ours. Parts can be run alone, and each keeps the rows of the others:

    python -m benchmarks.peers.secure_aggregation [server] [server-dropouts] [client] [primitives]

A client beside its own mask stream is measured by `benchmarks.peers.upload_path`.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.peers.exchange import exchange, uniform
from benchmarks.rows import Row, clocked, cpu, row, run_parts
from securefed._tensors import Layout, Tensors, TensorSpec
from securefed.defenses._base import Defense
from securefed.defenses._chain import chain
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._secure_aggregation import Identities, secure_aggregation
from securefed.defenses._secure_aggregation.mask_streams import mask_stream
from securefed.defenses._secure_aggregation.masks import SignedMask, apply_masks
from securefed.defenses._secure_aggregation.primitives import FIELD

ROOT = Path(__file__).parents[2]
REPEATS = 3
PEER = "Flower SecAgg 1.41.0"
DEFENSE = chain(secure_aggregation())
Measured = dict[str, float]


@dataclass(frozen=True)
class Variant:
    """A way to run a round, beside the one that is judged."""

    words: str
    defense: Defense
    prepared: bool = False
    exchanges: int = 4


def _variants(clients: int) -> list[Variant]:
    identities = Identities.generate(clients)
    return [
        Variant("", DEFENSE),
        Variant(", active", chain(secure_aggregation(identities=identities)), exchanges=5),
        Variant(", after the first round", chain(secure_aggregation(pipelined=True)), prepared=True, exchanges=2),
        Variant(
            ", active, after the first round", chain(secure_aggregation(identities=identities, pipelined=True)),
            prepared=True, exchanges=3,
        ),
    ]  # fmt: skip


LARGE = [  # setting, defence, clients lost at the upload, how often faster than the peer's complete graph
    ("N=100, d=1e+06, 20 bits", chain(Quantise(20), secure_aggregation()), 48, 30),
    (
        "N=100, d=1e+06, sparse for 10 % / 10 %",
        chain(secure_aggregation(graph="sparse", adversarial=0.1, dropouts=0.1)), 10, 100,
    ),
    (
        "N=100, d=1e+06, sparse for 10 % / 30 %",
        chain(secure_aggregation(graph="sparse", adversarial=0.1, dropouts=0.3)), 30, 60,
    ),
]  # fmt: skip


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and write `results/secure_aggregation.json`."""
    parts: dict[str, Callable[[], list[Row]]] = {
        "server": lambda: _round(64, 100_000, 0),
        "server-dropouts": lambda: _round(64, 100_000, 6),
        "client": _large_client,
        "primitives": lambda: [_shamir(), *_mask_generator()],
    }
    run_parts("secure_aggregation", __doc__ or "", parts, arguments)


def _turns(ours: Sequence[Callable[[], Measured]], peer: Callable[[], Measured]) -> list[list[Measured]]:
    """`REPEATS` turns: each of ours, then the peer; what each measured, the peer's last. The first turn of ours does
    not count: it fills caches."""
    for call in ours:
        call()
    found = [[call() for call in (*ours, peer)] for _ in range(REPEATS)]
    return [list(measured) for measured in zip(*found, strict=True)]


def _round(clients: int, entries: int, dropped: int) -> list[Row]:
    """The peer's takes a minute or two: it has one turn, between turns of ours.

    It has neither signatures nor rounds that are prepared: its one way to run a round stands beside all of ours.
    """
    variants = _variants(clients)

    def ours() -> list[Measured]:
        return [_exchange(clients, entries, dropped, way.defense, prepared=way.prepared) for way in variants]

    before = [ours() for _ in range(REPEATS + 1)][1:]
    peer = _peer("round", clients, entries, dropped)
    turns = before + [ours() for _ in range(REPEATS)]
    out = []
    for way, runs in zip(variants, zip(*turns, strict=True), strict=True):
        setting = f"N={clients}, d={entries:.0e}, {dropped} drop at upload{way.words}"
        judged = way.defense is DEFENSE
        for party, faster in (("client", 20), ("server", 500)):
            found = [r[party] for r in runs]
            beside = peer[f"{party}_ms"]
            out.append(_row(f"{party} CPU a round", setting, found, "ms", None, beside, faster if judged else None))
        found = [r["exchanges"] for r in runs]
        out.append(_row("exchanges a round", setting, found, "exchanges", way.exchanges, None))
        if judged and not dropped:
            found = [r["upload"] / entries for r in runs]
            out.append(_row("upload", setting, found, "B/entry", 4.1, peer["upload_bytes"] / entries))
    return out


def _middle(measured: Sequence[Measured], name: str) -> float:
    return median(m[name] for m in measured)


def _large_client() -> list[Row]:
    settings = [("N=100, d=1e+06", DEFENSE, 48, 20), *LARGE]
    *runs, peers = _turns(
        [lambda d=defense, lost=lost: _exchange(100, 1_000_000, lost, d) for _, defense, lost, _ in settings],
        lambda: _peer("client", 100, 1_000_000),
    )
    peer = _middle(peers, "client_ms")
    out = []
    for (setting, _, _, faster), measured in zip(settings, runs, strict=True):
        ours = [r["client"] for r in measured]
        out.append(_row("client CPU a round", setting, ours, "ms", None, peer, faster))
        if "20 bits" in setting:
            out.append(_row("upload", setting, [r["upload"] / 1e6 for r in measured], "B/entry", 2.7, None))
    setup = sum(runs[0][0][stage] for stage in ("keys", "shares"))
    return [*out, _row("keys and shares sent", "N=100", [setup / 1000], "kB", 10, None)]


def _shamir() -> Row:
    def both() -> None:
        hidden = [FIELD.element(secrets.token_bytes(48)) for _ in range(2)]
        shares = FIELD.split(hidden, FIELD.coefficients(secrets.token_bytes(32), 2 * 50), 100)
        assert FIELD.combine(range(1, 52), shares[:51]) == hidden

    peer = _peer("shamir", 100)["ms"]
    return _row(
        "Shamir, both secrets, made and combined",
        "N=100, t=51",
        [1e3 * s for s in cpu(both, 20)],
        "ms",
        None,
        peer,
        700,
    )


def _mask_generator() -> list[Row]:
    flat = np.zeros(1_000_000, np.uint32)
    masks = [SignedMask(secrets.token_bytes(32), 1) for _ in range(64)]
    zeros, buffer, stream = memoryview(bytes(1 << 16)), bytearray((1 << 16) + 15), mask_stream(secrets.token_bytes(32))

    def make() -> None:
        for _ in range(2000):
            stream.update_into(zeros, buffer)

    made, added, openssl_speeds = [], [], []
    for _ in range(REPEATS):
        openssl_speeds.append(_openssl())
        made += [2000 * (1 << 14) / s / 1e6 for s in cpu(make, 2)]
        added += [64 * flat.size / s / 1e6 for s in cpu(lambda: apply_masks([flat], masks), 2)]
    openssl = median(openssl_speeds)
    rows = []
    for quantity, speeds, least in [("mask generator", made, 0.8), ("masks made and added", added, None)]:
        ours = median(speeds)
        rows.append(
            Row(
                quantity, "AES-128-CTR, one thread", ours, "M uint32/s", len(speeds), (min(speeds), max(speeds)),
                openssl, "openssl speed, made only", ours / openssl,
                f">= {least} of the peer" if least else None, ours >= least * openssl if least else None,
            )
        )  # fmt: skip
    return rows


def _openssl() -> float:
    """M uint32/s of `openssl speed` on one core, by its own CPU clock."""
    command = ["openssl", "speed", "-evp", "aes-128-ctr", "-bytes", "65536", "-seconds", "1"]
    line = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    return float(line.split()[-1].rstrip("k")) * 1e3 / 4 / 1e6


def _row(
    quantity: str, setting: str, ours: list[float], unit: str,
    most: float | None, peer: float | None, faster: float | None = None,
) -> Row:  # fmt: skip
    middle = median(ours)
    wants = [f"<= {most:g} {unit}"] if most else []
    met: bool | None = middle <= most if most else None
    if faster and peer:
        wants.append(f"<= 1/{faster:g} of the peer")
        met = met is not False and middle * faster <= peer
    name = PEER if peer is not None else None
    return row(quantity, setting, ours, unit, peer=peer, peer_name=name, target=", ".join(wants) or None, met=met)


def _exchange(clients: int, entries: int, lost: int, defense: Defense = DEFENSE, *, prepared: bool = False) -> Measured:
    """CPU milliseconds of one client (mean of those that did everything) and of the server; bytes sent by stage.

    `exchanges` is the number of stages. With `prepared` it is the second of two rounds that is measured.
    """
    plan, value = defense.plan(_layout(entries), clients), uniform(clients, entries)

    def encoded(client: int) -> Tensors:
        return defense.encode(value(client), plan)

    total, measured = exchange(defense.aggregation, plan, encoded, lost, prepared=prepared)
    decoded, seconds = clocked(defense.decode, total.total, plan, total.count)
    exact = sum(value(client)["w"] for client in total.survivors)
    assert np.abs(decoded["w"] - exact).max() <= plan.tensors[0].error
    sent = {stage: float(count) for stage, count in measured.sent.items()}
    stages = float(len(sent))
    return {
        "client": measured.client * 1e3, "server": (measured.server + seconds) * 1e3, "exchanges": stages, **sent
    }  # fmt: skip


def _layout(entries: int) -> Layout:
    return Layout((TensorSpec("w", (entries,), 8.0),))


def _peer(*arguments: object) -> dict[str, float]:
    """What the peer's script measured, on one thread for the numerics."""
    command = [sys.executable, str(ROOT / "benchmarks" / "peers" / "flower_secagg.py"), *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


if __name__ == "__main__":
    main(sys.argv[1:])
