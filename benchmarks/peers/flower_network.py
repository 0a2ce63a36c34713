"""Try a secured Flower app on a network that fails: TLS, node authentication, restarts, late and doubled SuperNodes.

Everything listens on loopback, with certificates and keys made for the trial. Each trial prints what happened, round by
round; docs/flower.md describes the same.

    python -m benchmarks.peers.flower_network tls           # and: superlink, supernode, late, doubled
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.flower_run import BIN, LINK, await_port, flower_environment, free_ports, stop

APP = Path(__file__).parent / "flower_network_app"
SITES = 3
PATIENCE = 15.0
"""Seconds after which a SuperNode that did not end is taken to be connected."""
Log = list[dict[str, Any]]
Process = subprocess.Popen[bytes]
_OPENSSL = "openssl"
_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -batch"


@dataclass
class Network:
    """A SuperLink with TLS and node authentication, its SuperNodes, and the files of all of them in one folder.

    Attributes:
        folder: certificates, keys, logs, states of the sites and the SuperLink's database.
        stack: ends all processes.
    """

    folder: Path
    stack: ExitStack
    port: int = field(default_factory=lambda: free_ports(1)[0])

    def __post_init__(self) -> None:
        self.environment = flower_environment(self.folder)
        self.certificates()
        self._started = 0
        (self.folder / "config.toml").write_text(
            f'[superlink.{LINK}]\naddress = "127.0.0.1:{self.port}"\nroot-certificates = "{self.folder / "ca.crt"}"\n'
        )

    def certificates(self) -> None:
        """Make a certificate authority, the SuperLink's certificate and a key for each SuperNode and a stranger."""
        for text in (
            f"req -x509 {_KEY} -days 2 -subj /CN=authority -keyout ca.key -out ca.crt",
            f"req {_KEY} -subj /CN=superlink -keyout server.key -out server.csr",
            "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem",
            f"req -x509 {_KEY} -days 2 -subj /CN=another -keyout another.key -out another.crt",
        ):
            (self.folder / "names").write_text("subjectAltName=IP:127.0.0.1")
            subprocess.run([_OPENSSL, *text.split()], check=True, capture_output=True, cwd=self.folder)
        for name in [*map(str, range(SITES)), "stranger"]:
            make = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", f"node-{name}"]
            subprocess.run(make, check=True, cwd=self.folder)

    def superlink(self) -> Process:
        """Start the SuperLink, or start it again with what its database holds."""
        files = ["--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key", "--ssl-ca-certfile", "ca.crt"]
        link = self.start(
            "superlink", "flower-superlink", *files, "--enable-supernode-auth", "--database", "superlink.db",
            "--disable-runtime-dependency-installation", "--port", str(self.port),
        )  # fmt: skip
        await_port(self.port, link)
        return link

    def register(self, number: int) -> None:
        """Let the SuperLink accept a SuperNode's key."""
        self.command("supernode", "register", f"node-{number}.pub", LINK)

    def supernode(
        self, number: int, *, key: str | None = None, roots: str | None = "ca.crt", states: str = "states"
    ) -> Process:
        """Start a SuperNode.

        Args:
            number: its partition-id.
            key: name of its private key; its own by default.
            roots: certificate that it trusts; `None` connects without TLS.
            states: folder of its site's states, which outlive it.
        """
        site = self.folder / f"site-{number}-{states}.toml"
        site.write_text(f'folder = "{states}-{number}"\n')
        trust = ["--insecure"] if roots is None else ["--root-certificates", roots]
        return self.start(
            f"supernode-{number}", "flower-supernode", *trust, "--auth-supernode-private-key", key or f"node-{number}",
            "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_ports(1)[0]),
            "--node-config", f'partition-id={number} securefed="{site}"',
        )  # fmt: skip

    def start(self, name: str, *command: str) -> Process:
        """Start a process that the end of the trial ends; its log is `name-n.log`."""
        self._started += 1
        log = self.stack.enter_context((self.folder / f"{name}-{self._started}.log").open("wb"))
        process = subprocess.Popen(
            [BIN / command[0], *command[1:]], stdout=log, stderr=subprocess.STDOUT, env=self.environment,
            cwd=self.folder, start_new_session=True,
        )  # fmt: skip
        self.stack.callback(stop, process)
        return process

    def command(self, *command: str) -> str:
        """Run a command of `flwr` to its end, and return what it printed."""
        done = subprocess.run(
            [BIN / "flwr", *command], env=self.environment, cwd=self.folder, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    def run(self, **config: Any) -> Process:
        """Submit the app; its log of rounds is `out.json`."""
        given = {"out": str(self.folder / "out.json"), **config}
        text = " ".join(f"{name}={json.dumps(value)}" for name, value in given.items())
        return self.start("run", "flwr", "run", str(APP), LINK, "--stream", "--run-config", text)

    @property
    def rounds(self) -> Log:
        """The rounds so far, as the ServerApp wrote them."""
        place = self.folder / "out.json"
        return json.loads(place.read_text()) if place.exists() else []

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds; false where it does not in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if done():
                return True
            time.sleep(0.2)
        return False

    def ends(self, process: Process, seconds: float) -> bool:
        """Tell whether a process ends in time."""
        return self.wait(lambda: process.poll() is not None, seconds)

    def logs(self, name: str) -> str:
        """All that processes of this name printed."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob(f"{name}*.log")))


def begin(network: Network) -> tuple[Process, list[Process]]:
    """Start a SuperLink with its registered SuperNodes."""
    link = network.superlink()
    for number in range(SITES):
        network.register(number)
    return link, [network.supernode(number) for number in range(SITES)]


def tls(network: Network, limit: float) -> dict[str, Any]:
    """Two rounds over TLS with node authentication, while three strangers try to connect."""
    begin(network)
    strangers = ("an unregistered key", "no TLS", "another authority")
    for number, roots in zip((7, 8, 9), ("ca.crt", None, "another.crt"), strict=True):
        network.supernode(number, key="node-stranger", roots=roots)
    run = network.run(rounds=2)
    network.wait(lambda: len(network.rounds) == 2 or run.poll() is not None, limit)
    said = {name: network.logs(f"supernode-{number}") for name, number in zip(strangers, (7, 8, 9), strict=True)}
    return {"rounds": network.rounds, "said": said, "listed": network.command("supernode", "list", LINK)}


def supernode(network: Network, limit: float) -> dict[str, Any]:
    """A SuperNode is killed after the first round and started again."""
    _, nodes = begin(network)
    run = network.run(rounds=6)
    network.wait(lambda: len(network.rounds) >= 1 or run.poll() is not None, limit)
    stop(nodes[2], signal.SIGKILL)
    killed, refused, node = time.monotonic(), 0, network.supernode(2)
    while network.ends(node, PATIENCE):  # as a supervisor does that restarts what ends
        refused += 1
        node = network.supernode(2)
    back = time.monotonic() - killed - PATIENCE
    network.wait(lambda: len(network.rounds) == 6 or run.poll() is not None, limit)
    return {"rounds": network.rounds, "starts that were refused": refused, "seconds until one was not": back}


def late(network: Network, limit: float) -> dict[str, Any]:
    """A SuperNode's update arrives after the server's time is over."""
    begin(network)
    run = network.run(**{"rounds": 3, "timeout": 25.0, "late-in-round": 2, "late-by": 40.0})
    network.wait(lambda: len(network.rounds) == 3 or run.poll() is not None, limit)
    return {"rounds": network.rounds}


def doubled(network: Network, limit: float) -> dict[str, Any]:
    """A second SuperNode runs with the key of the first, on another disk."""
    begin(network)
    network.supernode(2, states="other-states")
    run = network.run(rounds=3)
    network.wait(lambda: len(network.rounds) == 3 or run.poll() is not None, limit)
    return {"rounds": network.rounds, "second": network.logs("supernode-2")[-1500:]}


def superlink(network: Network, limit: float) -> dict[str, Any]:
    """The SuperLink is killed after the first round and started again; the app is submitted once more."""
    link, _ = begin(network)
    network.run(rounds=4)
    network.wait(lambda: len(network.rounds) >= 1, limit)
    stop(link, signal.SIGKILL)
    before = len(network.rounds)
    time.sleep(2.0)
    network.superlink()
    went_on = network.wait(lambda: len(network.rounds) > before, 60.0)
    listed = network.command("list", LINK)
    run = network.run(rounds=4)
    network.wait(lambda: len(network.rounds) == 4 or run.poll() is not None, limit)
    return {"went on by itself": went_on, "runs": listed, "rounds": network.rounds}


TRIALS: dict[str, Callable[[Network, float], dict[str, Any]]] = {
    "tls": tls, "supernode": supernode, "late": late, "doubled": doubled, "superlink": superlink,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trial", choices=TRIALS)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds before a run is given up")
    parser.add_argument("--keep", type=Path, help="folder for the files; a temporary one by default")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        found = TRIALS[options.trial](Network(folder, stack), options.limit)
        print(json.dumps(found, indent=1))
        print(f"{options.trial}: {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
