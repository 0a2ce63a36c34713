"""Files encrypted at rest: what is wrong with one is named, and the untouched one beside it opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed import Dataset, Federation, InProcessTransport, LossyTransport, RunOptions, Seal, chain
from securefed import _catalogue as catalogue
from securefed._persistence import container, sealing
from securefed._persistence.state_file import StateFile
from securefed._tensors import decode
from securefed.defenses import Identities, secure_aggregation
from securefed.errors import ConfigError, RolledBackError, RoundVoid, StorageError, WrongKeyError

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
SECRET = b"a client's state, to be found nowhere" * 3
HEADER = 74


def opened(data: bytes, key: bytes = KEY, kind: str = "state") -> bytes:
    return Seal(key).open(kind, data, "state run.file")


@pytest.mark.parametrize("data", [b"", b"x", SECRET, bytes(100_000)])
def test_opening_undoes_sealing_and_no_two_files_are_alike(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = Seal(KEY).close("state", data)
    assert opened(sealed) == data
    assert len(sealed) == len(data) + HEADER + 16
    assert sealed[HEADER:] != Seal(KEY).close("state", data)[HEADER:]
    monkeypatch.setattr(sealing, "_SLICE", 7)
    assert opened(sealed) == data  # however it is cut into slices


def test_the_file_holds_no_word_of_it() -> None:
    sealed = Seal(KEY).close("state", SECRET)
    assert SECRET[:8] in SECRET
    assert not any(SECRET[start : start + 8] in sealed for start in range(len(SECRET) - 8))
    assert KEY not in sealed
    counts = np.bincount(np.frombuffer(Seal(KEY).close("state", bytes(100_000))[HEADER:-16], np.uint8), minlength=256)
    assert ((counts - 390.625) ** 2 / 390.625).sum() < 420  # 255 degrees of freedom; more has probability below 1e-9
    assert repr(KEY) not in repr(Seal(KEY))


def test_another_key_is_named_and_one_that_only_looks_alike_does_not_open() -> None:
    sealed = Seal(KEY).close("state", SECRET)
    assert opened(sealed) == SECRET
    with pytest.raises(WrongKeyError, match="another key"):
        opened(sealed, OTHER)
    place = slice(18, 26)  # of the fingerprint
    forged = sealed[: place.start] + Seal(OTHER).close("state", b"")[place] + sealed[place.stop :]
    with pytest.raises(StorageError, match="altered"):
        opened(forged, OTHER)


def test_every_altered_byte_and_every_cut_is_refused() -> None:
    sealed = Seal(KEY).close("state", b"short")
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1 << (place % 8)
        with pytest.raises(StorageError):
            opened(bytes(changed))
        with pytest.raises(StorageError, match="truncated"):
            opened(sealed[:place])
    with pytest.raises(StorageError, match="appended"):
        opened(sealed + b"\0")
    with pytest.raises(StorageError, match="is no transcript"):
        opened(sealed, kind="transcript")
    with pytest.raises(StorageError, match="version 2"):
        opened(sealed[:16] + b"\2\0" + sealed[18:])
    assert opened(sealed) == b"short"


def test_clear_and_sealed_files_do_not_stand_for_each_other(tmp_path: Path) -> None:
    path, tensors = tmp_path / "file", {"secret": np.frombuffer(SECRET, np.uint8)}
    container.save(path, "state", {"a": 1}, tensors, Seal(KEY))
    meta, found = container.load(path, "state", Seal(KEY))
    assert meta == {"a": 1}
    assert found["secret"].tobytes() == SECRET
    assert SECRET not in path.read_bytes()
    with pytest.raises(StorageError, match="is sealed; give the key"):
        container.load(path, "state")
    container.save(path, "state", {"a": 1}, tensors)
    assert SECRET in path.read_bytes()  # positive control: in clear, the bytes are there
    with pytest.raises(StorageError, match="is not sealed"):
        container.load(path, "state", Seal(KEY))


def test_an_older_file_is_refused_where_an_anchor_remembers(tmp_path: Path) -> None:
    path, anchored = tmp_path / "file", Seal(KEY, tmp_path / "elsewhere" / "anchor")
    copies = []
    for number in range(3):
        container.save(path, "state", {"number": number}, {}, anchored)
        copies.append(path.read_bytes())
        assert anchored.newest() == number + 1
    assert container.load(path, "state", anchored)[0] == {"number": 2}
    for older in copies[:2]:
        path.write_bytes(older)
        with pytest.raises(RolledBackError, match="3 was written since"):
            container.load(path, "state", anchored)
        assert container.load(path, "state", Seal(KEY))[0]["number"] < 2  # positive control: without an anchor it opens
    path.write_bytes(copies[2])
    container.load(path, "state", anchored)


def test_a_crash_between_file_and_anchor_leaves_a_file_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, anchored = tmp_path / "file", Seal(KEY, tmp_path / "anchor")
    container.save(path, "state", {"number": 0}, {}, anchored)
    with monkeypatch.context() as patch:
        patch.setattr(Seal, "remember", lambda *_: None)
        container.save(path, "state", {"number": 1}, {}, anchored)
    newer = path.read_bytes()
    assert anchored.newest() == 1  # positive control: the crash left the anchor behind
    assert container.load(path, "state", anchored)[0] == {"number": 1}
    assert anchored.newest() == 2  # else the next write would have the number of this one, and either would open
    container.save(path, "state", {"number": 2}, {}, anchored)
    path.write_bytes(newer)
    with pytest.raises(RolledBackError, match="3 was written since"):
        container.load(path, "state", anchored)


def test_a_file_without_its_anchor_or_an_anchor_without_its_file_is_refused(tmp_path: Path) -> None:
    path, anchor = tmp_path / "file", tmp_path / "anchor"
    anchored = Seal(KEY, anchor)
    for number in range(3):
        container.save(path, "state", {"number": number}, {}, anchored)
        if number == 0:
            first, remembered = path.read_bytes(), anchor.read_bytes()
    newest = anchor.read_bytes()
    for gone in (None, remembered):
        anchor.unlink() if gone is None else anchor.write_bytes(gone)
        with pytest.raises(RolledBackError, match="the anchor is gone or was set back"):
            container.load(path, "state", anchored)
    container.load(path, "state", Seal(KEY))  # the way out that the error names: once without an anchor
    anchor.unlink()
    path.write_bytes(first)
    container.load(path, "state", anchored)  # the first write has no number before it: this is not noticed
    anchor.write_bytes(newest)
    with pytest.raises(StorageError, match="remembers 3 writes"):
        anchored.check_never_written("state", path)
    Seal(KEY).check_never_written("state", path)
    assert anchored.for_file("a").anchor == tmp_path / "anchor-a"
    assert Seal(KEY).for_file("a") == Seal(KEY)


def test_an_anchor_is_bound_to_its_key_and_cannot_be_written_without_it(tmp_path: Path) -> None:
    path, anchor = tmp_path / "file", tmp_path / "anchor"
    container.save(path, "state", {}, {}, Seal(KEY, anchor))
    good = anchor.read_bytes()
    for bad in (good[:-1], bytes([good[0] ^ 1]) + good[1:], b"", bytes(40)):
        anchor.write_bytes(bad)
        with pytest.raises(StorageError, match="anchor"):
            container.load(path, "state", Seal(KEY, anchor))
    anchor.write_bytes(good)
    container.load(path, "state", Seal(KEY, anchor))
    with pytest.raises(StorageError, match="another key"):
        Seal(OTHER, anchor).newest()


def test_a_key_file_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    place = tmp_path / "keys" / "client.key"
    first = Seal.from_file(place)
    assert Seal.from_file(place).key == first.key == place.read_bytes()
    assert place.stat().st_mode & 0o777 == 0o600
    assert Seal.from_file(tmp_path / "other.key").key != first.key
    place.chmod(0o640)
    with pytest.raises(StorageError, match="read by others"):
        Seal.from_file(place)
    place.chmod(0o600)
    with pytest.raises(StorageError, match="never overwritten"):
        sealing.make_key(place)
    assert Seal.from_file(place, make=False).key == first.key
    with pytest.raises(StorageError, match="there is no key"):
        Seal.from_file(tmp_path / "missing.key", make=False)
    assert not (tmp_path / "missing.key").exists()
    place.write_bytes(first.key + b"x")
    with pytest.raises(StorageError, match="no key of 32 bytes"):
        Seal.from_file(place)
    place.write_bytes(first.key[:-1])
    with pytest.raises(StorageError, match="no key of 32 bytes"):
        Seal.from_file(place)
    with pytest.raises(StorageError, match="cannot use key"):
        Seal.from_file(tmp_path)
    for bad in (b"", bytes(31), bytearray(32), "k" * 32):
        with pytest.raises(ConfigError):
            Seal(bad)  # type: ignore[arg-type]


# --- the checkpoint of a run ------------------------------------------------------------------------------------------

RNG = np.random.default_rng(6)
DATA = [Dataset(RNG.standard_normal((6, 3)), np.arange(6) % 2) for _ in range(3)]


def federation(path: Path, seal: Seal | None) -> Federation:
    arguments: dict[str, Any] = {"options": RunOptions(checkpoint=path, checkpoint_every=1, seal=seal)}
    method = catalogue.algorithms.make("optimization/scaffold", learning_rate=0.1)
    return Federation(method, DATA, chain(secure_aggregation()), **arguments)


def test_a_sealed_run_resumes_and_its_clients_states_are_not_in_the_file(tmp_path: Path) -> None:
    path, seal = tmp_path / "run", Seal(KEY, tmp_path / "anchor")
    federation(path, seal).run(2)
    federation(tmp_path / "clear", None).run(2)
    older, clear_file = path.read_bytes(), (tmp_path / "clear").read_bytes()
    _, state = container.load(tmp_path / "clear", "checkpoint")
    tensors, _ = decode(state["state"].tobytes())
    held = [value.tobytes() for name, value in tensors.items() if name.startswith("client/") and value.nbytes >= 24]
    learned = [data for data in held if any(data)]
    assert learned
    assert all(data in clear_file and data not in older for data in learned)
    resumed = federation(path, seal).run(4)
    clear = federation(tmp_path / "clear", None).run(4)
    for name, value in clear.output.items():
        np.testing.assert_array_equal(resumed.output[name], value)
    with pytest.raises(WrongKeyError):
        federation(path, Seal(OTHER))
    with pytest.raises(StorageError, match="is sealed"):
        federation(path, None)
    path.write_bytes(older)
    with pytest.raises(RolledBackError):
        federation(path, seal)


def test_a_resumed_client_knows_what_it_let_out_and_refuses_another_sum_of_it(tmp_path: Path) -> None:
    """A run is set back to its first round; the contributions are those of before, and a client is kept out of the sum.

    Positive control: clients that forget give that sum, and the two subtract to the contribution of the one left out.
    """
    identities = Identities.generate(4)

    def run(path: Path, drop: bool, rounds: int) -> Federation:
        def lossy(endpoints: Any) -> Any:
            return LossyTransport(
                InProcessTransport(endpoints), replies=lambda m: drop and m.stage == "upload" and m.sender == 3
            )

        method = catalogue.algorithms.make("optimization/dsgd", learning_rate=0.1)
        found = Federation(
            method,
            [*DATA, DATA[0]],
            chain(secure_aggregation(identities=identities)),
            transport=lossy,
            options=RunOptions(checkpoint=path, checkpoint_every=1, max_void=1, seal=Seal(KEY)),
        )
        found.run(rounds)
        return found

    def state(path: Path) -> Any:
        return decode(container.load(path, "checkpoint", Seal(KEY))[1]["state"].tobytes())

    path = tmp_path / "run"
    first = run(path, False, 1)
    assert all(len(node.sums.sums.sums) == 1 for node in first.nodes.values())
    tensors, meta = state(path)
    start = tmp_path / "start"
    run(start, False, 0)
    fresh, begun = state(start)
    remembers = {name: tensors[name] if "/sums/" in name else value for name, value in fresh.items()}
    assert begun["loop"]["exchanges"] < meta["loop"]["exchanges"]
    for kept in (fresh, remembers):
        begun["loop"]["exchanges"] = 0
        container.save(path, "checkpoint", begun, kept, Seal(KEY))
        if kept is remembers:
            with pytest.raises(RoundVoid, match="entered a sum over other survivors"):
                run(path, True, 1)
        else:
            again = run(path, True, 1)
            whole, rest = (f.transcript.records[0].encoded for f in (first, again))
            assert [f.transcript.records[0].round for f in (first, again)] == [0, 0]
            sent = first.transcript.contributions[0, 3]
            assert all(np.array_equal(whole[name] - rest[name], sent[name]) for name in sent)


def test_a_state_that_could_not_be_read_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "client.state"
    file = StateFile(path, "state", Seal(KEY))
    assert file.read() is None
    file.write(b"first")
    file.write(b"second")  # positive control: what this object wrote last may be replaced
    whole = path.read_bytes()
    for damaged in (whole[:-1], b"x", whole):  # the last one is intact, and read with another key
        path.write_bytes(damaged)
        other = StateFile(path, "state", Seal(OTHER if damaged == whole else KEY))
        with pytest.raises(StorageError):
            other.read()
        with pytest.raises(StorageError, match="not as this process left it"):
            other.write(b"third")
        assert path.read_bytes() == damaged
    assert StateFile(path, "state", Seal(KEY)).read() == b"second"
    path.unlink()  # lost, as the anchor of a seal may show: nothing takes its place unread
    with pytest.raises(StorageError, match="not as this process left it"):
        StateFile(path, "state", Seal(KEY)).write(b"third")
