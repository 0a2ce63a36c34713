from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed import SERVER, Message, Transcript, _messages
from securefed._messages import KEY_HOLDER, RoundRecord, SentMessage
from securefed._tensors import encode
from securefed.errors import BindingError, MalformedError, ProtocolError, StorageError, VersionRefused

RUN = "ab" * 16
MESSAGE = Message(RUN, 4, "upload", 2, SERVER, {"x": np.arange(6.0).reshape(2, 3), "k": np.asarray(7)})
BINDING = {"run": RUN, "round": 4, "stage": "upload", "sender": 2, "receiver": SERVER}
VERSIONED = BINDING | {"version": 1}


def test_a_message_survives_the_wire() -> None:
    again = Message.decode(MESSAGE.encode())
    assert replace(again, body={}) == replace(MESSAGE, body={})
    np.testing.assert_array_equal(again.body["x"], MESSAGE.body["x"])
    assert again.body["k"].shape == ()


@pytest.mark.parametrize(
    ("field", "other"), [("run", "cd" * 16), ("round", 5), ("stage", "unmask"), ("sender", 3), ("receiver", 0)]
)
def test_every_part_of_the_binding_is_checked(field, other) -> None:
    MESSAGE.check(**BINDING)
    with pytest.raises(BindingError, match=field):
        replace(MESSAGE, **{field: other}).check(**BINDING)


@given(st.data())
def test_mutated_bytes_give_a_message_or_a_named_refusal(data) -> None:
    raw = bytearray(MESSAGE.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for mutated in (bytes(raw), bytes(raw[:cut])):
        try:
            assert isinstance(Message.decode(mutated, claimed_sender=9), Message)
        except ProtocolError as error:
            assert error.sender == 9


@pytest.mark.parametrize("change", [{"round": "4"}, {"round": True}, {"sender": None}, {"extra": 1}, {"stage": None}])
def test_headers_of_wrong_types_are_refused(change) -> None:
    header = {k: v for k, v in (VERSIONED | change).items() if v is not None}
    Message.decode(encode({}, VERSIONED))
    with pytest.raises(MalformedError):
        Message.decode(encode({}, header))


def test_a_message_does_not_fill_logs_and_states_with_what_is_wrong_with_it() -> None:
    """The reason names the fields of the message; a reply of a hundred thousand would stand in it whole."""
    for fields, longest in ((3, 60), (10**5, 2050)):
        many = replace(MESSAGE, body={f"field {i}": np.zeros(0) for i in range(fields)})
        with pytest.raises(MalformedError, match="'field 0', 'field 1'") as found:
            many.expect_fields(())
        assert longest / 2 < len(str(found.value)) < 2 * longest


@pytest.mark.parametrize("field", ["run", "stage"])
def test_half_a_letter_in_a_header_is_refused_by_name(field) -> None:
    """JSON may hold it, and the digests of an exchange cannot: a client would stop with an error of Python's."""
    assert getattr(Message.decode(encode({}, VERSIONED | {field: "ü"})), field) == "ü"  # the control
    with pytest.raises(MalformedError, match=f"'{field}' is no text"):
        Message.decode(encode({}, VERSIONED | {field: "a\ud800"}))


@pytest.mark.parametrize(
    ("version", "said"),
    [(2, "speaks version 2"), (True, "speaks version True"), ("1", "version '1'"), (None, "names no")],
)
def test_messages_of_another_version_are_refused_by_name_before_their_fields_are_read(version, said) -> None:
    header = {"unknown": 1} if version is None else {"unknown": 1, "version": version}
    with pytest.raises(VersionRefused, match=f"{said}.*this party speaks version 1; install the same release") as found:
        Message.decode(encode({}, header), claimed_sender=3)
    assert found.value.sender == 3
    with pytest.raises(MalformedError):  # positive control: of this version, it is read
        Message.decode(encode({}, header | {"version": 1}), claimed_sender=3)


def test_a_stored_message_may_name_no_version_and_no_other_one(monkeypatch) -> None:
    old = encode(MESSAGE.body, BINDING)
    assert Message.decode(old, stored=True).round == Message.decode(MESSAGE.encode(), stored=True).round == 4
    with pytest.raises(VersionRefused):
        Message.decode(old)
    monkeypatch.setattr(_messages, "PROTOCOL_VERSION", 2)
    with pytest.raises(VersionRefused, match="speaks version 1 of the protocol and this party speaks version 2"):
        Message.decode(encode(MESSAGE.body, VERSIONED), stored=True)


def transcript() -> Transcript:
    record = RoundRecord(
        round=4,
        kind="train",
        broadcast={"z": np.ones((2, 2))},
        cohort=(0, 2),
        survivors=(2,),
        encoded={"x": np.arange(3)},
        step={"x": 0.5},
        total={"x": np.arange(3) / 2},
        released={"x": np.arange(3) / 2 + 1e-3},
    )
    contributions = {(4, 2): {"x": np.arange(3)}, (4, 12): {"x": np.arange(3) + 1}}
    sent = [
        SentMessage(MESSAGE, len(MESSAGE.encode())),
        SentMessage(replace(MESSAGE, sender=SERVER, receiver=2, body={}), 10),
    ]
    return Transcript(RUN, {"algorithm": "x"}, sent, [record], contributions, {"z": np.zeros(2)})


def test_transcripts_save_and_load(tmp_path) -> None:
    ours = transcript()
    ours.save(tmp_path / "run.transcript")
    again = Transcript.load(tmp_path / "run.transcript")
    assert (again.run, again.meta) == (ours.run, ours.meta)
    assert [s.nbytes for s in again.sent] == [s.nbytes for s in ours.sent]
    np.testing.assert_array_equal(again.sent[0].message.body["x"], MESSAGE.body["x"])
    assert repr(again.records) == repr(ours.records)
    assert set(again.contributions) == set(ours.contributions)
    np.testing.assert_array_equal(again.contributions[4, 12]["x"], [1, 2, 3])
    np.testing.assert_array_equal(again.output["z"], [0, 0])
    assert (tmp_path / "run.transcript").stat().st_mode & 0o077 == 0


def test_byte_counts_are_those_of_the_wire() -> None:
    ours = transcript()
    assert ours.nbytes() == len(MESSAGE.encode()) + 10
    assert ours.nbytes(sender=2) == len(MESSAGE.encode())
    assert ours.nbytes(receiver=2) == 10


@pytest.mark.parametrize("damage", ["truncated", "flipped", "foreign", "missing"])
def test_a_damaged_transcript_is_refused_with_the_remedy(tmp_path, damage) -> None:
    path = tmp_path / "t"
    transcript().save(path)
    raw = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(raw[: len(raw) // 2])
    elif damage == "flipped":
        raw[-3] ^= 1
        path.write_bytes(raw)
    elif damage == "foreign":
        path.write_bytes(MESSAGE.encode())
    else:
        path.unlink()
    with pytest.raises(StorageError, match=str(path)):
        Transcript.load(path)


@given(st.data())
def test_any_single_change_to_a_stored_file_is_noticed(tmp_path_factory, data) -> None:
    path = tmp_path_factory.mktemp("t") / "t"
    transcript().save(path)
    raw, stored = bytearray(path.read_bytes()), repr(Transcript.load(path))
    where = data.draw(st.integers(0, len(raw) - 1))
    new = data.draw(st.integers(0, 255))
    same = raw[where] == new
    raw[where] = new
    path.write_bytes(raw)
    if same:
        Transcript.load(path)
    else:
        try:
            again = Transcript.load(path)
        except StorageError:
            return
        assert repr(again) == stored  # a byte without meaning, such as padding of the header


@pytest.mark.parametrize(("sender", "who"), [(SERVER, "the server"), (KEY_HOLDER, "the key holder"), (3, "3")])
def test_a_refusal_names_the_party_in_words(sender: int, who: str) -> None:
    assert str(MalformedError(sender, "it is cut")) == f"message from {who} refused: it is cut"
