"""A client that sits out does the work of one that contributes: the time of its reply does not tell which it is.

`python -m benchmarks reply_time` measures times. Here the steps are counted: what is encoded, drawn and masked, and
which large arrays are alive when the upload is made.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from securefed._runtime import absence
from securefed.defenses import Identities, chain, clip, new_identity, public_identity, secure_aggregation
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._secure_aggregation import masking_client, masks, verification
from securefed.parties import SumClient, SumServer, SumTerms

CLIENTS, ENTRIES = 3, 100_000
KEYS = [new_identity() for _ in range(CLIENTS)]
PUBLIC = Identities({client: public_identity(key) for client, key in enumerate(KEYS)})
GOOD = {"a": np.linspace(-1, 1, ENTRIES), "b": np.zeros(3)}


def failing() -> Any:
    raise RuntimeError("out of memory")


UPDATES: dict[str, Any] = {
    "contributes": lambda: {name: value.copy() for name, value in GOOD.items()},
    "first entry beyond": lambda: {"a": np.where(np.arange(ENTRIES) == 0, 5.0, GOOD["a"]), "b": GOOD["b"]},
    "last entry beyond": lambda: {"a": GOOD["a"], "b": np.array([0.0, 0.0, 9.0])},
    "all beyond": lambda: {"a": GOOD["a"] * 1e9 + 1e9, "b": GOOD["b"]},
    "not finite": lambda: {"a": np.where(np.arange(ENTRIES) == 7, np.nan, GOOD["a"]), "b": GOOD["b"]},
    "infinite": lambda: {"a": np.full(ENTRIES, np.inf), "b": GOOD["b"]},
    "fails": failing,
}


def steps(terms: SumTerms, update: Any, identity: bool) -> list[tuple[Any, ...]]:
    """Answer a request for the upload, and list the steps on arrays, with their sizes."""
    seen: list[tuple[Any, ...]] = []
    clients = [SumClient(terms, i, identity=KEYS[i] if identity else None) for i in range(CLIENTS)]
    server = SumServer(terms)
    server.open()
    while not server.wants_updates:
        server.receive({i: clients[i].receive(data) for i, data in server.outgoing.items()})

    def noted(owner: Any, name: str, size: Any) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **named: Any) -> Any:
            out = real(*args, **named)
            seen.append((name, size(*args)))
            return out

        patched.setattr(owner, name, staticmethod(call) if owner is Quantise else call)

    with pytest.MonkeyPatch.context() as patched:
        noted(Quantise, "_round", lambda value, tensor: (tensor.name, value.size))
        noted(masks, "residues_of", lambda encoded, plan: sum(v.size for v in encoded.values()))
        noted(masks, "add_uniform", lambda residues, used: sum(flat.size for flat in residues))
        noted(masking_client, "apply_masks", lambda flats, masks: (sum(f.size for f in flats), len(masks)))
        noted(verification, "dot", lambda words, part, bits: part.size)
        clients[0].receive(server.outgoing[0], update)
    return seen


@pytest.mark.parametrize("verify", [False, True])
def test_every_client_takes_the_same_steps_on_as_many_entries(verify: bool) -> None:
    defense = secure_aggregation(identities=PUBLIC, verify=True) if verify else secure_aggregation()
    terms = SumTerms.like(GOOD, clients=CLIENTS, defense=defense, base=False, bounds=2.0, max_void=1)
    expected = steps(terms, UPDATES["contributes"], verify)
    assert [name for name, _ in expected].count("_round") == 2
    assert ("add_uniform", ENTRIES + 4) in expected  # the stand-in, with the indicator's entry
    for name, update in UPDATES.items():
        assert steps(terms, update, verify) == expected, name


def test_encoding_goes_on_behind_a_clip_that_refuses() -> None:
    """Behind a clip it is the defence that looks for entries that are not finite, before anything is encoded."""
    terms = SumTerms.like(GOOD, clients=CLIENTS, defense=chain(clip(1e6), secure_aggregation()), base=False)
    expected = steps(terms, UPDATES["contributes"], False)
    assert [step for step in steps(terms, UPDATES["not finite"], False) if step[0] != "_round"] == [
        step for step in expected if step[0] != "_round"
    ]


@pytest.mark.parametrize("name", UPDATES)
def test_arrays_of_a_refused_contribution_are_freed_before_the_upload_is_made(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the upload would be made in fresh memory, which takes a third longer than reused memory."""
    terms = SumTerms.like(GOOD, clients=CLIENTS, defense=secure_aggregation(), base=False, bounds=2.0, max_void=1)
    clients, server = [SumClient(terms, i) for i in range(CLIENTS)], SumServer(terms)
    made: list[weakref.ref[Any]] = []
    server.open()
    while not server.wants_updates:
        server.receive({i: clients[i].receive(data) for i, data in server.outgoing.items()})
    multiply, rounding, uploading = np.multiply, Quantise._round, masking_client.upload_residues

    def multiplied(*args: Any, **named: Any) -> Any:
        out = multiply(*args, **named)
        if out.size == ENTRIES:
            made.append(weakref.ref(out))
        return out

    def rounded(value: Any, tensor: Any) -> Any:
        out, largest = rounding(value, tensor)
        made.append(weakref.ref(out))
        return out, largest

    alive: list[int] = []

    def uploaded(encoded: Any, plan: Any) -> Any:
        alive.append(sum(one() is not None for one in made))
        return uploading(encoded, plan)

    monkeypatch.setattr("securefed.parties._update.np.multiply", multiplied)
    monkeypatch.setattr(Quantise, "_round", staticmethod(rounded))
    monkeypatch.setattr(masking_client, "upload_residues", uploaded)
    clients[0].receive(server.outgoing[0], UPDATES[name])
    assert len(made) >= 2
    assert alive == [2 if name == "contributes" else 0]  # what is uploaded lives, in the control


def test_what_a_client_logs_of_sitting_out_is_written_later_and_a_note_is_handed_over_either_way(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = SumTerms.like(GOOD, clients=CLIENTS, defense=secure_aggregation(), base=False, bounds=2.0, max_void=1)
    absence.flush()
    caplog.clear()
    notes: list[Any] = []
    monkeypatch.setattr(absence._LATE, "add", notes.append)
    for name in ("contributes", "not finite", "fails"):
        steps(terms, UPDATES[name], False)
    assert not [record for record in caplog.records if "no contribution" in record.message]
    assert [type(error).__name__ for *_, error in notes] == ["NoneType", "DataError", "RuntimeError"]


def test_late_lines_are_written_once_and_in_order(caplog: pytest.LogCaptureFixture) -> None:
    absence.flush()
    with caplog.at_level(logging.WARNING, "securefed.client"):
        caplog.clear()
        absence.log_absence(0, None, None, 7)
        for number in range(5):
            absence.log_absence(number, None, ValueError(number), 7)
        absence.log_absence(9, ValueError("again"), ValueError("again"), 8)
        absence.flush()
        absence.flush()
    expected = [f"client {number} has no contribution to exchange 7: ValueError({number})" for number in range(5)]
    assert [record.message for record in caplog.records] == expected


def test_late_lines_come_without_being_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    written = threading.Event()
    monkeypatch.setattr(absence._LOG, "warning", lambda *_: written.set())
    absence.log_absence(0, None, ValueError(), 0)
    assert written.wait(60)
