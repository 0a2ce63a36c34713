"""Parties that lie: what each of them can do, and the named refusal of everything else. Controls stand beside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securefed import SERVER, Message
from securefed.defenses import Session
from securefed.defenses._one_message import client as client_steps
from securefed.defenses._one_message import member as member_steps
from securefed.defenses._one_message import ring, server
from securefed.defenses._one_message.parameters import MODULUS
from securefed.defenses._one_message.session import opening_statement, signed
from securefed.errors import (
    AuthenticationError,
    BindingError,
    ContradictionError,
    MessageRefused,
    TooFewSurvivors,
)
from tests.defenses.one_message.play import (
    CLIENTS,
    CONTEXT,
    IDENTITIES,
    MEMBERS,
    RUN,
    Play,
    ask,
    check_exact,
    planned,
    protocol,
    reached,
)

# --- members that lie ------------------------------------------------------------------------------------------------


def lying_member(play: Play, member: int, how: str) -> None:
    """Let a member reveal a wrong share under its own, valid signature."""

    def reveal(message: Message) -> Message:
        if message.stage != "open" or message.sender != member:
            return message
        values = ring.from_bytes(message.body["share"].tobytes())
        if how == "one entry":
            values[17] = (values[17] + 1) % MODULUS
        elif how == "all":
            values = (values + 12345) % MODULUS
        share = ring.to_bytes(values)
        chosen = play.clients[member].member.chosen
        signature = signed(IDENTITIES, member, opening_statement(chosen, member, share))
        return replace(message, body={"share": np.frombuffer(share, np.uint8), "signature": signature})

    play.reply = reveal


@pytest.mark.parametrize("how", ["one entry", "all"])
@pytest.mark.parametrize("member", [0, 3, 5])
def test_a_wrong_share_neither_spoils_the_sum_nor_frames_another_member(member: int, how: str) -> None:
    play = Play()
    lying_member(play, member, how)
    found = play.run()
    check_exact(found, play.plan)
    assert found.survivors == tuple(range(CLIENTS))
    assert list(found.left_out) == [member]
    assert "wrong share" in found.left_out[member]
    control = Play()
    lying_member(control, member, "not at all")
    assert control.run().left_out == {}


def test_two_wrong_shares_of_six_with_one_corrupt_member_are_refused_not_summed() -> None:
    play = Play(protocol(corrupt=1, lost=0, committee=range(4)))
    lying_member(play, 1, "all")
    check_exact(play.run(), play.plan)
    first = play.reply
    second = Play(protocol(corrupt=1, lost=0, committee=range(4)))
    lying_member(second, 1, "all")
    one = second.reply
    lying_member(second, 2, "one entry")
    two = second.reply
    second.reply = lambda m: one(m) if m.sender == 1 else two(m)
    assert first is not one
    with pytest.raises(TooFewSurvivors, match="the sum is not opened"):
        second.run()


def test_a_member_that_complains_of_everybody_is_set_aside() -> None:
    """Its share is not needed, no client is left out, and it is named with its complaints."""
    play = Play()
    play.reply = complaining(play, 2, tuple(range(CLIENTS)))
    found = play.run()
    assert found.survivors == tuple(range(CLIENTS))
    check_exact(found, play.plan)
    assert list(found.left_out) == [2]
    assert "do not fit" in found.left_out[2]


def complaining(play: Play, member: int, clients: tuple[int, ...]) -> Any:
    """Let a member report these clients, under its signature."""

    def report(message: Message) -> Message:
        if message.stage != "check" or message.sender != member:
            return message
        own = play.clients[member].member
        complaints = np.isin(np.asarray(own.clients), clients).astype(np.uint8)
        statement = member_steps.complaints_statement(
            own.exchange, member, own.statements.tobytes(), complaints.tobytes()
        )
        return replace(message, body={"complaints": complaints, "signature": signed(IDENTITIES, member, statement)})

    return report


@pytest.mark.parametrize("corrupt", [1, 2, 3])
def test_no_pair_of_client_and_member_with_a_complaint_is_left(corrupt: int) -> None:
    """And honest clients stay, if honest members complain of none and as many members as are spare lie."""
    rng = np.random.default_rng(corrupt)
    opening = 3 * corrupt + 1
    for _ in range(200):
        members, clients = opening + int(rng.integers(0, 3)), int(rng.integers(3, 12))
        complaints = rng.random((members, clients)) < rng.choice([0.02, 0.2, 0.6])
        opens, out = server.settled(complaints, corrupt, opening)
        assert opens.sum() >= opening
        assert not complaints[opens][:, ~out].any()
        spare = members - opening
        lying = np.zeros_like(complaints)
        lying[: min(spare, corrupt)] = rng.random((min(spare, corrupt), clients)) < 0.7
        assert not server.settled(lying, corrupt, opening)[1].any()


# --- clients that lie ------------------------------------------------------------------------------------------------


def lying_client(monkeypatch: pytest.MonkeyPatch, client: int, members: tuple[int, ...]) -> None:
    """Let a client deal shares to these members that lie on no polynomial of the degree."""
    honest = client_steps.to_bytes
    dealt = iter(range(10**6))

    def wrong(values: np.ndarray) -> bytes:
        if cheating[0] and next(dealt) % len(MEMBERS) in members:
            values = (values + 1) % MODULUS
        return honest(values)

    cheating = [False]
    upload = client_steps.upload

    def cheat(state: Any, encoded: Any) -> Any:
        cheating[0] = state.client == client
        return upload(state, encoded)

    monkeypatch.setattr(client_steps, "to_bytes", wrong)
    monkeypatch.setattr(client_steps, "upload", cheat)


@pytest.mark.parametrize("members", [(1, 4), (0, 1, 2, 3, 4, 5), (2, 3, 5)])
def test_a_client_whose_shares_do_not_fit_is_left_out_where_uploads_are_kept(
    members: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lying_client(monkeypatch, 6, members)
    play = Play(protocol(keep_uploads=True))
    found = play.run()
    assert found.survivors == (0, 1, 2, 3, 4, 5, 7)
    check_exact(found, play.plan)
    assert "client 6 do not fit" in found.left_out[6]
    with pytest.raises(TooFewSurvivors, match=r"client 6 do not fit.*keep_uploads=True"):
        Play(protocol()).run()


def test_a_client_that_cheats_one_member_costs_that_member_and_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    lying_client(monkeypatch, 6, (4,))
    play = Play()
    found = play.run()
    assert found.survivors == tuple(range(CLIENTS))
    check_exact(found, play.plan)
    assert list(found.left_out) == [4]


# --- a server that deviates ------------------------------------------------------------------------------------------


def test_a_member_signs_one_set_in_an_exchange() -> None:
    play, _, outgoing = reached("confirm")
    ask(play, "confirm", 0, outgoing[0])
    for other in (outgoing[0], {"ids": np.arange(6)}):
        with pytest.raises(ContradictionError, match="asks for stage 'confirm', the next one is 'open'"):
            ask(play, "confirm", 0, other)


@pytest.mark.parametrize(
    ("ids", "says"),
    [([0, 1, 2, 3], "smaller than 5"), ([0, 1, 2, 3, 9], "unknown"), ([0, 1, 1, 2, 3, 4], "repeated"), ([], "smaller")],
)
def test_a_member_signs_no_small_or_unknown_set(ids: list[int], says: str) -> None:
    play, _, outgoing = reached("confirm")
    with pytest.raises(MessageRefused, match=says):
        ask(play, "confirm", 0, {"ids": np.asarray(ids, np.int64)})
    ask(play, "confirm", 0, outgoing[0])  # control


def test_of_two_sets_one_opens_at_most_with_as_many_corrupt_members_as_planned_and_both_with_more() -> None:
    """The server asks some honest members for one set and the others for another; corrupt member 0 signs both."""
    play, _, _ = reached("confirm")
    sets = [tuple(range(8)), tuple(range(7))]
    signed_by: list[list[int]] = [[], []]
    for member in MEMBERS[1:]:
        ask(play, "confirm", member, {"ids": np.asarray(sets[member % 2])})
        signed_by[member % 2].append(member)

    def request(which: int, signers: list[int]) -> dict[str, Any]:
        chosen = play.clients[signed_by[which][0]].member.chosen
        signatures = [signed(IDENTITIES, member, chosen) for member in sorted(signers)]
        return {"members": np.asarray(sorted(signers)), "signatures": np.stack(signatures)}

    assert [len(own) + 1 for own in signed_by] == [3, 4]
    assert play.aggregation.committee.quorum == 4
    with pytest.raises(ContradictionError, match="3 members signed the set of uploads to open; 4 must"):
        ask(play, "open", signed_by[0][0], request(0, [0, *signed_by[0]]))
    assert ask(play, "open", signed_by[1][0], request(1, [0, *signed_by[1]])).body["share"].size
    # control: two corrupt members that sign both sets make a quorum for the other one too
    assert ask(play, "open", signed_by[0][0], request(0, [0, 1, *signed_by[0]])).body["share"].size


def test_a_quorum_for_another_set_opens_nothing() -> None:
    play, _, outgoing = reached("open")
    body = {name: np.array(value) for name, value in outgoing[0].items()}
    body["signatures"][1, 5] ^= 1
    with pytest.raises(AuthenticationError, match="the set of uploads to open"):
        ask(play, "open", 0, body)
    fewer = {name: value[:3] for name, value in outgoing[0].items()}
    with pytest.raises(ContradictionError, match="3 members signed"):
        ask(play, "open", 0, fewer)
    assert ask(play, "open", 0, outgoing[0]).body["share"].size  # control


def test_clients_that_were_told_different_things_are_not_summed() -> None:
    """The server cannot hide it: the upload is signed for another exchange."""
    play = Play(context={7: b"d" * 32})
    found = play.run()
    assert found.survivors == tuple(range(7))
    assert isinstance(play.refused[7], AuthenticationError)
    check_exact(found, play.plan)


def test_a_member_that_was_told_other_things_helps_no_sum_of_the_others() -> None:
    play = Play(context={2: b"d" * 32})
    found = play.run()
    assert 2 not in found.survivors
    assert "told this party of another exchange" in str(play.refused[2])


def test_a_member_asked_to_check_before_its_upload_uploads_to_that_exchange_only() -> None:
    play, _, outgoing = reached("upload")
    client = play.aggregation.client_accept
    request = Message(RUN, play.number, "upload", SERVER, 0, dict(outgoing[0]))
    before = play.clients[0]
    other = replace(before, member=replace(before.member, exchange=b"x" * 32))
    with pytest.raises(ContradictionError, match="of another exchange before"):
        client(other, request, client_steps.UploadContext(CONTEXT, b""))
    assert client(before, request, client_steps.UploadContext(CONTEXT, b"")).exchange  # control


def test_keys_that_a_member_did_not_sign_are_refused_by_clients_and_by_the_member() -> None:
    play, _, outgoing = reached("upload")
    body = {name: np.array(value) for name, value in outgoing[7].items()}
    body["keys"][3] = np.frombuffer(b"\x09" + bytes(31), np.uint8)
    with pytest.raises(AuthenticationError, match="the key that the server gives for it"):
        ask(play, "upload", 7, body)
    fewer = {name: value[:3] for name, value in outgoing[7].items()}
    with pytest.raises(ContradictionError, match="3 members of the committee advertised keys; 4 must"):
        ask(play, "upload", 7, fewer)
    assert ask(play, "upload", 7, outgoing[7]).body["bundles"].shape[0] == 6  # control


def test_keys_and_uploads_of_another_exchange_are_refused() -> None:
    old, _, outgoing = reached("upload")
    stale = dict(outgoing[7])
    upload = ask(old, "upload", 7, stale)
    new = Play(number=old.number + 1)
    with pytest.raises(BindingError):
        new.aggregation.client_accept(
            new.aggregation.client_open(new.session, 7),
            Message(RUN, old.number, "upload", SERVER, 7, stale),
            client_steps.UploadContext(CONTEXT, b""),
        )
    with pytest.raises(AuthenticationError):
        new.aggregation.client_accept(
            new.aggregation.client_open(new.session, 7),
            Message(RUN, new.number, "upload", SERVER, 7, stale),
            client_steps.UploadContext(CONTEXT, b""),
        )
    again = Play(number=old.number + 1)
    again.reply = lambda m: replace(m, body=upload.body) if (m.stage, m.sender) == ("upload", 7) else m
    found = again.run()
    assert found.survivors == tuple(range(7))
    assert isinstance(again.refused[7], AuthenticationError)


def test_uploads_in_another_clients_name_and_twice_are_refused() -> None:
    swapped = Play()
    seen: dict[int, Any] = {}

    def swap(message: Message) -> Message:
        if message.stage != "upload":
            return message
        seen[message.sender] = message.body
        return replace(message, body=seen[6]) if message.sender == 7 else message

    swapped.reply = swap
    assert swapped.run().survivors == tuple(range(7))
    assert isinstance(swapped.refused[7], AuthenticationError)
    play, state, outgoing = reached("upload")
    reply = ask(play, "upload", 7, outgoing[7])
    once = play.aggregation.server_absorb(state, reply)
    with pytest.raises(ContradictionError, match="uploaded before"):
        play.aggregation.server_absorb(once, reply)


def test_a_client_uploads_once_and_only_members_are_of_the_committee() -> None:
    play, _, outgoing = reached("upload")
    ask(play, "upload", 7, outgoing[7])
    with pytest.raises(ContradictionError, match="asks for stage 'upload', the next one is ''"):
        ask(play, "upload", 7, outgoing[7])
    with pytest.raises(ContradictionError, match="to no member"):
        ask(play, "keys", 7, {})


def test_plans_of_other_committees_give_other_exchanges() -> None:
    """The digest that everything is bound to holds the committee's numbers."""
    plan = planned(protocol())
    session = Session(RUN, 1, tuple(range(CLIENTS)), plan)
    own = {
        protocol(**settings).parties.digest(session)
        for settings in ({}, {"lost": 0}, {"committee": range(5)}, {"committee": range(8), "corrupt": 2})
    }
    assert len(own) == 4
