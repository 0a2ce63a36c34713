"""The exchange folder of `securefed party`, into which another site writes what is no message."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed._commands.cli import app
from securefed._commands.party_files import npz_bytes, read_arrays
from securefed.errors import DataError
from securefed.parties import SumResult, SumServer, SumTerms
from securefed.parties._envelope import sign
from tests.test_party import RUNNER, agree, check, contribute, here, identities, party, server

__all__ = ["here"]  # a fixture


def test_a_mean_that_another_site_put_into_the_folder_is_replaced_by_the_servers(here: Path) -> None:
    """Before the round is complete or after it: the server's command never says of a forged file that it holds it."""
    forged, done = npz_bytes({"w": np.zeros(4), "b": np.zeros(4)}), Path("exchange/round-1-mean.npz")
    done.write_bytes(forged)
    for _ in range(8):
        if "complete" in server():
            break
        for client in range(3):
            contribute(client)
    check(1, range(3))
    kept = done.read_bytes()
    done.write_bytes(forged)
    assert "is complete" in server()
    assert done.read_bytes() == kept  # positive control: written again, the mean has the same bytes


@pytest.mark.skipif(os.name != "posix", reason="pipes and links of POSIX")
@pytest.mark.parametrize("kind", ["pipe", "device", "larger than any message"])
def test_what_another_site_puts_in_a_messages_place_ends_no_command_but_by_name(here: Path, kind: str) -> None:
    """Reading a pipe waits for ever, with the state locked; reading a device without an end takes all memory."""
    server()
    request = Path("exchange/round-1-exchange-1-stage-1-keys-client-0.request")

    def replaced(path: Path) -> bytes:
        whole = path.read_bytes()
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            with path.open("wb") as file:
                file.truncate(2**40)
        return whole

    kept = replaced(request)
    assert "is no message of these terms" in (said := contribute(0)) and "no request to client 0" in said
    assert "waits for clients 0, 1 and 2" in server()  # which writes its request again
    assert request.read_bytes() == kept
    for client in range(3):
        contribute(client)
    reply = request.with_suffix(".reply")
    answered = replaced(reply)
    assert "is no message of these terms" in server(code=2)
    assert "is answered" in contribute(0)  # which writes its reply again
    assert reply.read_bytes() == answered
    assert "stage 2 of 5 (shares)" in server()  # positive control: nothing was used up


@pytest.mark.parametrize("key", [None, "1.key", "server.key"], ids=["unsigned", "of a site", "of the server"])
def test_a_site_that_plays_the_server_gets_no_answer(here: Path, key: str | None) -> None:
    """Its request is newer than the server's; without the pinned key the client would contribute to its sum."""
    server()
    terms = SumTerms.from_bytes(Path("terms.json").read_bytes())
    fake = SumServer(terms, identity=None if key is None else Path(key).read_bytes()).open()[0]
    newer = Path("exchange/round-1-exchange-1-stage-2-shares-client-0.request")
    newer.write_bytes(fake)
    said = contribute(0)
    assert "Round 1, stage 1 of 5 (keys) is answered" in said  # the server's own request
    why = {None: "it is not signed", "1.key": "it is signed by another key", "server.key": "under another name"}[key]
    assert f"{newer.name} is not taken: message from the server refused: " in said
    assert why in said
    assert not newer.with_suffix(".reply").exists()
    newer.with_name("round-1-exchange-1-stage-1-keys-client-0.request").write_bytes(fake)
    newer.unlink()
    Path("client-0.state").unlink()
    Path("exchange/round-1-exchange-1-stage-1-keys-client-0.reply").unlink()
    assert ("is answered" in contribute(0)) == (key == "server.key")  # the control: only the server may ask


def test_a_request_of_the_server_under_another_name_is_not_taken(here: Path) -> None:
    server()
    request = Path("exchange/round-1-exchange-1-stage-1-keys-client-0.request")
    request.with_name("round-1-exchange-7-stage-1-keys-client-0.request").write_bytes(request.read_bytes())
    assert "wrote this request under another name" in (said := contribute(0))
    assert f"is answered: {request.stem}.reply" in said


def complete(*options: Any) -> None:
    for _ in range(8):
        if "complete" in server(*options):
            return
        for client in range(3):
            contribute(client, *options)
    raise AssertionError("the round is not complete")


def test_a_result_that_the_server_did_not_sign_is_refused(here: Path) -> None:
    complete()
    assert "The server signed it" in contribute(0)
    facts = json.loads(Path("exchange/round-1-result.json").read_text())
    forged = {
        "mean.npz": npz_bytes({"w": np.zeros(4), "b": np.zeros(4)}),
        "result.json": json.dumps(facts | {"weight": facts["weight"] + 1}).encode(),
        "announced.safetensors": b"made up",  # the terms do not verify: there is none
    }
    for name, data in forged.items():
        file = Path(f"exchange/round-1-{name}")
        kept = file.read_bytes() if file.exists() else None
        file.write_bytes(data)
        assert "signed by another key" in contribute(0, code=2), name
        file.unlink() if kept is None else file.write_bytes(kept)
        assert "The server signed it" in contribute(0)
    Path("exchange/round-1-result.signature").unlink()
    assert "not signed" in contribute(0, code=2)


def test_a_verified_result_is_checked_when_it_is_there(here: Path) -> None:
    """A server that lies about the only sum of a run meets the check of each client."""
    Path("terms.json").unlink()
    agree("--no-base", "--defense-set", "verify=true", *identities())
    sealed = ("--seal-key-file", "seal.key")
    RUNNER.invoke(app, ["key", "seal.key"])
    complete(*sealed)
    assert "Checked: it follows from the sum of the contributions of clients [0, 1, 2]" in contribute(1, *sealed)
    terms = SumTerms.from_bytes(Path("terms.json").read_bytes())
    told = json.loads(Path("exchange/round-1-result.json").read_text())
    mean = {name: value + 1 for name, value in read_arrays(Path("exchange/round-1-mean.npz")).items()}
    text, announced = json.dumps(told).encode(), Path("exchange/round-1-announced.safetensors").read_bytes()
    Path("exchange/round-1-result.json").write_bytes(text)
    Path("exchange/round-1-mean.npz").write_bytes(npz_bytes(mean))
    signature = sign(Path("server.key").read_bytes(), terms.digest, text, npz_bytes(mean), announced)
    Path("exchange/round-1-result.signature").write_bytes(signature)
    assert "does not follow from the announced sum" in contribute(1, *sealed, code=2)


def test_a_result_that_unpacks_to_more_than_the_terms_hold_is_refused_packed(here: Path) -> None:
    complete()
    terms = SumTerms.from_bytes(Path("terms.json").read_bytes())
    with zipfile.ZipFile("exchange/round-1-mean.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("w", "b"):
            archive.writestr(f"{name}.npy", bytes(2**24))
    with pytest.raises(DataError, match=r"unpacks to 16777216 bytes, and the terms' tensor to at most 4128"):
        SumResult.from_folder("exchange", terms)


def test_a_reply_that_is_half_copied_is_not_taken_and_waited_for(here: Path) -> None:
    server()
    for client in range(3):
        contribute(client)
    reply = Path("exchange/round-1-exchange-1-stage-1-keys-client-2.reply")
    whole = reply.read_bytes()
    reply.write_bytes(whole[: len(whole) // 2])
    shown = server()
    assert f"{reply.name} is not taken" in shown
    assert "waits for client 2." in shown
    reply.write_bytes(whole)
    assert "stage 2 of 5 (shares) waits for clients 0, 1 and 2." in server()


def test_copies_that_a_synchronised_folder_makes_are_no_messages(here: Path) -> None:
    """Files with a suffix of a conflict, half-copied ones, and a folder in a reply's place."""
    server()
    request = Path("exchange/round-1-exchange-1-stage-1-keys-client-0.request")
    for name in ("round-9-exchange-9-stage-1-keys-client-0 (conflicted copy).request", f".{request.name}.12.part"):
        (request.parent / name).write_bytes(request.read_bytes())
    assert "waits for clients 0, 1 and 2" in party("status", "exchange")
    for client in range(3):
        assert "Round 1, stage 1 of 5" in contribute(client)
    reply = request.with_suffix(".reply")
    (reply.parent / "round-1-exchange-1-stage-1-keys-client-0 (conflicted copy).reply").write_bytes(b"another")
    kept = reply.read_bytes()
    reply.unlink()
    reply.mkdir()
    assert "cannot read" in server(code=2)
    reply.rmdir()
    reply.write_bytes(kept)
    assert "stage 2 of 5 (shares)" in server()
