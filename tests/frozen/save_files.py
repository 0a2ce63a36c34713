"""Save one file of every kind with this release: `python -m tests.frozen.save_files NAME` writes NAME.zip.

`test_saved_releases.py` reads the files of earlier releases, or has them refused by name. The package is used by public
names and commands only, so that every release can run this script.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.serverapp.strategy import FedAvg
from typer.testing import CliRunner

from securefed import Dataset, DataUsage, Federation, Ledger, Limits, RunOptions, Seal, chain
from securefed._commands.cli import app
from securefed.algorithms import SSI, LoSAC
from securefed.defenses import Identities, clip, gaussian, public_identity, secure_aggregation, skellam
from securefed.flower import SecureStrategy, SitePolicy, secure_mod, serve
from securefed.parties import SumClient, SumServer, SumTerms
from securefed.problems import SoftmaxRegression
from tests.flower import ordinary_app
from tests.flower.test_flower_runs import grid_of, quick, terms_of
from tests.flower.test_secure_strategy import run as flower_run
from tests.flower.test_secure_strategy import secured

CLIENTS = 3
KEYS = {i: bytes([i + 1]) * 32 for i in range(CLIENTS)}
PINNED = Identities({i: public_identity(key) for i, key in KEYS.items()})
SEAL = Seal(bytes(range(32)))
UPDATES = [{"w": np.array([i + 1.0, 0.5])} for i in range(CLIENTS)]
ROWS = [Dataset((np.arange(16.0).reshape(4, 4) % 5 - 2 + i) / 8) for i in range(CLIENTS)]
LABELLED = [Dataset(data.x, np.arange(4) % 2) for data in ROWS]
NOISED = chain(clip(1.0), gaussian(1.0), secure_aggregation())


def terms(defense: Any, **settings: Any) -> SumTerms:
    return SumTerms.like(UPDATES[0], clients=CLIENTS, defense=defense, **{"base": False, "bounds": 8.0} | settings)


MASKED = terms(secure_aggregation(identities=PINNED))
PRIVATE = terms(chain(clip(1.0), skellam(1.0), secure_aggregation()), bounds=None, epsilon=50.0)


SERVED = terms_of("optimization/losac", chain(secure_aggregation(pipelined=True)))


def subspace(checkpoint: Path, **options: Any) -> Federation:
    """A run of clients that keep nothing, with noise."""
    return Federation(SSI(rank=2, tolerance=0.0), ROWS, NOISED, options=RunOptions(checkpoint=checkpoint, **options))


def classifier(checkpoint: Path) -> Federation:
    """A run of clients that keep a state, under masks that are prepared."""
    method, masks = LoSAC(problem=SoftmaxRegression()), secure_aggregation(pipelined=True)
    return Federation(method, LABELLED, masks, options=RunOptions(checkpoint=checkpoint, seal=SEAL))


def half_a_round(folder: Path, name: str, agreed: SumTerms, rounds: int, **more: Any) -> None:
    """Keep server and client 0 in files, complete some rounds, and stop behind the uploads of the next one."""
    server = SumServer(agreed, file=folder / f"{name}-server.state")
    members: dict[int, Any] = {}
    for i in range(CLIENTS):
        given: dict[str, Any] = {"file": folder / f"{name}-client.state", **more} if i == 0 else {}
        members[i] = SumClient(agreed, i, identity=KEYS[i] if agreed is MASKED else None, **given)
    for number in range(rounds + 1):
        server.open()
        while server.result is None:
            uploads = server.wants_updates
            replies = {i: members[i].receive(request, UPDATES[i]) for i, request in server.outgoing.items()}
            server.receive(replies)
            if uploads and number == rounds:
                return


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(part) for part in arguments], env={"COLUMNS": "200"})
    assert done.exit_code in (0, 3), done.output
    return done.output


def party_folder(folder: Path) -> None:
    """`securefed party` until every client has uploaded."""
    folder.mkdir()
    exchange, state = folder / "exchange", folder / "0.state"
    exchange.mkdir()
    np.savez(folder / "update.npz", **UPDATES[0])
    for name in (*range(CLIENTS), "server"):
        run("party", "identity", folder / f"{name}.key")
    pins = [part for i in range(CLIENTS) for part in ("--identity", f"{i}={folder / f'{i}.key.pub'}")]
    run("party", "terms", folder / "terms.json", "--like", folder / "update.npz", "--clients", CLIENTS, "--no-base",
        "--bound", 8, *pins)  # fmt: skip
    agreed = ("--terms", folder / "terms.json")
    signs = "--identity" in run("party", "sum", "--help")  # a release that does not sign requests lacks the options
    signed = ("--identity", folder / "server.key") if signs else ()
    pinned = ("--server", folder / "server.key.pub") if signs else ()
    for _ in range(3):
        run("party", "sum", exchange, *agreed, *signed, "--state", folder / "server.state")
        for i in range(CLIENTS):
            kept = state if i == 0 else folder.parent / f"client-{i}.unused"
            run("party", "contribute", exchange, *agreed, "--party", i, "--update", folder / "update.npz",
                "--identity", folder / f"{i}.key", *pinned, "--state", kept)  # fmt: skip
    for path in folder.parent.glob("client-*"):
        path.unlink()


def strategy(folder: Path | None) -> SecureStrategy:
    return secured(FedAvg(fraction_evaluate=0.0), PRIVATE.defense, folder=folder, local=("seen",),
                   train_metrics=(), evaluate_metrics=())  # fmt: skip


def flower_folders(folder: Path) -> None:
    """The folders of `serve` and `client_app`, and of `SecureStrategy` and `secure_mod`."""
    clients = grid_of(SERVED, folder=lambda _: folder / "clients")
    serve(clients, SERVED, 2, **quick(checkpoint=folder / "server.checkpoint"))
    sites = ordinary_app.grid(secure_mod(SitePolicy(folder=folder / "sites")))
    flower_run(strategy(folder / "sums"), sites, 1)
    for path in (folder / "sites").glob("*-[1-4]*"):
        path.unlink()


def save(folder: Path) -> None:
    """Save all files."""
    folder.mkdir(parents=True)
    result = Federation(SSI(rank=2, tolerance=0.0), ROWS, secure_aggregation()).run(1)
    result.transcript.save(folder / "run.transcript")
    subspace(folder / "noised.checkpoint").run(2)
    classifier(folder / "sealed.checkpoint").run(2)
    spent = Ledger.create(folder / "site.ledger", Limits(exchanges=20, epsilon=100.0), spent=DataUsage(2))
    half_a_round(folder, "private", PRIVATE, 1, ledger=spent)
    half_a_round(folder, "masked", MASKED, 1)
    half_a_round(folder, "sealed", terms(secure_aggregation(verify=True)), 1, seal=SEAL)
    for name, agreed in (("masked", MASKED), ("private", PRIVATE)):
        (folder / f"{name}.terms").write_bytes(agreed.to_bytes())
    run("audit", "--algorithms", "pca/ssi", "--seeds", 2, "--clients", 3, "--data", "digits", "--out", folder / "audit")
    (folder / "audit" / "audit.json").rename(folder / "audit.json")
    for path in (folder / "audit").iterdir():
        path.unlink()
    (folder / "audit").rmdir()
    party_folder(folder / "party")
    flower_folders(folder / "flower")
    for lock in folder.rglob(".*.lock"):
        lock.unlink()


def main() -> None:
    """Save into a folder, and pack it."""
    place = Path(sys.argv[1])
    with TemporaryDirectory() as folder:
        save(Path(folder, "files"))
        shutil.make_archive(str(place), "zip", Path(folder, "files"))


if __name__ == "__main__":
    main()
