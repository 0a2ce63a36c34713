"""A run over Flower's deployment engine on this machine: SuperLink, SuperNodes and apps as on several machines.

Starts `flower-superlink` and a `flower-supernode` for each client on free ports, submits `benchmarks/peers/flower_app`
with `flwr run`, and compares what comes out with the same run in one process: it must agree bit for bit. Measured are
the seconds of a round and of one exchange with all clients; Flower's own polling is nearly all of it.

    python -m benchmarks flower_run                # 3 clients, 3 rounds: about a minute and a half
    python -m benchmarks.peers.flower_run --clients 5 --rounds 4
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from benchmarks.rows import Row, merge, row
from securefed._runtime.federation import Federation
from securefed._tensors import decode

APP = Path(__file__).parent / "flower_app"
BIN = Path(sys.executable).parent
LINK = "here"
"""Name of the SuperLink in Flower's own configuration."""
STAGES = (4, 2)
"""Exchanges with the clients in the first round and in later ones: keys, shares, upload, unmask; upload, unmask."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds before the run is given up")
    options = parser.parse_args(arguments or [])
    if options.rounds < 2:
        parser.error("--rounds must be at least 2: the first round is measured apart from the later ones")
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), options.clients, options.rounds, options.limit)
    merge("flower_run", rows)


def measure(folder: Path, clients: int, rounds: int, limit: float) -> list[Row]:
    """Run the app and compare."""
    out = folder / "result.safetensors"
    environment = flower_environment(folder)
    begun = time.monotonic()
    with deployment(folder, clients, environment):
        config = f'clients={clients} rounds={rounds} out="{out}"'
        submit(APP, config, folder, environment, limit)
    seconds = time.monotonic() - begun
    output, header = decode(out.read_bytes())
    same = _agrees(output, clients, rounds)
    history = header["history"]
    setting = f"{clients} SuperNodes on one machine, SSI on breast cancer, secure aggregation, {rounds} rounds"
    later = [entry["seconds"] for entry in history[1:]]
    assert all(entry["survivors"] == list(range(clients)) for entry in history)
    return [
        row("tensors that differ from the run in one process", setting, [float(not same)], "", target="0", met=same),
        row("first round over Flower, wall", setting, [history[0]["seconds"]], "s"),
        row("later rounds over Flower, wall", setting, later, "s"),
        row("one exchange over Flower, wall", setting, [value / STAGES[1] for value in later], "s"),
        row("everything, from the start of the SuperLink, wall", setting, [seconds], "s"),
    ]


def _agrees(output: dict[str, np.ndarray], clients: int, rounds: int) -> bool:
    sys.path.insert(0, str(APP))
    import app  # type: ignore[import-not-found]  # noqa: PLC0415 - the file that Flower ran

    terms = app.terms({"clients": clients, "seed": 0})
    data = [app.rows(client, clients) for client in range(clients)]
    here = Federation(terms.algorithm, data, terms.defense, public=terms.public, seed=terms.seed, batched=False)
    expected = here.run(rounds).output
    return set(output) == set(expected) and all(np.array_equal(output[name], expected[name]) for name in expected)


def flower_environment(folder: Path) -> dict[str, str]:
    """Environment of Flower's commands, which keep what they store in a folder."""
    return os.environ | {
        "FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def submit(app: Path, config: str, folder: Path, environment: dict[str, str], limit: float) -> None:
    """Run an app on the deployment in a folder, until it ends."""
    command = [BIN / "flwr", "run", app, LINK, "--stream", "--run-config", config]
    with (folder / "run.log").open("wb") as log:
        subprocess.run(
            command, check=True, timeout=limit, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder
        )


@contextmanager
def deployment(
    folder: Path, clients: int, environment: dict[str, str], more: Callable[[int], str] = lambda client: ""
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A SuperLink and its SuperNodes, stopped at the end; yields the SuperNodes.

    Args:
        folder: where their logs lie: 0.log of the SuperLink, then one for each SuperNode.
        clients: number of SuperNodes; their partition-id is their number.
        environment: of the processes.
        more: by client, further entries of its node config.
    """
    link, *nodes = free_ports(clients + 1)
    (folder / "config.toml").write_text(f'[superlink.{LINK}]\naddress = "127.0.0.1:{link}"\ninsecure = true\n')
    commands = [["flower-superlink", "--insecure", "--disable-runtime-dependency-installation", "--port", link]]
    for client, port in enumerate(nodes):
        config = f"partition-id={client} {more(client)}".strip()
        node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}", "--port", port]
        commands.append([*node, "--node-config", config])
    with ExitStack() as stack:
        started = []
        for number, (name, *rest) in enumerate(commands):
            log = stack.enter_context((folder / f"{number}.log").open("wb"))
            command = [str(BIN / name), *map(str, rest)]
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder, start_new_session=True
            )
            started.append(process)
            stack.callback(stop, process)
            if not number:
                await_port(link, process)
        yield started[1:]


def stop(process: subprocess.Popen[bytes], sign: int = signal.SIGTERM) -> None:
    """End a SuperLink or SuperNode and the processes that it started."""
    if process.poll() is None:
        os.killpg(process.pid, sign)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def await_port(port: int, process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    """Wait until a process listens on a port of this machine."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RuntimeError(f"the SuperLink does not listen on port {port}")


if __name__ == "__main__":
    main(sys.argv[1:])
