"""Simulating a cohort: together, one by one, and by pfl-research, in one run: `python -m benchmarks cohort`.

50 clients of 60 rows of MNIST's shape, 2NN (199,210 parameters, float32), FedAvg, T = 5 local steps, all 60 rows or 12
of them a step, in CPU time on one thread. pfl-research (0.6), which is fastest on one thread too, is installed from the
package registry into `.venv-pfl`, beside the project, and runs `benchmarks/peers/pfl_fedavg.py`.

Then whole federations in processes of their own: seconds on the wall with all cores, and how far memory grows beyond
the data. MNIST comes from the folder that SECUREFED_DATA names; without it, rows of the same shape are drawn.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from benchmarks.rows import Row, cpu, row, show, write
from securefed._public import Public
from securefed._runtime.federation import Federation
from securefed._runtime.run_options import RunOptions
from securefed.algorithms._optimization import FedAvg
from securefed.datasets._base import Dataset
from securefed.datasets._dataset_files import DATA_VARIABLE
from securefed.datasets._loaders import load
from securefed.problems import problems

ROOT = Path(__file__).parents[2]
CLIENTS, ROWS, FEATURES, STEPS, BATCH = 50, 60, 784, 5, 12
RUNS, SECONDS = 5, 60.0


def main() -> None:
    """Measure and write `results/cohort.json`."""
    python = _peer_environment()
    rows = [line for batch in (None, BATCH) for line in _cohort(python, batch)]
    rows += [_mnist(), *_memory()]
    path = write("cohort", rows)
    show(rows)
    print(path)


def _cohort(python: Path, batch: int | None) -> list[Row]:
    """A round of the cohort's contributions: together, one by one, and the peer's."""
    rng = np.random.default_rng(0)
    data = [Dataset(rng.random((ROWS, FEATURES)), np.append(rng.integers(0, 10, ROWS - 1), 9)) for _ in range(CLIENTS)]
    method = FedAvg(problem=problems.make("2nn"), learning_rate=0.01, local_steps=STEPS, batch_size=batch)
    public = Public.of(data, feature_bound=1.0)
    broadcast = method.broadcast(method.start(public, rng))
    states = [method.enroll(part, public, rng) for part in data]

    def streams() -> list[np.random.Generator]:
        return [np.random.default_rng(k) for k in range(CLIENTS)]

    def alone() -> None:
        for state, stream in zip(states, streams(), strict=True):
            method.contribute(state, broadcast, stream)

    def cohort() -> None:
        method.contribute_together(states, broadcast, streams())

    with one_thread():
        together, one_by_one = cpu(cohort, RUNS), median(cpu(alone, RUNS))
    command = [
        python,
        ROOT / "benchmarks" / "peers" / "pfl_fedavg.py",
        *map(str, (CLIENTS, ROWS, batch or 0, STEPS, RUNS)),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    peer = median(json.loads(done.stdout.splitlines()[-1])["seconds"])
    setting = f"{CLIENTS} clients, 2NN, T={STEPS}, {batch or ROWS} rows a step"
    ours = median(together)
    return [
        row(
            "cohort's contributions, CPU", setting, together, "s", peer=one_by_one, peer_name="one by one",
        ),
        row(
            "FedAvg round, simulated, CPU", setting, together, "s", peer=peer, peer_name="pfl-research 0.6",
            target=">= as fast", met=peer >= ours,
        ),
    ]  # fmt: skip


@contextmanager
def one_thread() -> Iterator[None]:
    """All products on one thread, torch's too: its threads wait busily for each other, which would count as CPU."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


def _mnist() -> Row:
    found = _federation("mnist", 1000, 50, 100)
    setting = f"{found['data']}, N=1000, S=50, R=100, T={STEPS}, {BATCH} rows a step"
    met = found["seconds"] <= SECONDS
    return row("federation, wall clock", setting, [found["seconds"]], "s", target=f"<= {SECONDS:g} s", met=met)


def _memory() -> list[Row]:
    """The same rows over 200 and over 1000 clients, cohorts of 50."""
    grown = {clients: [_federation("drawn", clients, 50, 3)["grown"] for _ in range(3)] for clients in (200, 1000)}
    limit = 1.25 * median(grown[200])
    rows = []
    for clients, values in grown.items():
        setting = f"N={clients}, S=50, 2NN, FedAvg, 12000 rows"
        judged = clients == 1000
        rows.append(
            row(
                "memory beyond the data", setting, values, "MB",
                target="<= 1.25 of N=200" if judged else None, met=median(values) <= limit if judged else None,
            )
        )  # fmt: skip
    return rows


def _federation(source: str, clients: int, cohort: int, rounds: int) -> dict[str, float | str]:
    """One federation in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.peers.cohort", source, str(clients), str(cohort), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found: dict[str, float | str] = json.loads(done.stdout.splitlines()[-1])
    return found


def federate(source: str, clients: int, cohort: int, rounds: int) -> None:
    """Run a federation and print what it took."""
    data, name = _data(source)
    parts = np.array_split(np.random.default_rng(1).permutation(data.rows), clients)
    shares = [data.take(part) for part in parts]
    del data
    method = FedAvg(problem=problems.make("2nn"), learning_rate=0.1, local_steps=STEPS, batch_size=BATCH)
    before, start = _peak(), time.perf_counter()
    Federation(method, shares, seed=0, cohort=cohort, options=RunOptions(keep_transcript=False)).run(rounds)
    print(json.dumps({"data": name, "seconds": time.perf_counter() - start, "grown": _peak() - before}))


def _data(source: str) -> tuple[Dataset, str]:
    if source == "mnist" and os.environ.get(DATA_VARIABLE):
        return load("mnist").data, "MNIST"
    rng, count = np.random.default_rng(0), 60000 if source == "mnist" else 12000
    return Dataset(rng.random((count, FEATURES)), rng.integers(0, 10, count)), "rows of MNIST's shape"


def _peak() -> float:
    """Largest resident memory so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _peer_environment() -> Path:
    """The peer's interpreter; the environment is made where it is missing."""
    home = ROOT / ".venv-pfl"
    python = home / "bin" / "python"
    if not python.exists() or subprocess.run([python, "-c", "import pfl, torch"], check=False).returncode:
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "pfl==0.6.0", "torch==2.13.0"], check=True)
    return python


if __name__ == "__main__":
    federate(sys.argv[1], *map(int, sys.argv[2:])) if len(sys.argv) > 1 else main()
