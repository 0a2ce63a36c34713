"""Run rounds of file-backed parties in a process that kills itself at a chosen write: the script of `test_killed`.

python -m tests.parties.killed_run FOLDER ROUNDS KILL_AT HALF      # KILL_AT counts writes from 1; 0 never kills
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from securefed import SERVER, Message
from securefed._persistence import container, sealing
from securefed.defenses import Identities, secure_aggregation
from securefed.errors import RoundVoid
from securefed.parties import SumClient, SumServer, SumTerms
from securefed.parties._envelope import unwrap

CLIENTS = 4
UPDATES = {i: {"w": np.arange(3.0) + i} for i in range(CLIENTS)}


def terms_in(folder: Path) -> tuple[SumTerms, Identities]:
    """Make the terms and identities once, and read them afterwards."""
    identities = Identities.generate(CLIENTS)
    if not (folder / "terms").exists():
        terms = SumTerms.like(
            UPDATES[0],
            clients=CLIENTS,
            defense=secure_aggregation(identities=Identities(identities.public)),
        )
        (folder / "keys").write_text(json.dumps({i: key.hex() for i, key in identities.own.items()}))
        (folder / "terms").write_bytes(terms.to_bytes())
    keys = json.loads((folder / "keys").read_text())
    own = {int(i): bytes.fromhex(key) for i, key in keys.items()}
    terms = SumTerms.from_bytes((folder / "terms").read_bytes())
    return terms, Identities(terms.defense.aggregation.identities.public, own)  # type: ignore[attr-defined]


def kill_at(number: int, half: bool) -> None:
    """Kill this process at a write: with half of the temporary file written, or right after the rename."""
    write, count = sealing.write_atomically, 0

    def counted(path: Path, data: bytes, kind: str) -> None:
        nonlocal count
        count += 1
        if count == number and half:
            path.with_name(f".{path.name}.part").write_bytes(data[: len(data) // 2])
        else:
            write(path, data, kind)
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    container.write_atomically = counted  # type: ignore[attr-defined]


def answer(folder: Path, terms: SumTerms, client: SumClient, request: bytes, base: Any) -> bytes:
    """Answer one request, and note each upload in a log before it leaves."""
    reply = client.receive(request, UPDATES[client.party], base=base)
    message = Message.decode(unwrap(terms.digest, reply, client.party), claimed_sender=client.party)
    if message.stage == "upload":
        with (folder / "uploads").open("a") as log:
            log.write(f"{client.party} {message.round} {message.body['masked/update.w'].tobytes().hex()}\n")
    assert message.sender != SERVER
    return reply


def run(folder: Path, rounds: int) -> Any:
    """Go on from the files until so many rounds are complete; each message is answered by a client read anew."""
    terms, identities = terms_in(folder)
    server = SumServer(terms, file=folder / "server")
    while server.round < rounds or server.outgoing:
        base = {"w": np.full(3, float(server._sums.position))}  # another model in each round
        if not server.outgoing:
            server.open(base)
        replies = {}
        for party, request in server.outgoing.items():
            client = SumClient(terms, party, identity=identities.own[party], file=folder / f"client-{party}")
            replies[party] = answer(folder, terms, client, request, base)
        try:
            server.receive(replies)
        except RoundVoid:
            continue
    return server.result


if __name__ == "__main__":
    kill_at(int(sys.argv[3]), sys.argv[4] == "half")
    run(Path(sys.argv[1]), int(sys.argv[2]))
