"""Frozen states of all parties: one form, which names whose state it is; another party's is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed import Dataset, Federation, RunOptions
from securefed._tensors import decode, encode
from securefed.algorithms import SSI
from securefed.defenses import ckks, secure_aggregation
from securefed.errors import StorageError
from securefed.parties import SumClient, SumHelper, SumServer, SumTerms

UPDATE = {"w": np.array([1.0, 0.5])}
MASKED = SumTerms.like(UPDATE, clients=3, defense=secure_aggregation(), base=False, bounds=8.0)
OTHER = SumTerms.like(UPDATE, clients=3, defense=secure_aggregation(), base=False, bounds=4.0)
LATTICE = SumTerms.like(UPDATE, clients=3, defense=ckks(), base=False, bounds=8.0)
LATTICE_OTHER = SumTerms.like(UPDATE, clients=3, defense=ckks(), base=False, bounds=4.0)
ROWS = [Dataset((np.arange(16.0).reshape(4, 4) % 5 - 2 + i) / 8) for i in range(3)]


def server() -> bytes:
    opened = SumServer(MASKED)
    opened.open()
    return opened.freeze()


def client() -> bytes:
    asked = SumServer(MASKED).open()
    made = SumClient(MASKED, 0)
    made.receive(asked[0])
    return made.freeze()


STATES: dict[str, tuple[Callable[[], bytes], Callable[[bytes], Any], Callable[[bytes], Any]]] = {
    "the server of a sum": (
        server,
        lambda data: SumServer.thaw(MASKED, data),
        lambda data: SumServer.thaw(OTHER, data),
    ),
    "client 0 of a sum": (
        client,
        lambda data: SumClient.thaw(MASKED, 0, data),
        lambda data: SumClient.thaw(OTHER, 0, data),
    ),
    "a key holder": (
        lambda: SumHelper(LATTICE).freeze(),
        lambda data: SumHelper(LATTICE, data),
        lambda data: SumHelper(LATTICE_OTHER, data),
    ),
}
"""By party, what makes its state, and what reads it under the same terms and under others."""


@pytest.mark.parametrize("party", STATES)
def test_a_state_of_another_party_terms_or_version_is_refused_by_name(party: str) -> None:
    made, read, read_elsewhere = STATES[party]
    data = made()
    assert read(data).freeze()  # positive control
    tensors, header = decode(data)
    assert header["party"] == party
    with pytest.raises(StorageError, match=r"state is of terms .*; give the terms that it was written with"):
        read_elsewhere(data)
    with pytest.raises(StorageError, match=f"has version 9, and this release reads version {header['version']}"):
        read(encode(tensors, header | {"version": 9}))
    with pytest.raises(StorageError, match=f"the state of {party} lacks a field"):
        read(encode({}, header))
    with pytest.raises(StorageError, match=f"the state of {party} cannot be read"):
        read(data[:40])
    for other, (another, _, _) in STATES.items():
        if other != party:
            with pytest.raises(StorageError, match=f"this is the state of {other}, not of {party}"):
                read(another())


@pytest.mark.parametrize("engine", ["{", "1", 1, None, [], "[[]]"])
def test_sums_of_release_0_1_that_cannot_be_read_are_refused(engine: Any) -> None:
    tensors, header = decode(server())
    sums, _ = decode(tensors["engine"].tobytes())
    tensors["engine"] = np.frombuffer(encode(sums, {"engine": engine}), np.uint8)
    with pytest.raises(StorageError, match="the sums of a server"):
        SumServer.thaw(MASKED, encode(tensors, header))


def test_the_state_of_another_client_is_refused() -> None:
    with pytest.raises(StorageError, match="of client 0 of a sum, not of client 1 of a sum"):
        SumClient.thaw(MASKED, 1, client())


@pytest.mark.parametrize("party", STATES)
def test_states_as_release_0_1_wrote_them_are_read(party: str) -> None:
    """Without party and version, with texts of JSON for a server's values, and its sums in one of them."""
    made, read, _ = STATES[party]
    tensors, header = decode(made())
    old = {name: value for name, value in header.items() if name not in ("party", "version")}
    if party == "the server of a sum":
        old |= {name: json.dumps(old[name]) for name in ("base", "warned", "result")} | {"traffic": "[0, 0]"}
        inner, sums = decode(tensors["engine"].tobytes())
        values = {name: value for name, value in sums.items() if name not in ("party", "followed")} | {"version": 3}
        tensors["engine"] = np.frombuffer(encode(inner, {"engine": json.dumps(values)}), np.uint8)
    assert read(encode(tensors, old)).freeze() == made_again(read, tensors, old)


def made_again(read: Callable[[bytes], Any], tensors: Any, old: Any) -> bytes:
    """The state that follows from reading it in the new form."""
    first = read(encode(tensors, old)).freeze()
    again: bytes = read(first).freeze()
    return again


def test_two_processes_do_not_both_go_on_from_one_checkpoint(tmp_path: Path) -> None:
    def resumed() -> Federation:
        options = RunOptions(checkpoint=tmp_path / "run.checkpoint", checkpoint_every=1)
        return Federation(SSI(rank=1, tolerance=0.0), ROWS, options=options)

    resumed().run(1)
    first, second = resumed(), resumed()
    first.run(2)
    with pytest.raises(StorageError, match="another process has gone on with it"):
        second.run(2)
    assert len(resumed().run(3).history) == 3


def test_a_refusal_of_a_file_names_it(tmp_path: Path) -> None:
    SumServer(MASKED, file=tmp_path / "a.state").open()
    with pytest.raises(StorageError, match=r"of terms .*a\.state"):
        SumServer(OTHER, file=tmp_path / "a.state")
