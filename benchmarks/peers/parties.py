"""Time what `securefed.parties` adds to a training loop, and a round of 1000 clients: `python -m benchmarks parties`.

A client's share of a round of protection, all messages encoded and decoded and every stage included, beside one epoch
of the training that it protects, in one process and in CPU time; transports are left out. Then one round of 1000
clients on a sparse graph: the clients play in a process of their own, so that the server's time and memory are its own.

    python -m benchmarks.peers.parties [loop] [thousand]
"""

from __future__ import annotations

import struct
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from benchmarks.rows import Row, row, run_parts
from securefed import Public
from securefed.defenses import Identities, ckks, paillier, secure_aggregation
from securefed.parties import SumClient, SumHelper, SumServer, SumTerms
from securefed.problems import ConvolutionalNetwork

CLIENTS, FEW, ROUNDS, IMAGES, BATCH = 20, 3, 4, 600, 10
NETWORKS = {"wide CNN": ((1, 28, 28), 491), "CNN on 3x64x64": ((3, 64, 64), 64), "CNN": ((1, 28, 28), 64)}
"""Image and hidden layer of the networks that train. FLAME's CNN holds its 206,678 parameters on images of 3x64x64; on
1x28x28 it holds 31,258, and 206,755 with a hidden layer of 491. The update that is protected is as large as that of the
first two."""
JUDGED = "wide CNN"
WEIGHTED = {"largest_weight": 1024}
NEAR = {"bounds": 8.0, **WEIGHTED}
"""Declared sizes near those of the update, which 32 bits and encryption need."""
LARGE, ENTRIES, LOST = 1000, 100_000, 0.1
SPARSE = secure_aggregation(graph="auto", adversarial=0.1, dropouts=LOST)
SHARE_BYTES = 512
"""Bytes for each client and neighbour that the memory target grants. An encrypted share is about 100 bytes; when a
stage ends, those of the replies and of the next requests are there at once, in messages of Python objects."""


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and write `results/parties.json`."""
    parts: dict[str, Callable[[], list[Row]]] = {"loop": _loop, "thousand": _thousand}
    torch.set_num_threads(1)
    run_parts("parties", __doc__ or "", parts, arguments)


def _loop() -> list[Row]:
    """Protection of a network's update beside its training."""
    network = ConvolutionalNetwork(image_shape=(3, 64, 64))  # the one whose 206,678 parameters FLAME states
    shapes = network.shapes(Public(1, 1, 3 * 64 * 64, (IMAGES,), 6, 1.0))
    update = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    assert sum(value.size for value in update.values()) == 206_678
    trained = {words: _epochs(image, hidden) for words, (image, hidden) in NETWORKS.items()}
    setting = f"{IMAGES} images, batches of {BATCH}"
    rows = [row("one local epoch", f"{words}, {setting}", found, "s CPU") for words, found in trained.items()]
    epochs = {words: float(np.median(found)) for words, found in trained.items()}
    identities = Identities.generate(CLIENTS)
    for words, defense, more, clients in (
        ("secure aggregation", secure_aggregation(), WEIGHTED, CLIENTS),
        ("secure aggregation, 32 bits", secure_aggregation(), {**NEAR, "ring": 32}, CLIENTS),
        ("secure aggregation, active", secure_aggregation(identities=identities), WEIGHTED, CLIENTS),
        ("CKKS", ckks(), NEAR, FEW),
        ("Paillier", paillier(), {**NEAR, "ring": 32}, FEW),
    ):
        terms = SumTerms.like(update, clients=clients, defense=defense, **more)
        rows += list(_protection(words, terms, update, epochs))
    return rows


def _protection(words: str, terms: SumTerms, update: Mapping[str, Any], epochs: Mapping[str, float]) -> Iterator[Row]:
    """CPU time of a client and of the server, in the first round and in later ones."""
    parties = {client: SumClient(terms, client) for client in range(terms.clients)}
    helpers = {party: SumHelper(terms) for party in terms.defense.aggregation.beside}
    server = SumServer(terms)
    judged = terms.clients == CLIENTS  # a client's work does not depend on their number under encryption
    rounds = [_round(server, parties, helpers, update) for _ in range(ROUNDS if judged else 2)]
    setting = f"{words}, d=206678, N={terms.clients}"
    for when, found in (("first round", rounds[:1]), ("later rounds", rounds[1:])):
        client = [seconds for of_clients, _ in found for seconds in of_clients]
        yield row(f"client, {when}", setting, [1e3 * seconds for seconds in client], "ms CPU")
        for trained, epoch in epochs.items():
            share = [100 * seconds / epoch for seconds in client]
            target = {"target": "<= 5 %", "met": float(np.median(share)) <= 5} if judged and trained == JUDGED else {}
            yield row(f"client, {when}, of an epoch of the {trained}", setting, share, "%", **target)
        yield row(f"server, {when}, per client", setting, [1e3 * total / terms.clients for _, total in found], "ms CPU")


def _round(
    server: SumServer, clients: Mapping[int, SumClient], helpers: Mapping[int, SumHelper], update: Mapping[str, Any]
) -> tuple[list[float], float]:  # fmt: skip
    """CPU seconds of each client and of the server in one round."""
    spent, own = dict.fromkeys(clients, 0.0), _Clock()
    with own:
        server.open(update)
    while server.result is None:
        for party in list(server.outgoing):
            with own:
                request = server.outgoing[party]
            if party in helpers:
                reply = helpers[party].receive(request)
            else:
                with _Clock() as clock:
                    reply = clients[party].receive(request, update, weight=IMAGES, base=update)
                spent[party] += clock.seconds
            with own:
                server.receive({party: reply}, more=True)
    return list(spent.values()), own.seconds


class _Clock:
    """CPU seconds of this process within the block, added up over its uses."""

    def __init__(self) -> None:
        self.seconds = self._start = 0.0

    def __enter__(self) -> _Clock:
        self._start = time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds += time.process_time() - self._start


def _epochs(image: tuple[int, int, int], hidden: int) -> list[float]:
    """CPU seconds of three epochs of SGD in torch, after one that does not count."""
    side = ((image[1] - 2) // 2 - 2) // 2
    net = torch.nn.Sequential(
        torch.nn.Conv2d(image[0], 32, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 16, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(16 * side * side, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10),
    )  # fmt: skip
    sgd, x, y = torch.optim.SGD(net.parameters(), 0.01), torch.rand(IMAGES, *image), torch.randint(10, (IMAGES,))
    found = []
    for _ in range(4):
        with _Clock() as clock:
            for start in range(0, IMAGES, BATCH):
                sgd.zero_grad()
                part = slice(start, start + BATCH)
                torch.nn.functional.cross_entropy(net(x[part]), y[part]).backward()
                sgd.step()
        found.append(clock.seconds)
    return found[1:]


def _thousand() -> list[Row]:
    """One round of 1000 clients on the sparse graph that the package designs, a tenth of them lost at the upload."""
    setting = f"N={LARGE}, d={ENTRIES:.0e}, 32 bits, sparse for 10 % / 10 %, {LOST:.0%} lost"
    wall, server, clients, _, _ = _large(trace=False)
    peak, degree = _large(trace=True)[3:]
    allowed = 3 * 8 * ENTRIES + SHARE_BYTES * LARGE * degree
    return [
        row("a round, wall, one party after the other", setting, [wall], "s", target="<= 60 s", met=wall <= 60),
        row("a round, all parties", setting, [server + clients], "s CPU"),
        row("a round, server", setting, [server], "s CPU"),
        row("a round, a client", setting, [1e3 * clients / LARGE], "ms CPU"),
        row(
            "server's memory", f"{setting}, {degree} neighbours", [peak / 2**20], "MiB",
            target=f"<= {allowed / 2**20:.0f} MiB: 3 d numbers and {SHARE_BYTES} B a client and neighbour",
            met=peak <= allowed,
        ),
    ]  # fmt: skip


def _large(*, trace: bool) -> tuple[float, float, float, int, int]:
    """Wall seconds; CPU seconds of server and clients; most bytes of the server, if traced; degree of the graph."""
    terms = SumTerms.like(
        {"w": np.zeros(ENTRIES, np.float32)}, clients=LARGE, defense=SPARSE, base=False, bounds=8.0, ring=32,
        largest_weight=1024,
    )  # fmt: skip
    with _played(terms) as pipe:
        if trace:
            tracemalloc.start()
        server, own, start = SumServer(terms), _Clock(), time.perf_counter()
        with own:
            server.open()
            while server.result is None:
                upload = server.wants_updates
                for party in list(server.outgoing):
                    if upload and party >= LARGE * (1 - LOST):
                        continue
                    pipe.send_bytes(struct.pack("<i", party) + server.outgoing[party])
                    server.receive({party: pipe.recv_bytes()}, more=True)
                if upload:
                    server.receive({})
        wall = time.perf_counter() - start
        peak = tracemalloc.get_traced_memory()[1] if trace else 0
        tracemalloc.stop()
        pipe.send_bytes(b"")
        (of_clients,) = struct.unpack("<d", pipe.recv_bytes())
        assert len(server.result.survivors) == LARGE * (1 - LOST)
    masking = terms.plan.masking
    return wall, own.seconds, of_clients, peak, masking.degree if masking is not None else 0


@contextmanager
def _played(terms: SumTerms) -> Iterator[Connection]:
    """Start a process that plays all clients, one request at a time."""
    here, there = Pipe()
    process = Process(target=_play, args=(there, terms.to_bytes()))
    process.start()
    yield here
    process.join()


def _play(pipe: Connection, data: bytes) -> None:
    terms, rng = SumTerms.from_bytes(data), np.random.default_rng(0)
    vectors = [{"w": rng.uniform(-1, 1, ENTRIES)} for _ in range(8)]
    clients = [SumClient(terms, number) for number in range(terms.clients)]
    with _Clock() as clock:
        while message := pipe.recv_bytes():
            (party,) = struct.unpack_from("<i", message)
            pipe.send_bytes(clients[party].receive(message[4:], vectors[party % len(vectors)], weight=IMAGES))
    pipe.send_bytes(struct.pack("<d", clock.seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
