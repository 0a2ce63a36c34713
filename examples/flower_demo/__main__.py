"""Run one Flower app twice on this machine, plain and secured, and print both side by side.

A SuperLink and three SuperNodes listen on loopback. They train a small convolutional network with batch norm and Adam
on scikit-learn's digits. After the second round one SuperNode is killed, in both runs. `plain/app.py` and
`secured/app.py` differ in four lines. Everything is stopped at the end.

    make flower-demo                    # or: python -m examples.flower_demo
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.flower_run import deployment, flower_environment, stop, submit

HERE = Path(__file__).parent
SITES = 3
TIMEOUT = 45.0
"""Seconds that a strategy waits for updates. Flower itself notices only after about a minute that a node is gone."""
Log = list[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--kill-after", type=int, default=2, help="round after which a SuperNode dies; 0 for none")
    parser.add_argument("--evaluate", action="store_true", help="evaluate at the sites too, not only at the server")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds before a run is given up")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the processes below end with this one
    print("lines that differ between plain/app.py and secured/app.py:")
    print("\n".join(f"    {line}" for line in changed_lines()))
    runs = {}
    for name in ("plain", "secured"):
        print(f"{name}: a SuperLink, {SITES} SuperNodes and {options.rounds} rounds", flush=True)
        runs[name] = run(HERE / name, options.rounds, options.kill_after, options.limit, float(options.evaluate))
    print(table(runs["plain"], runs["secured"]))


def changed_lines() -> list[str]:
    """The lines of the secured app that the plain one does not have."""
    plain, secured = ((HERE / name / "app.py").read_text().splitlines() for name in ("plain", "secured"))
    return [line for line in secured if line not in plain]


def run(app: Path, rounds: int, kill_after: int, limit: float, evaluate: float = 0.0) -> Log:
    """Run an app over Flower's deployment engine, and return its log of rounds.

    Args:
        app: its folder.
        rounds: rounds of training.
        kill_after: round after which the last SuperNode is killed; 0 for none.
        limit: seconds before the run is given up.
        evaluate: share of the sites that evaluate each round's model.
    """
    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place), Path(place) / "log.json"
        environment = flower_environment(folder)
        with deployment(folder, SITES, environment) as nodes:
            if kill_after:
                threading.Thread(target=_kill_after, args=(nodes[-1], out, kill_after), daemon=True).start()
            config = f'sites={SITES} rounds={rounds} timeout={TIMEOUT} fraction-evaluate={evaluate} out="{out}"'
            submit(app, config, folder, environment, limit)
        log = read(out)
        if not log or log[-1]["round"] < rounds:
            raise RuntimeError(f"the run ended early:\n{(folder / 'run.log').read_text()[-4000:]}")
        return log


def read(out: Path) -> Log:
    """Read a log; empty where there is none yet, or half of one."""
    try:
        found: Log = json.loads(out.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return []
    return found


def _kill_after(node: subprocess.Popen[bytes], out: Path, round: int) -> None:
    while node.poll() is None and not any(entry["round"] >= round for entry in read(out)):
        time.sleep(0.2)
    if node.poll() is None:
        print(f"    round {round} is done: killing a SuperNode", flush=True)
        stop(node, signal.SIGKILL)


def table(plain: Log, secured: Log) -> str:
    """Accuracy at the server and seconds of each round, of both runs."""
    lines = ["round   accuracy plain   secured   seconds plain   secured"]
    for before, after in zip(
        zip(plain, secured, strict=True), list(zip(plain, secured, strict=True))[1:], strict=False
    ):
        (p, s), (q, t) = before, after
        lines.append(
            f"{q['round']:5d}   {q['accuracy']:14.4f}   {t['accuracy']:7.4f}   {q['time'] - p['time']:13.1f}   "
            f"{t['time'] - s['time']:7.1f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
