"""Attacks on keys that were agreed ahead and outlive their processes, by a server and by a thief of files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from securefed import SERVER, Message, Seal
from securefed._messages import REFUSAL
from securefed._runtime.refusals import read_refusal
from securefed.defenses import Identities, secure_aggregation
from securefed.defenses._secure_aggregation.primitives import private_key, public_bytes
from securefed.defenses._secure_aggregation.session import MaskingServer
from securefed.errors import MessageRefused, RolledBackError, RoundVoid, StorageError
from securefed.parties import SumClient, SumServer, SumTerms
from securefed.parties._envelope import unwrap, wrap
from tests.combinations import each_value
from tests.parties.helpers import play
from tests.parties.sums import BASE, CLIENTS, COARSE, DEFENSES, UPDATES, check, given, parties, private_terms, terms_of

OTHER_BASE = {name: np.asarray(value) + 1 for name, value in BASE.items()}


def message_in(terms: SumTerms, data: bytes, sender: int = SERVER) -> Message:
    return Message.decode(unwrap(terms.digest, data, sender), claimed_sender=sender)


def refusal_in(terms: SumTerms, reply: bytes, party: int) -> str:
    message = message_in(terms, reply, party)
    assert message.stage == REFUSAL, f"client {party} answered {message.stage!r}"
    return str(read_refusal(message))


def upload_requests(server: SumServer, members: Mapping[int, Any], mine: Mapping[int, Any], **opened: Any) -> None:
    """Bring an open round to the stage in which clients are asked for their updates."""
    server.open(**opened)
    while not server.wants_updates:
        server.receive({i: members[i].receive(data, **mine.get(i, {})) for i, data in server.outgoing.items()})


@pytest.mark.parametrize(
    ("rounds", "name"), each_value([0, 1], ["plain", "masks", "masks, active", "masks, verified", "ckks", "noise"])
)
def test_a_client_that_died_while_it_computed_answers_its_exchange_no_more(name: str, rounds: int, tmp_path) -> None:
    """The file says that the exchange is used up before the update is computed; with keys agreed ahead as well."""
    terms = private_terms() if name == "noise" else terms_of(DEFENSES[name], **(COARSE if name == "ckks" else {}))
    mine = {i: {"update": UPDATES[i], "base": BASE} for i in range(CLIENTS)} if name == "noise" else given()
    members, server, file = parties(terms), SumServer(terms), tmp_path / "client"
    seal = Seal(bytes(32)) if name == "masks, verified" else None
    members[0] = SumClient(terms, 0, file=file, seal=seal)
    for _ in range(rounds):
        play(server, members, mine, base=BASE)
    upload_requests(server, members, mine, base=BASE)
    request, died = server.outgoing[0], []

    def update() -> Any:
        died.append(file.read_bytes())
        return mine[0]["update"]

    uploaded = members[0].receive(request, **mine[0] | {"update": update})
    assert message_in(terms, uploaded, 0).stage == terms.defense.aggregation.upload
    file.write_bytes(died[0])
    again = SumClient(terms, 0, file=file, seal=seal)
    sent = message_in(terms, request)
    bare = {key: value for key, value in sent.body.items() if not key.startswith("session/")}  # as if it were open
    for asked in (request, wrap(terms.digest, replace(sent, body=bare).encode())):
        refusal_in(terms, again.receive(asked, **mine[0]), 0)


def test_one_set_of_prepared_keys_shown_to_clients_in_two_exchanges_opens_no_sum() -> None:
    """Some upload to one model, the others to another, under keys agreed ahead; then the uploads are put together."""
    terms = terms_of(DEFENSES["masks"], max_void=1)
    members, server = parties(terms), SumServer(terms)
    play(server, members, given(), base=BASE)
    frozen = server.freeze()
    first, second = SumServer.thaw(terms, frozen), SumServer.thaw(terms, frozen)
    first.open(BASE)
    second.open(OTHER_BASE)
    assert first.wants_updates and second.wants_updates
    mine, others = given(), given(base=OTHER_BASE)
    uploads = {i: members[i].receive(first.outgoing[i], **mine[i]) for i in (0, 1, 2)}
    elsewhere = {i: members[i].receive(second.outgoing[i], **others[i]) for i in (3, 4)}
    with pytest.raises(RoundVoid, match="the threshold is 3"):  # two are fewer than the threshold
        second.receive(elsewhere)
    mixed = SumServer.thaw(terms, first.freeze())
    mixed.receive(uploads | elsewhere)
    assert set(mixed.outgoing) == {0, 1, 2}  # the tags of the others are of another context
    opened = first
    opened.receive(uploads)
    result = opened.receive({i: members[i].receive(data) for i, data in opened.outgoing.items()})
    check(result, (0, 1, 2))
    for party in (3, 4):  # told that they were counted, they reveal nothing: they uploaded in another context
        request = wrap(terms.digest, replace(message_in(terms, first_unmask(mixed)), receiver=party).encode())
        refusal_in(terms, members[party].receive(request), party)


def first_unmask(server: SumServer) -> bytes:
    return next(iter(server.outgoing.values()))


def test_a_prepared_upload_that_is_asked_for_in_a_later_round_is_another_exchange() -> None:
    """Clients that were left out of rounds keep their part; what they are asked with must be of the newest exchange."""
    terms = terms_of(DEFENSES["masks"])
    members, server = parties(terms), SumServer(terms)
    play(server, members, given(), base=BASE)
    older = server.freeze()
    four = [0, 1, 2, 3]
    play(server, members, given(), base=BASE, cohort=four)
    replayed = SumServer.thaw(terms, older)
    replayed.open(BASE)
    answers = {i: members[i].receive(data, **given()[i]) for i, data in replayed.outgoing.items()}
    for party in four:
        assert "a replay" in refusal_in(terms, answers[party], party)
    assert message_in(terms, answers[4], 4).stage == "upload"  # the control: its part was not used
    play(server, members, given(), base=BASE, cohort=[0, 1, 2, 4])  # and by it no later round is harmed
    assert server.result is not None
    check(server.result, (0, 1, 2, 4))


def test_clients_that_lost_their_prepared_keys_refuse_and_the_round_is_made_with_fresh_ones() -> None:
    terms = terms_of(DEFENSES["masks"])
    for lost in ((2,), (0, 1, 2, 3, 4)):
        members, server = parties(terms), SumServer(terms)
        play(server, members, given(), base=BASE)
        members |= {party: SumClient(terms, party) for party in lost}
        result = play(server, members, given(), base=BASE)
        if len(lost) == 1:
            check(result, (0, 1, 3, 4))
            assert "lost its state" in result.refusals[2]
        else:
            check(result, range(CLIENTS))
            assert len(result.void) == 1
        check(play(server, members, given(), base=BASE), range(CLIENTS))


@pytest.mark.parametrize("name", ["masks", "masks, active"])
def test_a_server_that_swaps_a_key_agreed_ahead(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With identities no client deals shares for it; without, the server would hold the victim's part of all masks."""
    terms = terms_of(DEFENSES[name], max_void=1)
    members, server = parties(terms), SumServer(terms)
    requests, own = MaskingServer.requests, public_bytes(private_key(bytes(range(32))))

    def swapped(self: MaskingServer, bodies: Mapping[int, Any]) -> Any:
        if self.ahead and "share_keys" in next(iter(bodies.values()), {}):
            row = self.advertised_clients.index(2)
            for key in ("share_keys", "mask_keys"):
                changed = next(iter(bodies.values()))[key].copy()
                changed[row] = np.frombuffer(own, np.uint8)
                bodies = {client: {**body, key: changed} if client != 2 else body for client, body in bodies.items()}
        return requests(self, bodies)

    monkeypatch.setattr(MaskingServer, "requests", swapped)
    server.open(BASE)
    refusals: list[str] = []
    while server.result is None and server.outgoing:
        replies = {i: members[i].receive(data, **given()[i]) for i, data in server.outgoing.items()}
        refusals += [
            str(read_refusal(message))
            for party, data in replies.items()
            if (message := message_in(terms, data, party)).stage == REFUSAL
        ]
        try:
            server.receive(replies)
        except RoundVoid:
            break
    named = [text for text in refusals if "client 2" in text and "advertised keys" in text]
    assert len(named) == (4 if name == "masks, active" else 0)
    assert (server.result is None) == (name == "masks, active")


def test_a_refused_base_says_nothing_of_the_clients_own() -> None:
    terms = terms_of(DEFENSES["masks"])
    replies = []
    for own in (OTHER_BASE, {name: np.asarray(value) * 3 for name, value in BASE.items()}):
        members, server = parties(terms), SumServer(terms, run="0" * 32)
        upload_requests(server, members, given(), base=BASE)
        reply = members[0].receive(server.outgoing[0], **given()[0] | {"base": own})
        replies.append(refusal_in(terms, reply, 0))
    assert replies[0] == replies[1]
    assert "it was given another model" in replies[0]


def test_with_an_anchor_no_older_file_and_no_missing_one_goes_on(tmp_path: Path) -> None:
    """The client's file: older, or gone; its anchor: gone, or set back. Each control opens without an anchor."""
    terms, file, anchor = terms_of(DEFENSES["masks"]), tmp_path / "client", tmp_path / "elsewhere" / "anchor"
    seal, bare = Seal(bytes(range(32)), anchor), Seal(bytes(range(32)))
    members, server = parties(terms), SumServer(terms)
    members[0] = SumClient(terms, 0, file=file, seal=seal)
    play(server, members, given(), base=BASE)
    older, remembered = file.read_bytes(), anchor.read_bytes()
    play(server, members, given(), base=BASE)
    newest, newer = file.read_bytes(), anchor.read_bytes()

    def opens(state: bytes | None, memory: bytes | None, with_seal: Seal = seal) -> SumClient:
        for path, data in ((file, state), (anchor, memory)):
            path.unlink(missing_ok=True) if data is None else path.write_bytes(data)
        return SumClient(terms, 0, file=file, seal=with_seal)

    with pytest.raises(RolledBackError, match="restore the newest"):
        opens(older, newer)
    with pytest.raises(RolledBackError, match="the anchor is gone or was set back"):
        opens(older, None)
    with pytest.raises(RolledBackError, match="the anchor is gone or was set back"):
        opens(newest, remembered)
    with pytest.raises(StorageError, match="is gone, and its anchor"):
        opens(None, newer)
    assert opens(older, None, bare).run == server.run
    assert opens(None, newer, bare).run is None
    members[0] = opens(newest, newer)
    check(play(server, members, given(), base=BASE), range(CLIENTS))


def test_a_client_of_other_identities_is_refused_with_its_prepared_keys() -> None:
    """A client that was revoked is in terms no more: its messages, made with keys agreed ahead, name other terms."""
    before = terms_of(DEFENSES["masks, active"])
    identities = before.defense.aggregation.identities
    assert identities is not None
    fresh = Identities.generate(CLIENTS)
    public = {**identities.public, 4: fresh.public[4]}
    own = {**identities.own, 4: fresh.own[4]}
    after = terms_of(secure_aggregation(identities=Identities(public, own)))
    members, server = parties(before), SumServer(before)
    play(server, members, given(), base=BASE)
    server.open(BASE)
    with pytest.raises(StorageError):
        SumServer.thaw(after, server.freeze())
    with pytest.raises(StorageError):
        SumClient.thaw(after, 0, members[0].freeze())
    reply = members[4].receive(server.outgoing[4], **given()[4])
    anew = SumServer(after)
    anew.open(BASE)
    anew.receive({4: reply}, more=True)
    assert "terms" in anew.refusals[4]
    with pytest.raises(MessageRefused):
        members[4].receive(anew.outgoing[4], **given()[4])


@pytest.mark.parametrize("kind", [np.complex64, np.float32], ids=["a type that no message holds", "the control"])
def test_a_reply_that_could_not_be_written_to_the_servers_file_is_its_clients_alone(kind: Any, tmp_path: Path) -> None:
    """The server keeps replies in its file before it opens a sum: one client's reply must not end the round for all."""
    terms = terms_of(DEFENSES["masks"])
    members, server = parties(terms), SumServer(terms, file=tmp_path / "server")
    server.open(BASE)
    while server.result is None:
        replies = {i: members[i].receive(request, **given()[i]) for i, request in server.outgoing.items()}
        message = Message.decode(unwrap(terms.digest, replies[4], 4), claimed_sender=4)
        if message.stage == "unmask":
            binding = ("run", "round", "stage", "sender", "receiver")
            body = {**message.body, "more": np.ones(1, kind)}
            header = {"securefed": json.dumps({"version": 1} | {n: getattr(message, n) for n in binding})}
            replies[4] = wrap(terms.digest, save(body, header))
        server.receive(replies)
    check(server.result, range(CLIENTS))
    assert list(server.result.refusals) == [4]
    assert ("complex64" if kind is np.complex64 else "tag") in server.result.refusals[4]


def test_a_refusal_in_a_strangers_words_is_one_short_line() -> None:
    """Logs and terminals show it: with line ends and control codes it could pass for the server's own words."""
    plain, forged = "no, thank you; ü", "no\nRound 1 is complete\x1b[2K" + "!" * 10**6
    read = {text: str(read_refusal(Message("0" * 32, 0, REFUSAL, 1, SERVER, words(text)))) for text in (plain, forged)}
    assert read[plain].endswith(plain)  # the control
    assert read[forged].isprintable() and len(read[forged]) < 1200
    assert r"no\nRound 1 is complete\x1b[2K!!" in read[forged]


def words(text: str) -> dict[str, Any]:
    return {"name": np.frombuffer(b"Stranger", np.uint8), "text": np.frombuffer(text.encode(), np.uint8)}
