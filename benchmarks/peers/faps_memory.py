"""Memory of FAPS at the size of Table 1 (n = 2000, m = 128000, p = 20, d = 128).

The data alone is 2 GB; no client has more rows than features, so none forms an n x n matrix. A process of its own
draws the matrix, runs two rounds and reports the largest resident memory it ever had.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import numpy as np

from benchmarks.rows import Row, row, write
from securefed._runtime.federation import Federation
from securefed._runtime.run_options import RunOptions
from securefed.algorithms._pca import FAPS
from securefed.datasets._spectral_matrices import geometric, spectral

FEATURES, CLIENTS, ROWS, RANK, ROUNDS = 2000, 128, 1000, 20, 2
LIMIT_GIB = 3.0


def main() -> None:
    """Measure and write `results/faps_memory.json`."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.faps_memory", "--measure"], capture_output=True, text=True, check=True
    )
    measured = json.loads(done.stdout)
    setting = f"n={FEATURES}, m={CLIENTS * ROWS}, p={RANK}, d={CLIENTS}, 6 inner steps, {ROUNDS} rounds"
    rows = [
        _row("memory beside the data, drawing it included", setting, measured["beside"], "GiB", LIMIT_GIB),
        _row("of this, while drawing it", setting, measured["drawn"], "GiB", None),
        _row("data", setting, measured["data"], "GiB", None),
        _row("a round", setting, measured["seconds"], "s", None),
    ]
    path = write("faps_memory", rows)
    for r in rows:
        print(f"{r.quantity:46} {r.ours:8.3f} {r.unit:5} {r.target or '':14} {r.met}")
    print(path)


def _row(quantity: str, setting: str, value: float, unit: str, limit: float | None) -> Row:
    target, met = (None, None) if limit is None else (f"<= {limit:g} {unit}", value <= limit)
    return row(quantity, setting, [value], unit, target=target, met=met)


def measure() -> dict[str, float]:
    """GiB of the data, of the peak beyond it, of the peak while it was drawn; seconds a round.

    Raises:
        AssertionError: a client formed its Gram matrix.
    """
    matrix = spectral(geometric(FEATURES, 1.01), [ROWS] * CLIENTS, np.random.default_rng(0))
    data = sum(client.x.nbytes for client in matrix.clients)
    drawn = _peak() - data
    algorithm = FAPS(RANK, inner_steps=6, stop="kkt")
    federation = Federation(algorithm, matrix.clients, seed=0, options=RunOptions(keep_transcript=False))
    assert all(node.state.committed.gram.matrix is None for node in federation.nodes.values())
    start = time.perf_counter()
    federation.run(ROUNDS)
    seconds = (time.perf_counter() - start) / ROUNDS
    gib = 2.0**30
    return {"data": data / gib, "beside": (_peak() - data) / gib, "drawn": drawn / gib, "seconds": seconds}


def _peak() -> int:
    """Largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    if "--measure" in sys.argv:
        print(json.dumps(measure()))
    else:
        main()
