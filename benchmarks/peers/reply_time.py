"""Test whether a server can tell by the time of one reply that a client sat out.

The figure is the AUC of "sat out" against "contributes"; .5 is chance. It is computed from the CPU time of the
client's thread, without the training. The two cases take turns, with new clients each time.
"""

from __future__ import annotations

import logging
import time
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.rows import Row, show, write
from securefed.defenses import secure_aggregation
from securefed.parties import SumClient, SumServer, SumTerms

CLIENTS: Final = 5
TURNS: Final = {1_000: 200, 100_000: 100, 1_000_000: 40}
MOST: Final = 0.6


def main() -> None:
    """Measure and write `results/reply_time.json`."""
    logging.getLogger("securefed").setLevel(logging.ERROR)
    rows = [_row(size, name) for size in TURNS for name in ("one entry beyond", "all beyond", "not finite", "fails")]
    path = write("reply_time", rows)
    show(rows)
    print(path)


def _row(size: int, name: str) -> Row:
    rng, turns = np.random.default_rng(0), TURNS[size]
    good = rng.uniform(-1, 1, size)
    odd = {"one entry beyond": np.append(good[:-1], 5.0), "all beyond": good * 1e9, "not finite": good + np.nan}
    terms = SumTerms.like(
        {"w": good}, clients=CLIENTS, defense=secure_aggregation(), base=False, bounds=1.0, max_void=9
    )

    def failing() -> Any:
        raise RuntimeError

    out = failing if name == "fails" else lambda: {"w": odd[name]}
    times: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(turns):
        for absent in (False, True) if turn % 2 else (True, False):
            times[absent].append(_reply(terms, out if absent else lambda: {"w": good}))
    within, beside = np.array(times[False]), np.array(times[True])
    auc = float((beside[:, None] > within).mean() + (beside[:, None] == within).mean() / 2)
    auc = max(auc, 1 - auc)
    deviation = float(np.sqrt((2 * turns + 1) / (12 * turns**2)))  # of chance
    setting = f"d={size:.0e}, {name}, {median(within) * 1e3:.2f} and {median(beside) * 1e3:.2f} ms"
    return Row(
        "AUC of one reply's time", setting, auc, "", turns, (auc - 2 * deviation, auc + 2 * deviation), 0.5, "chance",
        auc / 0.5, f"<= {MOST}", auc <= MOST,
    )  # fmt: skip


def _reply(terms: SumTerms, update: Any) -> float:
    """Return the CPU seconds that a client takes to answer the request for its upload."""
    clients, server = [SumClient(terms, client) for client in range(CLIENTS)], SumServer(terms)
    server.open()
    while not server.wants_updates:
        server.receive({client: clients[client].receive(data) for client, data in server.outgoing.items()})
    request = server.outgoing[2]
    begun = time.thread_time()
    clients[2].receive(request, update)
    return time.thread_time() - begun


if __name__ == "__main__":
    main()
