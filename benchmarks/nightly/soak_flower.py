"""Five Flower nodes in this process that lose messages at random: the sums are those in the clear, bit for bit."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np

from benchmarks.nightly.parts import Part
from securefed import _catalogue as catalogue
from securefed._public import Public
from securefed._runtime.federation import Federation
from securefed._runtime.run_options import RunOptions
from securefed._runtime.terms import Terms
from securefed._transports import InProcessTransport, LossyTransport
from securefed.defenses._chain import chain
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._secure_aggregation import Identities, secure_aggregation
from securefed.flower import client_app, serve
from securefed.testing._algorithm_checks import CLIENTS, labelled_clients
from tests.flower.grid import LocalGrid, Node

ROUNDS, QUICK_ROUNDS = 500, 30
LOST = 0.003
"""Share of messages lost on the way to a node, and as many on the way back: about every sixth exchange loses a client.

At .02 two of three do, and a run ends: where clients have confirmed one set of survivors and the sum was not opened,
they refuse every other set for the same broadcast, so the repeat needs the same clients again, 8 times at most.
"""
PATIENCE = 0.02


def run(quick: bool, seed: int, rounds: int | None = None) -> list[Part]:
    """Run federated averaging with mini-batches, which are drawn anew for every exchange, under random losses."""
    began, rounds = time.monotonic(), rounds or (QUICK_ROUNDS if quick else ROUNDS)
    data, draws, lost = labelled_clients(), random.Random(seed), [0]  # noqa: S311
    algorithm = catalogue.algorithms.make("optimization/fedavg", learning_rate=0.02, local_epochs=1, batch_size=2)
    public = Public.of(data)
    defense = chain(secure_aggregation(identities=Identities.generate(CLIENTS), pipelined=True))
    terms = Terms.of(algorithm, public, defense, seed=seed)
    app = client_app(lambda _: terms, lambda context: data[context.node_config["partition-id"]])

    def lose(message: Any) -> bool:
        gone = bool(message.metadata.message_type.startswith("query")) and draws.random() < LOST
        lost[0] += gone
        return gone

    grid = LocalGrid({100 + client: Node(app, {"partition-id": client}) for client in range(CLIENTS)}, lose, lose)
    options: dict[str, Any] = {"wait": 2.0, "poll": 0.001}
    ours = serve(grid, terms, rounds, options=RunOptions(timeout=PATIENCE), **options)
    survivors, exchange = {}, 0
    for entry in ours.history:
        exchange += len(entry.void)
        survivors[exchange], exchange = entry.survivors, exchange + 1

    def same(endpoints: Any) -> LossyTransport:
        return LossyTransport(
            InProcessTransport(endpoints),
            replies=lambda m: m.stage == "upload" and m.sender not in survivors.get(m.round, ()),
        )

    theirs = Federation(
        algorithm, data, chain(Quantise()), seed=seed, public=public, batched=False, transport=same
    ).run(rounds)
    equal = all(np.array_equal(ours.output[name], value) for name, value in theirs.output.items())
    void = sum(len(entry.void) for entry in ours.history)
    short = sum(len(entry.survivors) < CLIENTS for entry in ours.history)
    notes = [] if equal else ["the result differs from the sums in the clear over the same survivors"]
    if len(ours.history) != rounds:
        notes.append(f"the run ended after {len(ours.history)} of {rounds} rounds: {ours.stopped}")
    figures = (
        f"{len(ours.history)} of {rounds} rounds summed, {short} without all clients, {void} exchanges void; {lost[0]} "
        f"messages lost; the model is {'' if equal else 'not '}that of sums in the clear over the same survivors, "
        "bit for bit"
    )
    return [Part("soak over Flower", not notes, time.monotonic() - began, figures, tuple(notes))]
