"""Five clients and a server over HTTP, each a process that keeps its state in a file, killed at random and restarted.

The app that carries the messages is that of `examples/http`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import multiprocessing
import random
import socket
import tempfile
import time
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn

from benchmarks.nightly.parts import Part
from securefed.defenses import secure_aggregation
from securefed.errors import SecureFedError
from securefed.parties import SumClient, SumServer, SumTerms

CLIENTS, ENTRIES, ROUNDS, QUICK_ROUNDS = 5, 200, 500, 20
PATIENCE = 2.0
"""Seconds that the server waits for replies; a client that was killed and restarted within them is not missed."""
SERVER_SHARE = 0.15
"""Share of the kills that hit the server."""
GRACE = 120.0
"""Seconds without a new round after which the soak has hung."""
TOLERANCE = 1e-5
EXAMPLE = Path(__file__).parents[2] / "examples" / "http" / "parties_http.py"
TERMS = SumTerms.like({"w": np.zeros(ENTRIES)}, clients=CLIENTS, defense=secure_aggregation(), base=False)


def example() -> Any:
    """Import the example's module from its file."""
    spec = importlib.util.spec_from_file_location("parties_http", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def update(client: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return the update of a client, the same in every round and process."""
    return {"w": np.random.default_rng(client).normal(size=ENTRIES)}


async def _answer(client: int, port: int, folder: Path) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
        http.headers["Authorization"] = f"Bearer {client}"
        party = SumClient(TERMS, client, file=folder / f"client-{client}")
        while True:
            try:
                response = await http.get(f"/{client}")
                if response.status_code == 410:
                    return
                if response.status_code == 200:
                    await http.post(f"/{client}", content=party.receive(response.content, update(client)))
                    continue
            except (httpx.HTTPError, SecureFedError):  # the server is being restarted, or this was answered before
                pass
            await asyncio.sleep(0.05)


def run_client(client: int, port: int, folder: Path) -> None:
    """Answer requests until the server says that all rounds are over."""
    asyncio.run(_answer(client, port, folder))


async def _serve(listening: socket.socket, folder: Path, rounds: int) -> None:
    party = SumServer(TERMS, file=folder / "server")
    hall = example().Rounds(party, {client: str(client) for client in range(CLIENTS)}, PATIENCE)
    server = uvicorn.Server(uvicorn.Config(hall.app, log_level="critical"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    with (folder / "log").open("a") as log:
        while party.round < rounds or party.outgoing:
            if not party.outgoing:
                party.open()
            late = time.monotonic() + PATIENCE
            while set(party.outgoing) - set(hall.replies) and time.monotonic() < late:
                await asyncio.sleep(0.01)
            replies, hall.replies = hall.replies, {}
            before = party.round
            try:
                result = party.receive(replies)
                entry = None if result is None else {"survivors": list(result.survivors), "error": _error(result)}
            except SecureFedError as error:
                entry = {"void": type(error).__name__}
            if entry is not None:
                log.write(json.dumps({"round": before} | entry) + "\n")
                log.flush()
    hall.over = True
    await asyncio.sleep(1.0)  # clients learn that it is over
    server.should_exit = True
    await serving


def _error(result: Any) -> float:
    exact = np.mean([update(client)["w"] for client in result.survivors], axis=0)
    return float(np.abs(result.mean["w"] - exact).max())


def run_server(listening: socket.socket, folder: Path, rounds: int) -> None:
    """Serve until so many rounds have ended, and log each."""
    asyncio.run(_serve(listening, folder, rounds))


def run(quick: bool, seed: int, rounds: int | None = None) -> list[Part]:
    """Run the rounds while processes are killed, and compare each mean with the exact one over its survivors."""
    began, rounds = time.monotonic(), rounds or (QUICK_ROUNDS if quick else ROUNDS)
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as listening:
        folder = Path(name)
        kills, hung = _supervise(listening, folder, rounds, random.Random(seed))  # noqa: S311
        log = folder / "log"
        entries = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    summed = [entry for entry in entries if "error" in entry]
    wrong = [entry for entry in summed if entry["error"] > TOLERANCE]
    notes = [f"wrong mean: {entry}" for entry in wrong]
    if hung:
        notes.append(f"no new round in {GRACE:g} s after {len(entries)} rounds")
    if not summed:
        notes.append("no round was summed")
    short = sum(len(entry["survivors"]) < CLIENTS for entry in summed)
    figures = (
        f"{len(entries)} of {rounds} rounds logged: {len(summed)} summed ({short} without all clients), "
        f"{len(entries) - len(summed)} void; {kills['client']} clients and {kills['server']} servers killed; largest "
        f"error of a mean {max((entry['error'] for entry in summed), default=0.0):.1e}"
    )
    return [Part("soak over HTTP", not notes, time.monotonic() - began, figures, tuple(notes))]


def _supervise(
    listening: socket.socket, folder: Path, rounds: int, draws: random.Random
) -> tuple[dict[str, int], bool]:
    """Start the processes, kill one at a random time of each round and restart it; return kills and whether it hung."""
    fork, port = multiprocessing.get_context("fork"), listening.getsockname()[1]

    def start(who: int) -> ForkProcess:
        target, arguments = (
            (run_server, (listening, folder, rounds)) if who == CLIENTS else (run_client, (who, port, folder))
        )
        process = fork.Process(target=target, args=arguments, daemon=True)
        process.start()
        return process

    processes = {who: start(who) for who in range(CLIENTS + 1)}
    kills, took, log = {"client": 0, "server": 0}, 1.0, folder / "log"
    while True:
        size, began = _size(log), time.monotonic()
        time.sleep(draws.uniform(0, took))
        victim = CLIENTS if draws.random() < SERVER_SHARE else draws.randrange(CLIENTS)
        if processes[victim].exitcode is None:
            processes[victim].kill()
            kills["server" if victim == CLIENTS else "client"] += 1
        processes[victim].join()
        if processes[victim].exitcode != 0:
            processes[victim] = start(victim)
        while _size(log) == size and time.monotonic() - began < GRACE and processes[CLIENTS].exitcode is None:
            time.sleep(0.02)
        took, over = time.monotonic() - began, processes[CLIENTS].exitcode == 0
        if over or took >= GRACE:
            for process in processes.values():
                process.kill()
                process.join()
            return kills, not over


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0
