"""The exchange folder of `securefed party`, into which another site writes what is no message."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from securefed._commands.party_files import npz_bytes
from tests.test_party import check, contribute, here, server

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
    assert "is no message of these terms" in contribute(0, code=2)
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
