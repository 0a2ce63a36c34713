"""A party that is killed with SIGKILL at any write: no upload leaves twice, and the run goes on from the files."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from securefed import SERVER, Message
from securefed.errors import StorageError
from securefed.parties import SumClient, SumServer
from securefed.parties._envelope import unwrap
from tests.combinations import first_ones
from tests.parties.killed_run import CLIENTS, UPDATES, run, terms_in

ROOT = Path(__file__).parents[2]
HALVES = ("half", "renamed")
FIRST = ((1, "half"), (12, "renamed"), (23, "half"))
WRITES = 2 * (1 + CLIENTS * 6)
"""Two rounds have a few more: a client writes once a stage and once before its upload, the server once a stage."""


@pytest.mark.parametrize(
    ("write", "half"), first_ones(sorted(product(range(1, WRITES, 11), HALVES), key=lambda one: one not in FIRST), 3)
)
def test_no_upload_leaves_twice_and_the_run_goes_on(write: int, half: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.parties.killed_run", str(tmp_path), "2", str(write), half]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr  # it did die, at that write
    result = run(tmp_path, 3)
    assert result.round == 2
    expected = np.mean([UPDATES[i]["w"] for i in result.survivors], axis=0)
    np.testing.assert_allclose(result.mean["w"], expected, atol=1e-6)
    assert result.survivors == tuple(range(CLIENTS))
    uploads = [line.split() for line in (tmp_path / "uploads").read_text().splitlines()]
    places = [(party, exchange) for party, exchange, _ in uploads]
    assert len(set(places)) == len(places)
    assert len(uploads) >= 2 * CLIENTS


def test_of_two_processes_with_one_file_one_answers(tmp_path: Path) -> None:
    """A repeated request may reach two workers at once. The control: two copies of the file mask two uploads alike."""
    terms, identities = terms_in(tmp_path)
    server = SumServer(terms)

    def client(party: int, file: str) -> SumClient:
        return SumClient(terms, party, identity=identities.own[party], file=tmp_path / file)

    members = {i: client(i, f"client-{i}") for i in range(CLIENTS)}
    base = {"w": np.zeros(3)}
    server.open(base)
    for _ in range(2):
        server.receive({i: members[i].receive(request) for i, request in server.outgoing.items()})
    for name in ("copy", "copy.ledger"):
        (tmp_path / name).write_bytes((tmp_path / name.replace("copy", "client-0")).read_bytes())
    first, second, copied = client(0, "client-0"), client(0, "client-0"), client(0, "copy")
    request, other = server.outgoing[0], {"w": UPDATES[0]["w"] + 1}
    reply = first.receive(request, UPDATES[0], base=base)
    for late in (second, members[0]):
        with pytest.raises(StorageError, match="another process"):
            late.receive(request, other, base=base)
    bodies = [
        Message.decode(unwrap(terms.digest, data, SERVER)).body
        for data in (reply, copied.receive(request, other, base=base))
    ]
    step = next(tensor.step for tensor in terms.plan.tensors if tensor.name == "update.w")
    moved = (bodies[1]["masked/update.w"] - bodies[0]["masked/update.w"]).astype(np.int64) * step
    np.testing.assert_allclose(moved * terms.largest_weight, 1.0, atol=1e-6)
