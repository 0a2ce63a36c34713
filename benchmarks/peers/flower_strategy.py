"""Seconds a round of a Flower app plain, under `SecureStrategy`, and under Flower's own SecAgg+ (its legacy API).

Each runs over Flower's deployment engine on this machine: a SuperLink, three SuperNodes, a network of some 10 000
numbers on digits, one epoch a round, no evaluation at the clients. Exchanges are counted at a SuperNode: each message
that it receives is one. Flower starts a process for every message, which is nearly all of the time.

    python -m benchmarks flower_strategy           # 3 rounds of each: about five minutes
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers.flower_run import deployment, flower_environment, submit
from benchmarks.rows import Row, merge, row, show
from examples.flower_demo.__main__ import HERE as DEMO
from examples.flower_demo.__main__ import SITES, read

SECAGG = Path(__file__).parent / "flower_secagg_app"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds before a run is given up")
    options = parser.parse_args(arguments or [])
    if options.rounds < 2:
        parser.error("--rounds must be at least 2: the first round is measured apart from the later ones")
    with tempfile.TemporaryDirectory() as place:
        legacy = Path(place) / "app"
        shutil.copytree(SECAGG, legacy)
        shutil.copy(DEMO / "plain" / "app.py", legacy / "digits.py")
        apps = {"plain": DEMO / "plain", "secured": DEMO / "secured", "secagg": legacy}
        found = {name: run(app, options.rounds, options.limit) for name, app in apps.items()}
    rows = compare(found, options.rounds)
    show(rows)
    merge("flower_strategy", rows)


def run(app: Path, rounds: int, limit: float) -> dict[str, Any]:
    """Run an app; return its log of rounds, and how many messages a SuperNode received."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        environment = flower_environment(folder)
        with deployment(folder, SITES, environment):
            config = f'sites={SITES} rounds={rounds} timeout=300.0 fraction-evaluate=0.0 out="{folder / "log.json"}"'
            submit(app, config, folder, environment, limit)
        log = read(folder / "log.json")
        if not log or log[-1]["round"] < rounds:
            raise RuntimeError(f"{app.name} ended early:\n{(folder / 'run.log').read_text()[-4000:]}")
        return {"log": log, "messages": (folder / "1.log").read_text(errors="replace").count("Receiving: ")}


def compare(found: dict[str, dict[str, Any]], rounds: int) -> list[Row]:
    """Rows of the three runs: SecureStrategy is ours, SecAgg+ the peer."""
    setting = f"{SITES} SuperNodes on one machine, CNN on digits, {rounds} rounds"

    def seconds(name: str) -> list[float]:
        by_round = {entry["round"]: entry["time"] for entry in found[name]["log"]}
        return [by_round[round] - by_round[round - 1] for round in range(1, rounds + 1)]

    plain, ours, theirs = seconds("plain"), seconds("secured"), seconds("secagg")
    middle = sorted(theirs)[len(theirs) // 2]
    quickest = min(plain[1:])
    peer: dict[str, Any] = {"peer_name": "SecAgg+ (legacy API)"}
    bare: dict[str, Any] = {"peer_name": "the plain app"}
    got = {name: float(result["messages"]) for name, result in found.items()}
    accuracy = {name: result["log"][-1]["accuracy"] for name, result in found.items()}
    return [
        row("first round under SecureStrategy, wall", setting, ours[:1], "s", peer=theirs[0], **peer),
        row("later rounds under SecureStrategy, wall", setting, ours[1:], "s", peer=middle, **peer),
        row("later rounds under SecureStrategy, wall, beside plain", setting, ours[1:], "s", peer=quickest, **bare),
        row("exchanges of all rounds", setting, [got["secured"]], "", peer=got["secagg"], **peer),
        row("exchanges of all rounds, beside plain", setting, [got["secured"]], "", peer=got["plain"], **bare),
        row("test accuracy after the last round", setting, [accuracy["secured"]], "", peer=accuracy["secagg"], **peer),
        row(
            "test accuracy after the last round, beside plain", setting, [accuracy["secured"]], "",
            peer=accuracy["plain"], **bare,
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
