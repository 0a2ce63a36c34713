"""Remedies of the commands but `securefed party`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from securefed import Dataset, Federation
from securefed._commands.audit_run import attack_file
from securefed._commands.run_file import read_run
from securefed.algorithms import SSI
from tests.remedies.followed import OPTION, Followed, X, command, found

SMALL = ["--algorithms", "ssi", "--defenses", "plain", "--clients", "4", "--seeds", "2", "--rounds", "2"]
AUDIT = ["audit", *SMALL, "--workers", "1", "--out", "HERE/out", "--views", "server"]
RUN = ["run", "ssi", "--set", "rank=2", "--rounds", "1", "--clients", "3"]


def run_file(folder: Path, text: str) -> object:
    (folder / "run.toml").write_text(text)
    return read_run(folder / "run.toml")


def sealed(folder: Path, *more: str) -> object:
    (folder / "key").write_bytes(bytes(range(32)))
    (folder / "key").chmod(0o600)
    return command(*RUN, "--seal-key-file", "HERE/key", *more)(folder)


def transcript(folder: Path) -> Path:
    Federation(SSI(rank=1), [Dataset(X / 12), Dataset(X / 12)]).run(1).transcript.save(folder / "run.npz")
    return folder / "run.npz"


def attacked(folder: Path, *given: str) -> object:
    return command("attack", str(transcript(folder)), "ssi", *given)(folder)


def one_of_the_two(message: str, folder: Path) -> None:
    """Use each of the two options that the message names, alone."""
    options = re.findall(OPTION, message)
    assert len(options) == 2
    for option in options:
        attacked(folder, option, "rank=1")


def rows_of(folder: Path, owner: np.ndarray) -> object:
    np.savez(folder / "rows.npz", x=np.vstack([X, X]) / 12, client=owner)
    return attack_file(transcript(folder), "ssi", {"rank": 1}, rows=folder / "rows.npz")


def one_owner_a_row(message: str, folder: Path) -> object:
    count = int(found(r"each of the (\d+) rows", message))
    return rows_of(folder, np.arange(count) * 2 // count)


TABLE: dict[str, Followed] = {
    "a run without an algorithm": Followed(
        "securefed/_commands/run_file.py",
        "lacks the algorithm",
        lambda folder: run_file(folder, "rounds = 3\n"),
        lambda message, folder: run_file(folder, found("write (.*), or another", message)),
    ),
    "a table that is none": Followed(
        "securefed/_commands/run_file.py",
        "with one setting a line",
        lambda folder: run_file(folder, 'algorithm = "ssi"\nsettings = 3\n'),
        lambda message, folder: run_file(
            folder, 'algorithm = "ssi"\n' + found(r"write (\[.*?\])", message) + "\nrank = 3\n"
        ),
    ),
    "views without a gate": Followed(
        "securefed/_commands/audits.py", "add --fail-above 0.2", command(*AUDIT), command(*AUDIT, "--fail-above", "0.2")
    ),
    "an anchor without a key": Followed(
        "securefed/_commands/runs.py",
        "give --seal-key-file as well",
        command(*RUN, "--seal-anchor", "HERE/a", "--checkpoint", "HERE/c"),
        lambda _, folder: sealed(folder, "--seal-anchor", "HERE/a", "--checkpoint", "HERE/c"),
    ),
    "a key without a checkpoint": Followed(
        "securefed/_commands/runs.py",
        "give --checkpoint as well",
        sealed,
        lambda _, folder: sealed(folder, "--checkpoint", "HERE/c"),
    ),
    "an advice of nothing": Followed(
        "securefed/_commands/advising.py", "or --questions", command("advise"), command("advise", "--questions")
    ),
    "a setting that is known and guessed": Followed(
        "securefed/_commands/audit_run.py",
        "use one of the two",
        lambda folder: attacked(folder, "--set", "rank=1", "--try", "rank=1"),
        one_of_the_two,
    ),
    "rows without owners": Followed(
        "securefed/_commands/audit_run.py",
        "must hold one whole number for each of the",
        lambda folder: rows_of(folder, np.zeros(3)),
        one_owner_a_row,
    ),
}
"""By name, the remedies that are followed."""
